#include "core/durations.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/slot.hpp"

namespace jobq::core {

using std::chrono::microseconds;

namespace {

constexpr double growth = 1.08;
constexpr double log_growth = 0.0769610411361283249; // std::log(growth) is no constant expression
constexpr microseconds shortest{1}, longest = std::chrono::hours{1};

// Up to here each microsecond is a class of its own, or rounding would take too much. Class
// linear + n has the durations from linear * growth^n to linear * growth^(n + 1) µs.
constexpr std::size_t linear = 25;

std::size_t class_of(microseconds duration) noexcept {
    const auto us = static_cast<std::size_t>(std::clamp(duration, shortest, longest).count());
    if (us < linear)
        return us;
    return linear +
           static_cast<std::size_t>(
               std::log(static_cast<double>(us) / static_cast<double>(linear)) / log_growth);
}

// As far from one end of the class as from the other, relatively: (growth - 1) / (growth + 1).
microseconds middle_of(std::size_t number) noexcept {
    if (number < linear)
        return microseconds{number};
    const double from = linear * std::pow(growth, static_cast<double>(number - linear));
    return microseconds{std::lround(from * 2 * growth / (growth + 1))};
}

// Whether the nth request is one of those 2^-halvings of all that are still counted. Multiples of
// the golden ratio are spread evenly, also those of every second or every hundredth n: no pattern
// in the requests can fall in with it.
bool is_sampled(std::uint64_t n, unsigned halvings) noexcept {
    return halvings == 0 || n * 0x9e3779b97f4a7c15U >> (64 - halvings) == 0;
}

} // namespace

void Durations::add(microseconds duration, bool success, microseconds now) noexcept {
    const std::uint64_t number = latest(now);
    Turn& current = turns_[number % 2];
    if (current.number != number) {
        current = {};
        current.number = number;
    }
    ++(success ? current.succeeded : current.failed);
    if (!is_sampled(current.succeeded + current.failed, current.halvings))
        return;

    const std::size_t at = std::min(class_of(duration), classes - 1);
    if (current.counts[at] == std::numeric_limits<std::uint16_t>::max()) {
        for (std::uint16_t& count : current.counts)
            count /= 2;
        ++current.halvings;
    }
    ++current.counts[at];
}

std::optional<microseconds> Durations::quantile(double q, microseconds now) const noexcept {
    const std::uint64_t last = latest(now);
    // How many there are in a class, or in all of them.
    const auto count = [&](auto&& count_in) {
        std::uint64_t sum = 0;
        for (const Turn& turn : turns_)
            if (turn.number + 1 >= last)
                sum += static_cast<std::uint64_t>(count_in(turn)) << turn.halvings;
        return sum;
    };
    const std::uint64_t all = count([](const Turn& turn) {
        return std::accumulate(turn.counts.begin(), turn.counts.end(), std::uint64_t{0});
    });
    if (all == 0)
        return std::nullopt;

    // In this order NaN becomes 0.
    const double share = std::min(std::max(0.0, q), 1.0);
    const double rank = std::max(std::ceil(share * static_cast<double>(all)), 1.0);
    std::uint64_t passed = 0;
    std::size_t at = 0;
    for (; at < classes - 1; ++at) {
        passed += count([&](const Turn& turn) { return turn.counts[at]; });
        if (static_cast<double>(passed) >= rank)
            break;
    }
    return middle_of(at);
}

std::uint64_t Durations::succeeded(microseconds now) const noexcept {
    const std::uint64_t last = latest(now);
    std::uint64_t sum = 0;
    for (const Turn& turn : turns_)
        sum += turn.number + 1 >= last ? turn.succeeded : 0;
    return sum;
}

std::uint64_t Durations::failed(microseconds now) const noexcept {
    const std::uint64_t last = latest(now);
    std::uint64_t sum = 0;
    for (const Turn& turn : turns_)
        sum += turn.number + 1 >= last ? turn.failed : 0;
    return sum;
}

std::uint64_t Durations::latest(microseconds now) const noexcept {
    return std::max({slot_of(now, turn), turns_[0].number, turns_[1].number});
}

} // namespace jobq::core
