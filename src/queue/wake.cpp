#include <algorithm>
#include <array>
#include <cstring>
#include <tuple>

#include "pg/call.hpp"
#include "pg/watch.hpp"
#include "queue/bounds.hpp"
#include "queue/wake.hpp"

extern "C" {
#include "commands/async.h"
#include "commands/trigger.h"
}

namespace jobq::queue::wake {

namespace {

constexpr std::size_t most_streams = 128;

constexpr std::size_t most_raises = 32;

// What is over that is noted less exactly, or looked at again.
constexpr std::size_t most_spots = 512;

// Nest levels are those of GetCurrentTransactionNestLevel(): 1 is the transaction itself, and 0
// here means "not noted". An entry belongs to the outermost level that noted it.
struct Noted {
    core::Stream stream;
    int level;
    bool wakes;                      // else it is about the bounds only
    bool delivered;                  // and the dispatcher has something to send at once
    bool anything;                   // the bounds are to be forgotten
    std::array<int32, 4> priorities; // of what became claimable
    std::size_t size;
    core::Place low;                // its lowest place
    core::Place low_if_rolled_back; // of what is claimable again then
    TimestampTz lease_end;          // the first of the leases that its claims wrote or met
    char channel[NAMEDATALEN];
};

struct Raise {
    core::Stream stream;
    int32 priority;
    core::Place to;
    uint64 generation;
};

struct Dropped {
    core::Stream stream;
    uint64 stamp;
};

struct Pending {
    std::array<Noted, most_streams> streams;
    std::size_t size;
    std::array<Raise, most_raises> raises;
    std::size_t raised;
    std::array<OwnSpot, most_spots> spots;
    std::size_t spotted;
    std::array<Dropped, most_spots> drops;
    std::size_t dropped;
    int overflow, settings, extension;

