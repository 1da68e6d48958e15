// The bounds of all queues (core/bound.hpp) in shared memory. Without the preload there is none:
// then nothing is known, and every claim begins at the start.
//
// A fixed number of queues has an entry, those used last; the others are like unknown ones. From
// time to time an entry is forgotten, so that what nobody told of is found: changes by hand, for
// example.
//
// Locks: one spinlock at a time, the innermost of all. Nothing here fails, allocates or raises.
#pragma once

#include <chrono>
#include <cstddef>

#include "core/bound.hpp"
#include "pg/postgres.hpp"

namespace jobq::queue::bounds {

// The shared memory: its size, its start by whoever makes it, its use in this process.
std::size_t memory_size() noexcept;
void initialize(void* memory) noexcept;
void use(void* memory) noexcept;

// What is known of a queue of this database, and it is the caller who is to search where it is not
// complete. Begins to know the queue if it does not.
core::QueueBounds look(int32 queue, TimestampTz now) noexcept;

void note(int32 queue, int32 priority, core::Place place) noexcept;
void note_spot(int32 queue, int32 priority, core::Place place) noexcept;
void drop_spots(int32 queue, std::span<const uint64> stamps) noexcept;
void lower(int32 queue, core::Place place) noexcept;
// A lease below the bounds ends then: from then on nothing is known of the queue.
void note_lease(int32 queue, TimestampTz until) noexcept;
void raise(int32 queue, int32 priority, core::Place to, uint64 generation) noexcept;
// cost: how long the search and the claim after it took. Kept until it is worth another one.
void found(int32 queue, std::span<const int32> priorities, uint64 changes, TimestampTz now,
           std::chrono::microseconds cost) noexcept;
void forget(int32 queue) noexcept;
void forget_all() noexcept; // of this database

} // namespace jobq::queue::bounds
