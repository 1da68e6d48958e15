#pragma once

#include <chrono>
#include <cstdint>

namespace jobq::core {

// Time cut into slots of one width (> 0): the number of the one that holds `time`. Counted from
// the earliest time there is, so that no number is negative, whatever the clock's epoch.
constexpr std::uint64_t slot_of(std::chrono::microseconds time,
                                std::chrono::microseconds width) noexcept {
    return (static_cast<std::uint64_t>(time.count()) + (std::uint64_t{1} << 63)) /
           static_cast<std::uint64_t>(width.count());
}

} // namespace jobq::core
