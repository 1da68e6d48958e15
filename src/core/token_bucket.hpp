#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>

namespace jobq::core {

// How many requests a second an endpoint may get: each takes a token; tokens come at a steady rate,
// and up to `burst` of them are kept. Times are of any clock that does not go back; one before
// another that was given earlier counts as that one.
//
// The tokens are counted in double, and brought up to date only when some are taken: then each
// rounding stands against a token or more, and all of them together stay below a token in years.
class TokenBucket {
public:
    static constexpr double least_rate = 0.0001, most_rate = 1e6;

    // rate: tokens a second, least_rate to most_rate; burst >= 1; outside, the nearest end is
    // taken. The first call fills the bucket; later ones keep what is in it, up to the new burst.
    void set(double rate_per_second, int burst, std::chrono::microseconds now) noexcept {
        const double capacity = std::max(burst, 1);
        const bool first = capacity_ == 0;
        tokens_ = first ? capacity : std::min(tokens(now), capacity);
        updated_ = first ? now : std::max(updated_, now);
        capacity_ = capacity;
        // In this order NaN becomes the least.
        per_microsecond_ = std::min(std::max(least_rate, rate_per_second), most_rate) / 1e6;
    }

    // How many may be taken now; none before the first set().
    std::size_t available(std::chrono::microseconds now) const noexcept {
        return static_cast<std::size_t>(std::max(0.0, std::floor(tokens(now) + rounding)));
    }

    // More than are available may be taken: the debt is made up for first.
    void take(std::size_t n, std::chrono::microseconds now) noexcept {
        tokens_ = tokens(now) - static_cast<double>(n);
        updated_ = std::max(updated_, now);
    }

    // The earliest time from now on at which a token is available; never before the first set().
    std::chrono::microseconds next(std::chrono::microseconds now) const noexcept {
        using std::chrono::microseconds;
        if (available(now) > 0)
            return now;
        const double wait = std::ceil((1 - rounding / 2 - tokens(now)) / per_microsecond_);
        const microseconds from = std::max(now, updated_);
        if (static_cast<double>(from.count()) + wait >= 0x1p63)
            return microseconds::max();
        return from + microseconds{static_cast<microseconds::rep>(wait)};
    }

private:
    // Less than this is missing only because of rounding.
    static constexpr double rounding = 1e-12;

    double tokens(std::chrono::microseconds now) const noexcept {
        if (now <= updated_)
            return tokens_;
        const auto elapsed = static_cast<double>((now - updated_).count());
        return std::min(tokens_ + elapsed * per_microsecond_, capacity_);
    }

    double tokens_ = 0, capacity_ = 0;
    double per_microsecond_ = 0;
    std::chrono::microseconds updated_ = std::chrono::microseconds::max(); // until set()
};

} // namespace jobq::core
