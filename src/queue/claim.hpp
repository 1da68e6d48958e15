// Claiming: how a job comes into somebody's hands, by a pull or by the dispatcher.
//
// A claim reads due jobs in their order and writes its lease into the row of each, passing over
// those that somebody else has locked or is writing. Who writes a row first has it: two claims
// cannot get one job.
//
// A row with a lease is running. It is taken from who holds it when the lease is over, and by the
// dispatcher also if it is a delivery that is not in its hands: then an earlier dispatcher's, since
// there is only one. Such attempts are ended on the way, as are jobs that have expired.
//
// A group's jobs run one at a time, in push order. The candidate of a group is its first unfinished
// job, if none of the group is running. That is read from a snapshot, and an earlier push may
// commit after it was taken. So a claim takes a try-lock for the group, held until its transaction
// has ended and its lease is seen, and looks again from a new snapshot. The unique index on
// jobq.running_group is the net.
//
// Where a claim begins to look, and what it tells of that to the next one: core/bound.hpp.
//
// Locks: table job, then group (try), then job row (try).
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "core/bound.hpp"
#include "core/stream.hpp"
#include "queue/job_row.hpp"
#include "queue/queues.hpp"

namespace jobq::queue {

// A lease that is never over would never be given to somebody else. A leap year, in microseconds.
constexpr int64 longest_lease = 366 * USECS_PER_DAY;

struct ClaimOrder {
    core::Stream stream;
    std::size_t limit;
    std::optional<int32> max_running;
    TimestampTz due; // jobs that are due then
    TimestampTz lease_until;
    std::optional<Datum> types = {};             // text[]: only these
    std::optional<std::string_view> worker = {}; // for the record
    bool delivery = false;
    // Of the dispatcher: whether it has this attempt under way.
    std::function<bool(const core::Uuid&, int32)> in_hand = {};
    bool by_clock = true; // due is now
};

// A claimed job, as it is now. Lives in the memory context of the claim.
struct ClaimedJob {
    pg::Tuple row; // of jobq.job
    core::Uuid id;
    int32 attempt; // the one that begins
};

// Claims up to order.limit jobs, best first. Jobs found expired are ended on the way and do not
// count.
struct Claims {
    std::vector<ClaimedJob> jobs;
    // Once the WAL is flushed up to here, the pushes and retries that made them due are there to
    // stay.
    XLogRecPtr durable_at = InvalidXLogRecPtr;
    // When the stream's next job is due; nothing if there is none, or if the limit was reached.
    std::optional<TimestampTz> next_due = {};
    bool blocked = false; // somebody has locked what was to be ended: look again soon
    // When the first lease ends of those that others hold, as far as the claim has seen them.
    std::optional<TimestampTz> lease_end = {};
};
Claims claim(const ClaimOrder& order);

// The streams that have jobs, whatever state these are in; of one queue, or of all.
std::vector<core::Stream> streams(std::optional<int32> queue = {});

// Whether the stream has a job that is due and not running, or whose lease is over.
bool has_due(core::Stream stream, TimestampTz now);

// When the stream's next job that is not due yet will be; nothing if there is none.
std::optional<TimestampTz> next_due(core::Stream stream, TimestampTz after);

// Ends pulled attempts of the stream whose lease is over, up to `limit`. Looks where claims have
// been, unless none of their leases is over, and at `most_rows` more at most, or at all rows.
// Returns how many it ended.
std::size_t end_leases(core::Stream stream, std::size_t limit,
                       std::optional<std::size_t> most_rows);

} // namespace jobq::queue
