#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>

namespace jobq::core {

// How many requests an endpoint may have in flight. It grows by one for each full window of good
// answers and is halved by one that says "too much", as TCP's congestion window is (RFC 5681, 3.1):
// so it stays about where the endpoint can follow.
//
// A halving shows only in requests that started after it. Those that were under way can neither
// halve the window again nor make it grow.
class Window {
public:
    // 1 <= low <= high; outside, the nearest end is taken. The first call starts at high. Later
    // ones keep the size within the bounds; a window that was at its upper bound, where nothing
    // held it back, goes up with it.
    void set_bounds(std::size_t low, std::size_t high) noexcept {
        const bool full = size_ == high_;
        high_ = std::max<std::size_t>(high, 1);
        low_ = std::clamp<std::size_t>(low, 1, high_);
        size_ = full ? high_ : std::clamp(size_, low_, high_);
    }

    // Zero before the first set_bounds().
    std::size_t size() const noexcept { return size_; }

    // A request that started then was answered well.
    void grow(std::chrono::microseconds started_at) noexcept {
        if (started_at < halved_at_ || size_ >= high_)
            return;
        if (++answered_ >= size_) {
            ++size_;
            answered_ = 0;
        }
    }

    // A request that started then was answered 429 or 503, or not in time.
    void shrink(std::chrono::microseconds started_at, std::chrono::microseconds now) noexcept {
        if (started_at < halved_at_)
            return;
        size_ = std::max(size_ / 2, low_);
        answered_ = 0;
        halved_at_ = now;
    }

private:
    std::size_t low_ = 0, high_ = 0, size_ = 0;
    std::size_t answered_ = 0; // well, since the size last changed
    std::chrono::microseconds halved_at_ = std::chrono::microseconds::min();
};

} // namespace jobq::core
