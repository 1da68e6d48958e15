#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace jobq::core {

// How long the requests of an endpoint took in the last 5 to 10 minutes, and how many of them
// succeeded: two histograms take turns, each for 5 minutes. A class of durations is 8 % longer than
// the one before it, so a quantile is at most 5 % off. Times are of any clock that does not go
// back; nothing here allocates or fails.
class Durations {
public:
    static constexpr std::chrono::microseconds turn = std::chrono::minutes{5};

    // duration: 1 µs to 1 h; outside, the nearest end is taken.
    void add(std::chrono::microseconds duration, bool success,
             std::chrono::microseconds now) noexcept;

    // The duration that a share q (0 to 1) of the requests did not exceed, whatever their outcome;
    // nothing if there were none.
    std::optional<std::chrono::microseconds> quantile(double q,
                                                      std::chrono::microseconds now) const noexcept;

    std::uint64_t succeeded(std::chrono::microseconds now) const noexcept;
    std::uint64_t failed(std::chrono::microseconds now) const noexcept;

private:
    static constexpr std::size_t classes = 270; // up to an hour

    // Counts are 16 bits wide. When one is full all of them are halved, and from then on every
    // second request is counted; the next time every fourth, and so on. So the proportions stay.
    struct Turn {
        std::uint64_t number = 0; // its slot of time
        std::uint64_t succeeded = 0, failed = 0;
        unsigned halvings = 0; // of counts; succeeded and failed are exact
        std::array<std::uint16_t, classes> counts{};
    };

    // The turn that it is now, or the newest that there is: no clock goes back.
    std::uint64_t latest(std::chrono::microseconds now) const noexcept;

    std::array<Turn, 2> turns_{}; // turn n is at n modulo 2
};

} // namespace jobq::core
