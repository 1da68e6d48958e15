// jobq.pull and pull_any.

#include <fmt/format.h>

#include "pg/call.hpp"
#include "pg/locks.hpp"
#include "queue/claim.hpp"
#include "queue/finish.hpp"

namespace {

using namespace jobq;
using pg::Error;

constexpr int max_batch = 10000;

// The arguments that pull and pull_any share, from the second one on.
struct PullArguments {
    explicit PullArguments(const pg::Call& call) {
        call.require(1, "batch");
        if (call.int4(1) < 1 || call.int4(1) > max_batch)
            throw Error(ERRCODE_INVALID_PARAMETER_VALUE,
                        fmt::format("batch must be between 1 and {}", max_batch));
        batch = static_cast<std::size_t>(call.int4(1));
        lease = call.maybe(2);
        types = call.maybe(3);
        worker = call.maybe_text(4);
        at = call.maybe_timestamp(5);
        if (IsolationUsesXactSnapshot())
            throw Error(ERRCODE_FEATURE_NOT_SUPPORTED,
                        "jobs can only be pulled in a READ COMMITTED transaction")
                .with_detail("A claim must see what other workers have committed meanwhile.")
                .with_hint("Begin the transaction with ISOLATION LEVEL READ COMMITTED.");
    }

    std::size_t batch;
    std::optional<Datum> lease, types;
    std::optional<std::string_view> worker;
    std::optional<TimestampTz> at;
};

TimestampTz lease_end(Datum interval) {
    TimestampTz now = pg::clock();
    TimestampTz until = pg::add(now, interval);
    if (until <= now)
        throw Error(ERRCODE_INVALID_PARAMETER_VALUE, "lease must be greater than zero");
    if (until - now > queue::longest_lease)
        throw Error(ERRCODE_INVALID_PARAMETER_VALUE, "lease must not be longer than a year");
    return until;
}

// Pulls from one queue what is missing to the batch, into rows. Returns how many.
std::size_t pull(std::string_view name, const PullArguments& arguments, std::size_t limit,
                 pg::RowSink& rows) {
    // Before any row: a transaction that pulls, then pushes, and drop_queue do not wait for each
    // other.
    pg::lock_name(pg::LockKind::queue_name, name, pg::LockMode::shared);
    auto queue = queue::require_queue(name);
    if (queue.delivered())
        throw Error(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
                    fmt::format("jobs of queue \"{}\" are delivered to its endpoint", name))
            .with_hint("To pull them instead, run SELECT jobq.alter_queue(" + pg::quoted(name) +
                       (queue.routed ? ", options => '{\"endpoint\": null, \"routes\": {}}')."
                                     : ", options => '{\"endpoint\": null}')."));
    TimestampTz lease_until = lease_end(arguments.lease.value_or(queue.lease));
    if (queue.paused)
        return 0;
    auto claims = queue::claim({.stream = {queue.id},
                                .limit = limit,
                                .max_running = queue.max_running,
                                .due = arguments.at.value_or(pg::clock()),
                                .lease_until = lease_until,
                                .types = arguments.types,
                                .worker = arguments.worker,
                                .by_clock = !arguments.at});
    using Column = queue::JobColumn;
    for (const auto& [row, id, attempt] : claims.jobs)
        rows.put({pg::param(id), pg::param(attempt), pg::param(name),
                  row.param(Column::type, TEXTOID), row.param(Column::payload, JSONBOID),
                  row.param(Column::group_key, TEXTOID), row.param(Column::headers, JSONBOID),
                  pg::param(static_cast<int32>(row.int2(Column::max_attempts))),
                  pg::timestamp_param(lease_until), row.param(Column::body, BYTEAOID),
                  row.param(Column::content_type, TEXTOID)});
    return claims.jobs.size();
}

} // namespace

JOBQ_FUNCTION(jobq_pull) {
    call.require(0, "queue");
    PullArguments arguments(call);
    pg::RowSink rows(call);
    pull(call.text(0), arguments, arguments.batch, rows);
    return call.return_null();
}

JOBQ_FUNCTION(jobq_pull_any) {
    call.require(0, "queues");
    auto queues = pg::elements(call.datum(0), TEXTOID);
    PullArguments arguments(call);
    pg::RowSink rows(call);
    std::size_t pulled = 0;
    for (std::size_t i = 0; i < queues.size; ++i) {
        if (queues.null(i))
            throw Error(ERRCODE_NULL_VALUE_NOT_ALLOWED, "queues must not contain nulls");
        // Also where the batch is full: a name that is wrong shows at once, not when there is
        // little to do.
        if (pulled == arguments.batch)
            queue::require_queue(pg::text_of(queues.values[i]));
        else
            pulled +=
                pull(pg::text_of(queues.values[i]), arguments, arguments.batch - pulled, rows);
    }
    return call.return_null();
}
