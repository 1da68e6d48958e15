// Wake-ups: what a transaction has to say to its database's dispatcher once it is committed.
//
// A note is kept in this process until the transaction ends. After the commit it goes to the
// dispatcher through whatever worker/ installed with deliver_to(), without NOTIFY's lock. Where no
// dispatcher runs, the transaction sends NOTIFY instead: on `jobq`, and on the channel of each
// queue, so that workers that LISTEN hear of arrivals. A rolled back (sub)transaction takes its
// notes with it.
#pragma once

#include <span>
#include <string_view>

#include "core/bound.hpp"
#include "core/stream_set.hpp"
#include "pg/postgres.hpp"

namespace jobq::queue::wake {

// The channel of a queue is this and the queue's name; the dispatcher's own is "jobq".
inline constexpr std::string_view channel_prefix = "jobq_";
inline constexpr const char* dispatcher_channel = "jobq";

// What happened, to whom it may concern. Plain data, fit for shared memory.
struct Wakeup {
    core::StreamSet<128> streams; // something became claimable here, or its next due time changed
    bool settings = false;        // queues or endpoints changed
    bool scan_all = false;        // anything may have happened
    bool extension = false;       // jobq was created, updated or dropped in this database

    void merge(const Wakeup& other) noexcept {
        streams.merge(other.streams);
        settings |= other.settings;
        scan_all |= other.scan_all;
        extension |= other.extension;
    }
    bool empty() const noexcept { return streams.empty() && !settings && !scan_all && !extension; }
};

// A job that can be claimed from its time on, by a push, a retry or a release of this transaction.
struct Arrival {
    int32 priority;
    core::Place place;
    bool held = false; // it could be before too, but for a lock that a rollback lets go as well
    bool delivered = false; // it is due, and the dispatcher's
};
// Error (of all five): out of memory, at most once in a process.
void note(core::Stream stream, std::string_view name, const Arrival& arrival);
// Anything about the stream may have changed, by this transaction or by its rollback. Stream::any:
// about each of its queue.
void note(core::Stream stream, std::string_view name);
// A job ended, which may let go others that its group or a limit held back.
void note_room(core::Stream stream, std::string_view name);
// The turn of one job of a group has come, at exactly this place.
void note_spot(core::Stream stream, std::string_view name, int32 priority, core::Place place);
// This transaction's claims have dealt with a spot: one that they saw, by its stamp; or one that
// the transaction noted itself.
void note_dropped(core::Stream stream, uint64 stamp);
void drop_own_spot(core::Stream stream, core::Place place);
// Jobs that this transaction takes, the first of them at this place: to be had again if it is
// rolled back.
void note_taken(core::Stream stream, core::Place first);
// Those claims left nothing of the priority to claim before `to`: see core/bound.hpp.
void note_raise(core::Stream stream, int32 priority, core::Place to, uint64 generation);
// Leases that end then, or later, were written or met by those claims.
void note_lease(core::Stream stream, TimestampTz until);
void note_settings();
void note_extension();

// What this transaction has noted of jobs that can be claimed: nobody else knows of them yet.
struct Own {
    bool anything = false;
    std::span<const int32> priorities = {};
    core::Place low = core::last_place;
};
Own own(core::Stream stream);
struct OwnSpot {
    core::Stream stream;
    int32 priority;
    core::Place place;
};
std::span<const OwnSpot> own_spots(); // of all streams

// The way to the dispatcher, installed once a process where the library is preloaded.
struct Listener {
    // Whether a dispatcher of this database runs, and so tells listeners of arrivals.
    bool (*present)() noexcept;
    // Before the commit is written: what is about to be committed.
    void (*committing)(const Wakeup&) noexcept;
    // After the commit. Neither may fail, allocate or raise: the transaction is past that point.
    void (*committed)(const Wakeup&) noexcept;
    // A transaction with notes was prepared: its COMMIT PREPARED is to wake with a full scan.
    void (*prepared)() noexcept;
};
void deliver_to(const Listener& listener);

} // namespace jobq::queue::wake
