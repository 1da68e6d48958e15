#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace jobq::core {

// Which queues something happened to: at most N ids, and beyond that "all of them". Plain data
// for shared memory (all zero bytes is the empty set); nothing here allocates or fails, so a
// commit callback can use it.
template <std::size_t N>
class QueueSet {
public:
    static constexpr std::size_t capacity = N;

    void add(std::int32_t id) noexcept {
        if (contains(id))
            return;
        if (size_ == N)
            add_all();
        else
            ids_[size_++] = id;
    }

    void add_all() noexcept {
        all_ = true;
        size_ = 0;
    }

    template <std::size_t M>
    void merge(const QueueSet<M>& other) noexcept {
        if (other.overflowed())
            add_all();
        for (const std::int32_t id : other.ids())
            add(id);
    }

    void clear() noexcept {
        all_ = false;
        size_ = 0;
    }

    // True once there were more than N: any queue may be meant, and ids() says nothing.
    bool overflowed() const noexcept { return all_; }
    bool empty() const noexcept { return !all_ && size_ == 0; }
    bool contains(std::int32_t id) const noexcept {
        return all_ || std::find(ids_.begin(), ids_.begin() + size_, id) != ids_.begin() + size_;
    }

    // In the order in which they were added; empty after an overflow.
    std::span<const std::int32_t> ids() const noexcept { return {ids_.data(), size_}; }

private:
    std::array<std::int32_t, N> ids_{};
    std::uint32_t size_ = 0;
    bool all_ = false;
};

} // namespace jobq::core
