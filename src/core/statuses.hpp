#pragma once

#include <bitset>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <variant>

namespace jobq::core {

// HTTP statuses that end a job instead of having it tried again.
class Statuses {
public:
    // None.
    Statuses() = default;

    // Of "404" (100 to 599) and "4xx"; or what is wrong with one of them. 2xx is success and
    // cannot be among them. A class leaves out what asks for another try, 408, 425 and 429: they
    // count only where they are named themselves.
    static std::variant<Statuses, std::string> parse(std::span<const std::string> items);

    bool contains(int status) const noexcept {
        const auto at = static_cast<std::size_t>(status); // a negative one becomes a large one
        return at < final_.size() && final_[at];
    }

private:
    std::bitset<600> final_;
};

} // namespace jobq::core
