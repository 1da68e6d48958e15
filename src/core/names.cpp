#include "core/names.hpp"

#include "core/text.hpp"

namespace jobq::core {

std::optional<std::string> check_name(std::string_view kind, std::string_view name) {
    const std::string subject = std::string(kind) + " name must not ";
    if (name.empty())
        return subject + "be empty";
    if (name.size() > max_name_bytes)
        return subject + "be longer than " + std::to_string(max_name_bytes) + " bytes";
    if (has_control(name))
        return subject + "contain control characters";
    return std::nullopt;
}

std::string channel_of(std::string_view queue) {
    return "jobq_" + std::string(queue);
}

} // namespace jobq::core
