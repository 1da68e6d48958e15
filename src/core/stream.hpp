#pragma once

#include <compare>
#include <cstdint>
#include <limits>

namespace jobq::core {

// Jobs that are claimed together, in one order: those of a queue that go where the queue's go (or
// are pulled), or those of a queue that go to one other endpoint. So that what waits for one
// endpoint stands in nobody's way.
struct Stream {
    static constexpr std::int32_t own = 0; // the queue's
    static constexpr std::int32_t any = std::numeric_limits<std::int32_t>::min();

    std::int32_t queue = 0;
    std::int32_t endpoint =
        own; // an endpoint's id, or own; any: all streams of the queue are meant

    bool is_any() const noexcept { return endpoint == any; }
    bool covers(const Stream& other) const noexcept {
        return queue == other.queue && (is_any() || endpoint == other.endpoint);
    }
    friend auto operator<=>(const Stream&, const Stream&) = default;
};

} // namespace jobq::core
