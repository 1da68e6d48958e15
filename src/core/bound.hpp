// Where to begin to look for a stream's next jobs.
//
// Claims take jobs in the order of an index, from its left end. What earlier claims took stays in
// the index as dead entries until vacuum may remove them, and every claim would read them all
// again. So it is remembered up to which place nothing is left to claim, for each priority of a
// stream.
//
// The bound is raised by claims that have read everything below it, and lowered to the place of
// whatever becomes claimable below it: a push that commits late, a retry, a claim that is rolled
// back. Such a place is noted when it becomes visible, which can be after a claim took its snapshot
// and before it raises the bound. Hence the generations: a claim says which one it saw before its
// snapshot. If that is still the current one, the bound is raised, but not over what was noted
// since that generation began. If it is not, another claim has raised the bound meanwhile, and this
// one leaves it.
//
// A job that waits for another of its group is passed over, and the bound raised. When its turn
// comes, its place is noted as a spot: looked at by itself, so that the bound need not go back over
// all that was passed over with it. A claim that has dealt with a spot drops it, unless it was
// noted again after the claim's snapshot, which its stamp tells.
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace jobq::core {

// A job's place among those of its priority: by time, then by push order.
struct Place {
    std::int64_t run_at = 0; // µs, on any clock
    std::int64_t seq = 0;

    friend auto operator<=>(const Place&, const Place&) = default;
};
constexpr Place first_place{std::numeric_limits<std::int64_t>::min(),
                            std::numeric_limits<std::int64_t>::min()};
constexpr Place last_place{std::numeric_limits<std::int64_t>::max(),
                           std::numeric_limits<std::int64_t>::max()};

// The bounds of one stream, a level a priority. Plain data for shared memory: all zero bytes know
// nothing. Nothing here allocates or fails.
class QueueBounds {
public:
    static constexpr std::size_t most_levels = 8, most_spots = 256;

    struct Level {
        std::int32_t priority;
        Place from;  // nothing claimable stands before it
        Place noted; // the lowest place noted since the generation began
        std::uint64_t generation;
    };

    // A place to be looked at besides the levels.
    struct Spot {
        std::int32_t priority;
        Place place;
        std::uint64_t stamp; // greater than those noted before
    };

    QueueBounds() = default;
    // Of the spots those that are there.
    QueueBounds(const QueueBounds& other) noexcept { *this = other; }
    QueueBounds& operator=(const QueueBounds& other) noexcept {
        levels_ = other.levels_;
        size_ = other.size_;
        generations_ = other.generations_;
        changes_ = other.changes_;
        complete_ = other.complete_;
        spotted_ = other.spotted_;
        std::copy_n(other.spots_.begin(), spotted_, spots_.begin());
        return *this;
    }

    // The levels that are known, lowest number first.
    std::span<const Level> levels() const noexcept { return {levels_.data(), size_}; }
    // Whether they are all that can have claimable jobs.
    bool complete() const noexcept { return complete_; }
    // Changes when something happened that levels() cannot tell; see found().
    std::uint64_t changes() const noexcept { return changes_; }
    // In the order in which they were noted.
    std::span<const Spot> spots() const noexcept { return {spots_.data(), spotted_}; }

    // A job became claimable, or will at its time, at this place; or one may have.
    void note(std::int32_t priority, Place place) noexcept {
        lower(place);
        if (find(priority) == nullptr)
            add(priority, complete_ ? place : first_place);
    }

    // As note(), for one job whose place is known exactly, and that claims may have passed over.
    void note_spot(std::int32_t priority, Place place) noexcept {
        if (spotted_ == most_spots || find(priority) == nullptr)
            note(priority, place);
        else
            spots_[spotted_++] = {priority, place, ++generations_};
    }

    // A claim that saw these stamps before its snapshot, in their order, has dealt with the spots.
    void drop_spots(std::span<const std::uint64_t> stamps) noexcept {
        auto* end = spots_.data() + spotted_;
        auto* left = std::remove_if(spots_.data(), end, [&](const Spot& spot) {
            return std::binary_search(stamps.begin(), stamps.end(), spot.stamp);
        });
        spotted_ = static_cast<std::size_t>(left - spots_.data());
    }

    // As note(), for a job of an unknown priority among those that are known.
    void lower(Place place) noexcept {
        for (Level& level : std::span(levels_.data(), size_)) {
            level.from = std::min(level.from, place);
            level.noted = std::min(level.noted, place);
        }
    }

    // Anything may have happened.
    void forget() noexcept {
        size_ = spotted_ = 0;
        complete_ = false;
        ++changes_;
    }

    // A claim that saw this generation before its snapshot has left nothing to claim before `to`.
    void raise(std::int32_t priority, Place to, std::uint64_t generation) noexcept {
        Level* level = find(priority);
        if (level == nullptr || level->generation != generation)
            return;
        level->from = std::min(to, level->noted);
        level->noted = last_place;
        level->generation = ++generations_;
    }

    // These are the priorities that a search found, which saw changes() before its snapshot.
    void found(std::span<const std::int32_t> priorities, std::uint64_t changes) noexcept {
        for (std::int32_t priority : priorities)
            if (find(priority) == nullptr)
                add(priority, first_place);
        complete_ = changes == changes_;
    }

private:
    Level* find(std::int32_t priority) noexcept {
        auto* end = levels_.data() + size_;
        auto* level = std::find_if(levels_.data(), end, [&](const Level& candidate) {
            return candidate.priority == priority;
        });
        return level == end ? nullptr : level;
    }

    void add(std::int32_t priority, Place from) noexcept {
        if (size_ == most_levels) { // more than can be kept: searched for at every claim
            complete_ = false;
            ++changes_;
            return;
        }
        auto* end = levels_.data() + size_;
        auto* at = std::find_if(levels_.data(), end,
                                [&](const Level& level) { return level.priority > priority; });
        std::move_backward(at, end, end + 1);
        *at = {priority, from, last_place, ++generations_};
        ++size_;
    }

    std::array<Level, most_levels> levels_{};
    std::size_t size_ = 0;
    std::uint64_t generations_ = 0, changes_ = 0;
    bool complete_ = false;
    std::size_t spotted_ = 0;
    std::array<Spot, most_spots> spots_{};
};

} // namespace jobq::core
