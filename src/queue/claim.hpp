// Claiming: how a job comes into somebody's hands, by a pull or by the dispatcher.
//
// A claim locks the rows of due jobs without a lease, skipping those that others have locked, and
// writes a lease for each. Two claims cannot get one job: the lease's primary key has the last
// word.
//
// A group's jobs run one at a time, in push order. The candidate of a group is its first unfinished
// job, if no job of the group has a lease. That is read from a snapshot, and an earlier push may
// commit after it was taken. So a claim takes a try-lock for the group, held until its transaction
// has ended and its lease is seen, and looks again from a new snapshot. The unique index on the
// leases' groups is the net.
//
// Where a claim begins to look, and what it tells of that to the next one: core/bound.hpp.
//
// Locks: table job, job row, then group (try), then lease row.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "core/bound.hpp"
#include "pg/spi.hpp"
#include "queue/queues.hpp"

namespace jobq::queue {

// A lease that is never over would never be given to somebody else. A leap year, in microseconds.
constexpr int64 longest_lease = 366 * USECS_PER_DAY;

struct ClaimOrder {
    int32 queue_id;
    std::string_view queue;
    std::size_t limit;
    std::optional<int32> max_running;
    TimestampTz due; // jobs that are due then
    TimestampTz lease_until;
    std::optional<Datum> types;             // text[]: only these
    std::optional<std::string_view> worker; // for the record
    std::optional<int32>
        endpoint_id;           // set: a delivery, to this endpoint unless a job names another
    std::vector<int32> closed; // jobs that name one of these endpoints are passed over
    bool by_clock = true;      // due is now
};

// A claimed job. The row lives as long as the Spi.
struct ClaimedJob {
    enum Column {
        id_ = 1,
        attempt_,
        type_,
        payload_,
        body_,
        content_type_,
        headers_,
        group_key_,
        max_attempts_,
        keyed_,
        expires_at_,
        endpoint_id_,
        run_at_,
        seq_
    };
    pg::Row row;
    core::Uuid id;
    int32 attempt; // the one that begins

    std::optional<std::string_view> type() const { return row.maybe_text(type_); }
    std::optional<std::string_view> group_key() const { return row.maybe_text(group_key_); }
    core::Place place() const { return {row.timestamp(run_at_), row.int8(seq_)}; }
};

// Claims up to order.limit jobs, best first. Jobs found expired are ended on the way and do not
// count.
std::vector<ClaimedJob> claim(const pg::Spi& spi, const ClaimOrder& order);

// Whether the queue has a job that is due and not running.
bool has_due(const pg::Spi& spi, int32 queue_id, TimestampTz now);

// When the queue's next job that is not due yet will be; nothing if there is none.
std::optional<TimestampTz> next_due(const pg::Spi& spi, int32 queue_id, TimestampTz after);

} // namespace jobq::queue
