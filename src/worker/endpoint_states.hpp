// What the dispatchers know of their endpoints, in shared memory, for jobq.endpoint_stats. Without
// the preload there is none, and nothing is known.
//
// A fixed number of endpoints has an entry, over all databases; where they do not suffice, the one
// not written for longest gives way. What a dispatcher wrote is forgotten when it ends: nobody is
// shown the numbers of one that is gone as if they were of now.
//
// Locks: one spinlock at a time, the innermost of all. Nothing here fails, allocates or raises.
#pragma once

#include <cstddef>
#include <optional>

#include "core/fixed_text.hpp"
#include "pg/postgres.hpp"

namespace jobq::worker::endpoint_states {

// Plain data. Texts are in UTF-8, or whatever bytes a receiver sent; they are cut to what fits.
struct EndpointState {
    enum class Breaker : int32 { closed, open, half_open };

    int32 endpoint = 0;
    int32 in_flight = 0; // requests under way
    int32 window = 0;    // how many of them there may be now
    Breaker breaker = Breaker::closed;
    TimestampTz breaker_until = 0;         // the next probe; 0: none
    TimestampTz paused_until = 0;          // by Retry-After or a rate; 0: not
    int64 succeeded = 0, failed = 0;       // since the dispatcher started
    int64 recent_succeeded = 0;            // of the last 5 to 10 minutes
    int64 recent_failed = 0;               // the same
    int64 p50 = -1, p99 = -1;              // µs, of recent durations; -1: none
    int32 last_status = 0;                 // 0: none
    TimestampTz last_at = 0;               // when the last request ended; 0: none did
    core::FixedText<32> last_outcome = {}; // empty: none
    core::FixedText<128> last_error = {};  // empty: none
};

// "closed", "open" or "half_open".
const char* name_of(EndpointState::Breaker breaker) noexcept;

// -- The dispatcher of this database.

// Replaces what was known of the endpoint. Costs a spinlock, a copy of about 300 bytes and a look
// at the clock.
void publish(const EndpointState& state) noexcept;
// Of this database: at the dispatcher's start and end.
void forget_all() noexcept;

// -- Backends.

// Nothing: the endpoint is not known, or no dispatcher runs.
std::optional<EndpointState> find(int32 endpoint) noexcept;

// -- The shared memory: its size, its start by whoever makes it, its use in this process.

std::size_t memory_size() noexcept;
void initialize(void* memory) noexcept;
void use(void* memory) noexcept;

} // namespace jobq::worker::endpoint_states
