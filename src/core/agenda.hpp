#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "core/stream.hpp"

namespace jobq::core {

// Which streams are to be looked at, and when. A stream is
//
//     idle      nothing is known to be there for it, now or later
//     timed     something is, at a time
//     ready     there may be something now: it has its turn with the other ready ones
//     blocked   the same, but its endpoint takes nothing now
//
//           look_at            done, without a time
//     idle ────────▶ ready ─────────────────────────▶ idle
//     timed ───────▶   │  ▲
//      look_at, ring   │  └─ unblock ─ blocked
//                      ├─ block ─────▶
//                      └─ done, with a time ─▶ timed
//
// Costs O(log n) of the streams that are not idle, and looks at no other.
class Agenda {
public:
    using Time = std::int64_t; // µs, on any clock

    // There may be something for it now.
    void look_at(Stream stream);
    // There will be something for it then.
    void look_at(Stream stream, Time at);
    // The times that have come make their streams ready.
    void ring(Time now);

    // The next ready stream after the one that was returned last; it stays ready.
    std::optional<Stream> next();
    // Of one that is ready: it was looked at, and there will be something again then, or not.
    void done(Stream stream, std::optional<Time> at = {});
    void block(Stream stream, std::int32_t endpoint);
    // The endpoint takes so many now. As many of its streams go on, in turn, and another one for
    // each of them that is done, until one is blocked again: thousands may wait for one place.
    void unblock(std::int32_t endpoint, std::size_t room);
    void unblock_all();
    // Whatever it is, it becomes idle.
    void forget(Stream stream);

    std::size_t ready() const noexcept { return ready_.size(); }
    // When to ring next, and for which stream.
    std::optional<Time> next_time() const noexcept;
    std::optional<Stream> next_timed() const noexcept;
    // Up to so many that are ready or blocked.
    std::vector<Stream> wanting(std::size_t most) const;

private:
    enum class State : std::uint8_t { timed, ready, blocked };
    struct Entry {
        State state;
        Time at = 0;               // if timed
        std::int32_t endpoint = 0; // if blocked, or let go since
    };
    struct Blocked {
        std::set<Stream> streams;
        Stream last{}; // let go
        std::size_t let_go = 0, room = 0;
    };
    // Takes it out of where its state has it.
    void leave(Stream stream, const Entry& entry);
    void make_ready(Stream stream, Entry& entry);
    void let_go(std::int32_t endpoint);

    std::map<Stream, Entry> streams_; // but the idle ones
    std::set<std::pair<Time, Stream>> times_;
    std::set<Stream> ready_;
    std::map<std::int32_t, Blocked> blocked_; // by endpoint
    Stream last_{};
};

} // namespace jobq::core