    std::span<Noted> noted() { return {streams.data(), size}; }
    bool empty() const {
        return size + raised + spotted + dropped == 0 && overflow + settings + extension == 0;
    }
    void clear() {
        size = raised = spotted = dropped = 0;
        overflow = settings = extension = 0;
    }
};

Pending pending;
const Listener* listener;
bool callbacks_registered;

void set_level(int& level, int now) {
    level = level == 0 ? now : std::min(level, now);
}

void write_channel(char (&channel)[NAMEDATALEN], std::string_view name) {
    std::size_t prefix = channel_prefix.size();
    std::size_t length = std::min(name.size(), sizeof(channel) - prefix - 1);
    std::memcpy(channel, channel_prefix.data(), prefix);
    std::memcpy(channel + prefix, name.data(), length);
    channel[prefix + length] = '\0';
}

bool dispatcher_present() {
    return listener != nullptr && listener->present();
}

// The notice waits until here because an install script shows warnings only.
//
// At the last moment before the commit: a dispatcher that died since the push is known to be gone,
// and a transaction that is prepared has sent none, which would make the PREPARE impossible.
void before_commit() {
    if (pending.extension != 0 && listener == nullptr)
        ereport(NOTICE, errmsg("jobq is installed, but this server does not deliver jobs yet"),
                errdetail(
                    "The library was not loaded at server start. Everything in SQL works; jobs of "
                    "queues with an endpoint wait."),
                errhint("Add jobq to shared_preload_libraries and restart the server."));
    if (dispatcher_present()) {
        Wakeup wakeup;
        for (const Noted& noted : pending.noted())
            if (noted.delivered)
                wakeup.streams.add(noted.stream);
        if (!wakeup.empty())
            listener->committing(wakeup);
        return;
    }
    bool wakes = pending.overflow + pending.settings + pending.extension != 0;
    for (const Noted& noted : pending.noted())
        if (noted.wakes) {
            Async_Notify(noted.channel, "");
            wakes = true;
        }
    if (wakes)
        Async_Notify(dispatcher_channel, "");
}

// Those of one stream at a time, in the order of their stamps.
void drop_spots() noexcept {
    auto* from = pending.drops.data();
    auto* end = from + pending.dropped;
    std::sort(from, end, [](const Dropped& a, const Dropped& b) {
        return std::tie(a.stream, a.stamp) < std::tie(b.stream, b.stamp);
    });
    while (from != end) {
        std::array<uint64, most_spots> stamps;
        std::size_t n = 0;
        core::Stream stream = from->stream;
        for (; from != end && from->stream == stream; ++from)
            stamps[n++] = from->stamp;
        bounds::drop_spots(stream, {stamps.data(), n});
    }
}

void move_bounds() noexcept {
    if (pending.overflow + pending.extension != 0)
        bounds::forget_all();
    for (const Noted& noted : pending.noted()) {
        if (noted.anything)
            bounds::forget(noted.stream);
        for (std::size_t i = 0; i < noted.size; ++i)
            bounds::note(noted.stream, noted.priorities[i], noted.low);
        bounds::note_lease(noted.stream, noted.lease_end);
    }
    for (const OwnSpot& spot : own_spots())
        bounds::note_spot(spot.stream, spot.priority, spot.place);
    drop_spots();
    // After what this transaction noted itself, which they are not to go over.
    for (const Raise& raise : std::span(pending.raises.data(), pending.raised))
        bounds::raise(raise.stream, raise.priority, raise.to, raise.generation);
}

// Of the whole transaction, or of a part of it: lower than need be does no harm.
void move_bounds_back() noexcept {
    pending.raised = pending.dropped = 0;
    if (pending.overflow != 0)
        bounds::forget_all();
    for (const Noted& noted : pending.noted()) {
        if (noted.anything)
            bounds::forget(noted.stream);
        bounds::lower(noted.stream, noted.low_if_rolled_back);
    }
}

void after_commit() noexcept {
    Wakeup wakeup;
    for (const Noted& noted : pending.noted())
        if (noted.wakes)
            wakeup.streams.add(noted.stream);
    if (pending.overflow != 0)
        wakeup.streams.add_all();
    wakeup.settings = pending.settings != 0;
    wakeup.extension = pending.extension != 0;
    if (!wakeup.empty())
        listener->committed(wakeup);
}

// PostgreSQL calls these two; before_commit() may raise over them, so nothing here needs a
// destructor.
void on_transaction(XactEvent event, void*) {
    if (pending.empty())
        return;
    switch (event) {
    case XACT_EVENT_PRE_COMMIT:
        before_commit();
        break;
    case XACT_EVENT_COMMIT:
        move_bounds();
        if (listener != nullptr)
            after_commit();
        pending.clear();
        break;
    case XACT_EVENT_PREPARE:
        if (listener != nullptr)
            listener->prepared();
        pending.clear();
        break;
    case XACT_EVENT_ABORT:
        move_bounds_back();
        pending.clear();
        break;
    default:
        break;
    }
}

void drop_from(int& level, int aborted) {
    if (level >= aborted)
        level = 0;
}

void on_subtransaction(SubXactEvent event, SubTransactionId, SubTransactionId, void*) {
    if (pending.empty())
        return;
    int level = GetCurrentTransactionNestLevel();
    if (event == SUBXACT_EVENT_ABORT_SUB) {
        move_bounds_back();
        auto* end = std::remove_if(pending.streams.data(), pending.streams.data() + pending.size,
                                   [level](const Noted& noted) { return noted.level >= level; });
        pending.size = static_cast<std::size_t>(end - pending.streams.data());
        drop_from(pending.overflow, level);
        drop_from(pending.settings, level);
        drop_from(pending.extension, level);
    } else if (event == SUBXACT_EVENT_COMMIT_SUB) {
        for (Noted& noted : pending.noted())
            noted.level = std::min(noted.level, level - 1);
        for (int* noted : {&pending.overflow, &pending.settings, &pending.extension})
            *noted = std::min(*noted, level - 1);
    }
}

void register_callbacks() {
    if (callbacks_registered)
        return;
    pg::guarded([] {
        RegisterXactCallback(on_transaction, nullptr);
        RegisterSubXactCallback(on_subtransaction, nullptr);
    });
    callbacks_registered = true;
}

// The stream's entry, made if need be; none where there is no room, which counts as "anything
// anywhere". Without a name the entry wakes nobody.
Noted* entry(core::Stream stream, std::string_view name) {
    register_callbacks();
    int level = GetCurrentTransactionNestLevel();
    auto all = pending.noted();
    auto* noted = std::find_if(all.data(), all.data() + all.size(),
                               [&](const Noted& candidate) { return candidate.stream == stream; });
    if (noted == all.data() + all.size()) {
        if (pending.size == most_streams) {
            set_level(pending.overflow, level);
            if (!name.empty() && !dispatcher_present()) {
                char channel[NAMEDATALEN];
                write_channel(channel, name);
                pg::guarded([&] { Async_Notify(channel, ""); });
            }
            return nullptr;
        }
        *noted = {};
        noted->stream = stream;
        noted->low = noted->low_if_rolled_back = core::last_place;
        noted->lease_end = DT_NOEND;
        ++pending.size;
    }
    set_level(noted->level, level);
    if (!name.empty() && !noted->wakes) {
        noted->wakes = true;
        write_channel(noted->channel, name);
    }
    return noted;
}

} // namespace

void note(core::Stream stream, std::string_view name, const Arrival& arrival) {
    Noted* noted = entry(stream, name);
    if (noted == nullptr)
        return;
    noted->delivered |= arrival.delivered;
    noted->low = std::min(noted->low, arrival.place);
    if (arrival.held)
        noted->low_if_rolled_back = std::min(noted->low_if_rolled_back, arrival.place);
    auto* end = noted->priorities.data() + noted->size;
    if (std::find(noted->priorities.data(), end, arrival.priority) != end)
        return;
    if (noted->size < noted->priorities.size())
        noted->priorities[noted->size++] = arrival.priority;
    else
        noted->anything = true;
}

void note(core::Stream stream, std::string_view name) {
    if (Noted* noted = entry(stream, name))
        noted->anything = true;
}

void note_room(core::Stream stream, std::string_view name) {
    entry(stream, name);
}

void note_taken(core::Stream stream, core::Place first) {
    if (Noted* noted = entry(stream, {}))
        noted->low_if_rolled_back = std::min(noted->low_if_rolled_back, first);
}

void note_spot(core::Stream stream, std::string_view name, int32 priority, core::Place place) {
    if (entry(stream, name) == nullptr)
        return;
    if (pending.spotted < most_spots)
        pending.spots[pending.spotted++] = {stream, priority, place};
    else
        note(stream, name, {.priority = priority, .place = place});
}

void note_dropped(core::Stream stream, uint64 stamp) {
    register_callbacks();
    if (pending.dropped < most_spots)
        pending.drops[pending.dropped++] = {stream, stamp};
}

std::span<const OwnSpot> own_spots() {
    return {pending.spots.data(), pending.spotted};
}

void drop_own_spot(core::Stream stream, core::Place place) {
    auto* end = pending.spots.data() + pending.spotted;
    auto* left = std::remove_if(pending.spots.data(), end, [&](const OwnSpot& spot) {
        return spot.stream == stream && spot.place == place;
    });
    pending.spotted = static_cast<std::size_t>(left - pending.spots.data());
}

void note_lease(core::Stream stream, TimestampTz until) {
    if (Noted* noted = entry(stream, {}))
        noted->lease_end = std::min(noted->lease_end, until);
}

void note_raise(core::Stream stream, int32 priority, core::Place to, uint64 generation) {
    register_callbacks();
    if (pending.raised < most_raises)
        pending.raises[pending.raised++] = {stream, priority, to, generation};
}

void note_settings() {
    register_callbacks();
    set_level(pending.settings, GetCurrentTransactionNestLevel());
}

void note_extension() {
    register_callbacks();
    set_level(pending.extension, GetCurrentTransactionNestLevel());
}

Own own(core::Stream stream) {
    if (pending.overflow != 0)
        return {.anything = true};
    Own own;
    for (const Noted& noted : pending.noted())
        if (noted.stream == stream)
            own = {
                own.anything || noted.anything, {noted.priorities.data(), noted.size}, noted.low};
        else if (noted.stream.covers(stream))
            own.anything |= noted.anything;
    return own;
}

void deliver_to(const Listener& to) {
    static Listener kept;
    kept = to;
    listener = &kept;
}

} // namespace jobq::queue::wake

namespace {
namespace pg = jobq::pg;
namespace wake = jobq::queue::wake;
} // namespace

JOBQ_FUNCTION(jobq_settings_changed) {
    if (!CALLED_AS_TRIGGER(call.info()))
        throw pg::Error(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED,
                        "function \"settings_changed\" was not called by the trigger manager");
    wake::note_settings();
    pg::announce_change(reinterpret_cast<TriggerData*>(call.info()->context)->tg_relation);
    return 0;
}

// The end of the install and update scripts.
JOBQ_FUNCTION(jobq_installed) {
    wake::note_extension();
    return 0;
}
