#include "core/statuses.hpp"

#include "core/text.hpp"

namespace jobq::core {

namespace {

constexpr bool is_digit(char c) noexcept {
    return c >= '0' && c <= '9';
}

// Too early is 425, RFC 8470; the others are RFC 9110's and RFC 6585's.
constexpr bool asks_for_another_try(std::size_t status) noexcept {
    return status == 408 || status == 425 || status == 429;
}

} // namespace

std::variant<Statuses, std::string> Statuses::parse(std::span<const std::string> items) {
    Statuses statuses;
    for (const std::string& item : items) {
        const bool is_class = item.ends_with("xx");
        if (item.size() != 3 || item[0] < '1' || item[0] > '5' ||
            !(is_class || (is_digit(item[1]) && is_digit(item[2]))))
            return '"' + printable(clip(item, 64)) +
                   "\" is neither an HTTP status (\"404\") nor a class of them (\"4xx\")";
        if (item[0] == '2')
            return "status \"" + item + "\" is success and cannot be final";

        const auto first = static_cast<std::size_t>(item[0] - '0') * 100;
        if (is_class) {
            for (std::size_t status = first; status < first + 100; ++status)
                if (!asks_for_another_try(status))
                    statuses.final_.set(status);
        } else {
            statuses.final_.set(first + static_cast<std::size_t>(item[1] - '0') * 10 +
                                static_cast<std::size_t>(item[2] - '0'));
        }
    }
    return statuses;
}

} // namespace jobq::core
