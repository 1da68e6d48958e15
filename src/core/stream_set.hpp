#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/stream.hpp"

namespace jobq::core {

// Where something happened: at most N streams, and beyond that "all of them". Plain data
// for shared memory (all zero bytes is the empty set); nothing here allocates or fails, so a
// commit callback can use it.
template <std::size_t N>
class StreamSet {
public:
    static constexpr std::size_t capacity = N;

    void add(Stream stream) noexcept {
        if (contains(stream))
            return;
        if (size_ == N)
            add_all();
        else
            streams_[size_++] = stream;
    }

    void add_all() noexcept {
        all_ = true;
        size_ = 0;
    }

    template <std::size_t M>
    void merge(const StreamSet<M>& other) noexcept {
        if (other.overflowed())
            add_all();
        for (const Stream& stream : other.streams())
            add(stream);
    }

    void clear() noexcept {
        all_ = false;
        size_ = 0;
    }

    // True once there were more than N: any stream may be meant, and streams() says nothing.
    bool overflowed() const noexcept { return all_; }
    bool empty() const noexcept { return !all_ && size_ == 0; }
    bool contains(Stream stream) const noexcept {
        return all_ || std::any_of(streams_.begin(), streams_.begin() + size_,
                                   [&](const Stream& each) { return each.covers(stream); });
    }

    // In the order in which they were added; empty after an overflow.
    std::span<const Stream> streams() const noexcept { return {streams_.data(), size_}; }

private:
    std::array<Stream, N> streams_{};
    std::uint32_t size_ = 0;
    bool all_ = false;
};

} // namespace jobq::core
