// Ending attempts: complete, fail, release, bury, lease expiry, expiry.
//
//                    claim                    complete
//   queued ───────────────────────▶ running ───────────▶ completed
//     ▲  │  cancel, expired            │ │ │
//     │  └──────▶ cancelled, expired   │ │ └─ bury, or fail with the attempts used up ─▶ dead
//     └────────────────────────────────┘ └─ cancel, or its unique key is waited for ──▶ cancelled
//        fail, lease over (charged), release (not charged)
//
// A running job's row has a lease and the number of the attempt that holds it. Who writes the row,
// or deletes it, while it names his attempt has ended the attempt; who finds another number or no
// lease is too late, and changes nothing. Many rows are locked in the order of their ids.
#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/stream.hpp"
#include "pg/spi.hpp"

namespace jobq::queue {

// The dispatcher waits for no row that a client may have locked: it tries again later.
enum class OnLocked { wait, skip };

struct Completion {
    core::Uuid id;
    int32 attempt;
    std::optional<Datum> result = {}; // jsonb
    std::string_view outcome = "completed";
    std::optional<int32> status_code = {};
    std::optional<std::string_view> response = {};
};

enum class Ending {
    fail,          // charged; tried again after retry_in or by the retry settings, or dead
    lease_expired, // charged; tried again at once, or dead
    release,       // not charged; runs again after retry_in, or when it was due
    bury,          // dead
};

struct Failure {
    core::Uuid id;
    int32 attempt;
    Ending ending = Ending::fail;
    std::string_view outcome = "failed";
    std::optional<std::string_view> error = {};
    std::optional<Datum> retry_in = {}; // interval, checked
    // What a receiver asked for; honoured within the first and the longest wait.
    std::optional<std::chrono::seconds> retry_after = {};
    std::optional<int32> status_code = {};
    std::optional<std::string_view> response = {};
};

// What became of a job whose attempt was ended.
struct Ended {
    core::Uuid id;
    int32 attempt;
    bool waits = false;     // queued again
    TimestampTz run_at = 0; // then: when it may run
    bool dead = false;
};

// Ends these attempts as completed. What was not the running attempt is not in the result; with
// OnLocked::skip nor is what somebody has locked. Wakes after commit.
std::vector<Ended> complete(std::span<const Completion> items, OnLocked locked);

// Ends these attempts without success; as complete().
std::vector<Ended> fail(const pg::Spi& spi, std::span<const Failure> items, OnLocked locked);

// An attempt that runs.
struct Attempt {
    core::Uuid id;
    int32 attempt;
};

struct LeaseEnd {
    core::Stream stream;
    TimestampTz at;
};

// These deliveries were accepted, and go on: as if a worker had pulled them, for the queue's lease
// from now. Skips what somebody has locked. Returns when the leases of those that still ran end.
std::vector<LeaseEnd> hand_over(const pg::Spi& spi, std::span<const Attempt> items);

// An endpoint wants no more. False: somebody has its row locked, and it is not disabled yet.
bool disable_endpoint(const pg::Spi& spi, int32 endpoint, std::string_view reason);

// Which of these attempts still run: those that complete() and fail() skipped because somebody had
// the job locked, and not those that came too late.
std::vector<core::Uuid> still_running(const pg::Spi& spi, std::span<const core::Uuid> ids,
                                      std::span<const int32> attempts);

// Why a claim, or maintenance, ends attempts that nobody ends.
Failure lease_over(const core::Uuid& id, int32 attempt);
Failure interrupted(const core::Uuid& id, int32 attempt);

// Ends those of these jobs that do not run as expired; not those that somebody has locked. Returns
// how many.
std::size_t expire(const pg::Spi& spi, std::span<const core::Uuid> ids);

// Deletes finished jobs that are no longer kept, up to limit of them. Returns how many.
std::size_t delete_old(const pg::Spi& spi, int64 limit);

} // namespace jobq::queue
