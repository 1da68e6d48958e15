// The bounds of all streams (core/bound.hpp) in shared memory. Without the preload there is none:
// then nothing is known, and every claim begins at the start.
//
// A fixed number of streams has an entry, those used last; the others are like unknown ones. From
// time to time an entry is forgotten, so that what nobody told of is found: changes by hand, for
// example.
//
// Locks: one spinlock at a time, the innermost of all. Nothing here fails, allocates or raises.
#pragma once

#include <chrono>
#include <cstddef>

#include "core/bound.hpp"
#include "core/stream.hpp"
#include "pg/postgres.hpp"

namespace jobq::queue::bounds {

// The shared memory: its size, its start by whoever makes it, its use in this process.
std::size_t memory_size() noexcept;
void initialize(void* memory) noexcept;
void use(void* memory) noexcept;

// What is known of a stream of this database, and it is the caller who is to search where it is not
// complete. Begins to know the stream if it does not.
struct Known {
    core::QueueBounds bounds;
    TimestampTz lease_end = DT_NOEND; // the first below them; see note_lease()
};
Known look(core::Stream stream, TimestampTz now) noexcept;

void note(core::Stream stream, int32 priority, core::Place place) noexcept;
void note_spot(core::Stream stream, int32 priority, core::Place place) noexcept;
void drop_spots(core::Stream stream, std::span<const uint64> stamps) noexcept;
void lower(core::Stream stream, core::Place place) noexcept;
// A lease below the bounds ends then: from then on nothing is known of the stream.
void note_lease(core::Stream stream, TimestampTz until) noexcept;
void raise(core::Stream stream, int32 priority, core::Place to, uint64 generation) noexcept;
// cost: how long the search and the claim after it took. Kept until it is worth another one.
void found(core::Stream stream, std::span<const int32> priorities, uint64 changes, TimestampTz now,
           std::chrono::microseconds cost) noexcept;
// Stream::any: all of its queue's, which takes longer.
void forget(core::Stream stream) noexcept;
void forget_all() noexcept; // of this database

} // namespace jobq::queue::bounds
