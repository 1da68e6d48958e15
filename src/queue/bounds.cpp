#include <algorithm>
#include <array>

#include "pg/settings.hpp"
#include "pg/spin.hpp"
#include "queue/bounds.hpp"

extern "C" {
#include "common/hashfn.h"
}

namespace jobq::queue::bounds {

namespace {

// A stream's entry is one of a few that its numbers choose.
constexpr std::size_t ways = 4, sets = 512;
// A search from the start takes at most one part in so many of the time.
constexpr int search_share = 100;

struct Entry {
    Oid database; // InvalidOid: free
    core::Stream stream;
    TimestampTz used, forget_at;
    TimestampTz lease_end; // the first below the bounds, or before
    core::QueueBounds bounds;
};

struct Set {
    slock_t lock;
    std::array<Entry, ways> entries;
};

struct Table {
    std::array<Set, sets> sets_of_entries;
};

Table* table;

Set& set_of(core::Stream stream) {
    uint32 hash = murmurhash32(static_cast<uint32>(stream.queue) ^ (MyDatabaseId * 0x9e3779b1U));
    hash = hash_combine(hash, murmurhash32(static_cast<uint32>(stream.endpoint)));
    return table->sets_of_entries[hash % sets];
}

Entry* find(Set& set, core::Stream stream) {
    auto entry = std::find_if(set.entries.begin(), set.entries.end(), [&](const Entry& candidate) {
        return candidate.database == MyDatabaseId && candidate.stream == stream;
    });
    return entry == set.entries.end() ? nullptr : entry;
}

// Runs f on the stream's bounds, if it has an entry.
template <class F>
void with_bounds(core::Stream stream, F&& f) {
    if (table == nullptr)
        return;
    Set& set = set_of(stream);
    pg::Spin spin(set.lock);
    if (Entry* entry = find(set, stream))
        f(*entry);
}

// Of this database, all for which the condition holds.
template <class Condition>
void forget_if(Condition&& condition) {
    if (table == nullptr)
        return;
    for (Set& set : table->sets_of_entries) {
        pg::Spin spin(set.lock);
        for (Entry& entry : set.entries)
            if (entry.database == MyDatabaseId && condition(entry))
                entry.bounds.forget();
    }
}

} // namespace

std::size_t memory_size() noexcept {
    return sizeof(Table);
}

void initialize(void* memory) noexcept {
    // New shared memory is all zeros, which is what an empty table is. Most of it is never touched.
    auto* made = static_cast<Table*>(memory);
    for (Set& set : made->sets_of_entries)
        SpinLockInit(&set.lock);
}

void use(void* memory) noexcept {
    table = static_cast<Table*>(memory);
}

Known look(core::Stream stream, TimestampTz now) noexcept {
    if (table == nullptr)
        return {};
    Set& set = set_of(stream);
    pg::Spin spin(set.lock);
    Entry* entry = find(set, stream);
    if (entry == nullptr) {
        entry = std::min_element(set.entries.begin(), set.entries.end(),
                                 [](const Entry& a, const Entry& b) { return a.used < b.used; });
        entry->database = MyDatabaseId;
        entry->stream = stream;
        entry->lease_end = DT_NOEND;
        entry->bounds.forget();
    }
    entry->used = now;
    if (now >= entry->lease_end || (entry->bounds.complete() && now >= entry->forget_at)) {
        entry->lease_end = DT_NOEND;
        entry->bounds.forget();
    }
    return {entry->bounds, entry->lease_end};
}

void note(core::Stream stream, int32 priority, core::Place place) noexcept {
    with_bounds(stream, [&](Entry& entry) { entry.bounds.note(priority, place); });
}

void note_spot(core::Stream stream, int32 priority, core::Place place) noexcept {
    with_bounds(stream, [&](Entry& entry) { entry.bounds.note_spot(priority, place); });
}

void drop_spots(core::Stream stream, std::span<const uint64> stamps) noexcept {
    with_bounds(stream, [&](Entry& entry) { entry.bounds.drop_spots(stamps); });
}

void lower(core::Stream stream, core::Place place) noexcept {
    with_bounds(stream, [&](Entry& entry) { entry.bounds.lower(place); });
}

void note_lease(core::Stream stream, TimestampTz until) noexcept {
    with_bounds(stream, [&](Entry& entry) { entry.lease_end = std::min(entry.lease_end, until); });
}

void raise(core::Stream stream, int32 priority, core::Place to, uint64 generation) noexcept {
    with_bounds(stream, [&](Entry& entry) { entry.bounds.raise(priority, to, generation); });
}

void found(core::Stream stream, std::span<const int32> priorities, uint64 changes, TimestampTz now,
           std::chrono::microseconds cost) noexcept {
    std::chrono::microseconds wait = pg::settings::scan_interval();
    wait = std::max(wait, cost * search_share);
    with_bounds(stream, [&](Entry& entry) {
        entry.bounds.found(priorities, changes);
        entry.forget_at = now + wait.count();
    });
}

void forget(core::Stream stream) noexcept {
    if (stream.is_any())
        forget_if([&](const Entry& entry) { return stream.covers(entry.stream); });
    else
        with_bounds(stream, [&](Entry& entry) { entry.bounds.forget(); });
}

void forget_all() noexcept {
    forget_if([](const Entry&) { return true; });
}

} // namespace jobq::queue::bounds
