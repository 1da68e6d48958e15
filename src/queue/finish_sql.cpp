// jobq.complete, fail, extend, release, bury and their _many; jobq.maintain and wake.

#include <algorithm>

#include <fmt/format.h>

#include "pg/call.hpp"
#include "pg/locks.hpp"
#include "queue/claim.hpp"
#include "queue/finish.hpp"
#include "queue/queues.hpp"
#include "queue/wake.hpp"

namespace {

using namespace jobq;
using pg::Error;
using queue::OnLocked;

// Why an attempt could not be ended, for the caller that named just this one.
Error not_running(const pg::Spi& spi, const core::Uuid& id, int32 attempt) {
    static pg::Statement find(R"(
        SELECT (SELECT j.attempt FROM jobq.job AS j WHERE j.id = $1 AND j.lease_until IS NOT NULL),
               coalesce((SELECT 'queued' FROM jobq.job AS j WHERE j.id = $1),
                        (SELECT 'dead' FROM jobq.dead AS d WHERE d.id = $1),
                        (SELECT f.state::text FROM jobq.finished AS f WHERE f.id = $1 LIMIT 1)))");
    auto row = find.run(spi, {pg::param(id)})[0];
    auto name = core::to_string(id);
    if (row.null(2))
        return Error(ERRCODE_UNDEFINED_OBJECT, fmt::format("job {} does not exist", name))
            .with_hint("It may have finished and be no longer kept.");
    if (row.null(1)) {
        auto state = row.text(2);
        Error error(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
                    fmt::format("job {} is not running", name));
        error.detail = fmt::format("It is {}.", state);
        if (state == "queued" || state == "dead")
            error.hint = "The lease may have ended; see jobq.extend.";
        return error;
    }
    return Error(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
                 fmt::format("attempt {} of job {} is not the one that is running", attempt, name))
        .with_detail(fmt::format("Attempt {} is.", row.int4(1)))
        .with_hint("The lease of the earlier attempt has ended; see jobq.extend.");
}

struct Token {
    explicit Token(const pg::Call& call) {
        call.require(0, "id");
        call.require(1, "attempt");
        id = call.uuid(0);
        attempt = call.int4(1);
    }
    core::Uuid id;
    int32 attempt;
};

// The tokens of a _many call, and an optional third array beside them.
struct Tokens {
    Tokens(const pg::Call& call, std::string_view third_name = {}, Oid third_type = InvalidOid) {
        call.require(0, "ids");
        call.require(1, "attempts");
        ids = pg::elements(call.datum(0), UUIDOID);
        attempts = pg::elements(call.datum(1), INT4OID);
        check("attempts", attempts.size);
        for (std::size_t i = 0; i < ids.size; ++i)
            if (ids.null(i) || attempts.null(i))
                throw Error(ERRCODE_NULL_VALUE_NOT_ALLOWED,
                            "ids and attempts must not contain nulls");
        if (!third_name.empty() && !call.null(2)) {
            third = pg::elements(call.datum(2), third_type);
            check(third_name, third->size);
        }
    }
    core::Uuid id(std::size_t i) const { return pg::uuid_of(ids.values[i]); }
    int32 attempt(std::size_t i) const { return DatumGetInt32(attempts.values[i]); }
    std::optional<Datum> extra(std::size_t i) const {
        return third && !third->null(i) ? std::optional(third->values[i]) : std::nullopt;
    }
    std::optional<std::string_view> extra_text(std::size_t i) const {
        auto value = extra(i);
        return value ? std::optional(pg::text_of(*value)) : std::nullopt;
    }

    pg::Elements ids, attempts;
    std::optional<pg::Elements> third;

private:
    void check(std::string_view name, std::size_t size) const {
        if (size != ids.size)
            throw Error(ERRCODE_ARRAY_SUBSCRIPT_ERROR,
                        fmt::format("{} must have as many elements as ids", name))
                .with_detail(fmt::format("There are {} ids and {} {}.", ids.size, size, name));
    }
};

// An interval argument that must not be negative.
std::optional<Datum> delay_argument(const pg::Call& call, int i, std::string_view name) {
    auto delay = call.maybe(i);
    TimestampTz now = pg::clock();
    if (delay && pg::add(now, *delay) < now)
        throw Error(ERRCODE_INVALID_PARAMETER_VALUE, fmt::format("{} must not be negative", name));
    if (delay && TIMESTAMP_NOT_FINITE(pg::add(now, *delay)))
        throw Error(ERRCODE_INVALID_PARAMETER_VALUE, fmt::format("{} must be finite", name));
    return delay;
}

std::optional<Datum> lease_argument(const pg::Call& call, int i) {
    auto lease = call.maybe(i);
    TimestampTz now = pg::clock();
    if (lease && pg::add(now, *lease) <= now)
        throw Error(ERRCODE_INVALID_PARAMETER_VALUE, "lease must be greater than zero");
    if (lease && pg::add(now, *lease) - now > queue::longest_lease)
        throw Error(ERRCODE_INVALID_PARAMETER_VALUE, "lease must not be longer than a year");
    return lease;
}

queue::Ended fail_one(const pg::Spi& spi, const queue::Failure& failure) {
    auto ended = queue::fail(spi, {&failure, 1}, OnLocked::wait);
    if (ended.empty())
        throw not_running(spi, failure.id, failure.attempt);
    return ended[0];
}

Datum next_run(const pg::Call& call, const queue::Ended& ended) {
    return ended.waits ? TimestampTzGetDatum(ended.run_at) : call.return_null();
}

Datum return_ids(const pg::Call& call, const std::vector<queue::Ended>& ended) {
    pg::RowSink rows(call);
    for (const auto& job : ended)
        rows.put({pg::param(job.id)});
    return call.return_null();
}

// Moves the ends of the leases that these attempts hold to lease (default: the queue's) from now.
// Returns the ids and the new ends.
pg::Rows extend(const pg::Spi& spi, const pg::Param& ids, const pg::Param& attempts,
                std::optional<Datum> lease, const pg::Param& progress, const pg::Param& note) {
    static pg::Statement move(R"(
        WITH held AS MATERIALIZED (
            SELECT j.id, q.lease
            FROM unnest($1::uuid[], $2::int[]) AS t (id, attempt)
            JOIN jobq.job AS j ON j.id = t.id AND j.attempt = t.attempt AND j.lease_until IS NOT NULL
            JOIN jobq.queue AS q ON q.id = j.queue_id
            ORDER BY j.id FOR NO KEY UPDATE OF j
        )
        UPDATE jobq.job AS j
        SET lease_until = clock_timestamp() + coalesce($3, h.lease), progress = coalesce($4, j.progress),
            note = coalesce($5, j.note)
        FROM held AS h WHERE j.id = h.id
        RETURNING j.id, j.lease_until, j.queue_id, coalesce(j.endpoint_id, 0))");
    pg::lock_for_writing("job");
    auto rows = move.run(spi, {ids, attempts,
                               lease ? pg::Param{INTERVALOID, *lease} : pg::null_param(INTERVALOID),
                               progress, note});
    for (auto row : rows)
        queue::wake::note_lease({row.int4(3), row.int4(4)}, row.timestamp(2));
    return rows;
}

} // namespace

JOBQ_FUNCTION(jobq_complete) {
    Token token(call);
    queue::Completion completion{.id = token.id, .attempt = token.attempt, .result = call.maybe(2)};
    if (queue::complete({&completion, 1}, OnLocked::wait).empty())
        throw not_running(pg::Spi(), token.id, token.attempt);
    return 0;
}

JOBQ_FUNCTION(jobq_fail) {
    Token token(call);
    auto retry_in = delay_argument(call, 3, "retry_in");
    pg::Spi spi;
    return next_run(call, fail_one(spi, {.id = token.id,
                                         .attempt = token.attempt,
                                         .error = call.maybe_text(2),
                                         .retry_in = retry_in}));
}

JOBQ_FUNCTION(jobq_release) {
    Token token(call);
    auto delay = delay_argument(call, 2, "delay");
    pg::Spi spi;
    return next_run(call, fail_one(spi, {.id = token.id,
                                         .attempt = token.attempt,
                                         .ending = queue::Ending::release,
                                         .outcome = "released",
                                         .retry_in = delay}));
}

JOBQ_FUNCTION(jobq_bury) {
    Token token(call);
    pg::Spi spi;
    fail_one(spi, {.id = token.id,
                   .attempt = token.attempt,
                   .ending = queue::Ending::bury,
                   .outcome = "buried",
                   .error = call.maybe_text(2)});
    return 0;
}

JOBQ_FUNCTION(jobq_extend) {
    Token token(call);
    auto lease = lease_argument(call, 2);
    if (!call.null(3) && !(call.float8(3) >= 0 && call.float8(3) <= 100))
        throw Error(ERRCODE_INVALID_PARAMETER_VALUE, "progress must be between 0 and 100");
    pg::Spi spi;
    pg::ArrayBuilder ids(UUIDOID, 1), attempts(INT4OID, 1);
    ids.add(pg::param(token.id));
    attempts.add(pg::param(token.attempt));
    auto rows = extend(spi, ids.param(), attempts.param(), lease, call.param(3, FLOAT8OID),
                       call.param(4, TEXTOID));
    if (rows.empty())
        throw not_running(spi, token.id, token.attempt);
    return TimestampTzGetDatum(rows[0].timestamp(2));
}

JOBQ_FUNCTION(jobq_complete_many) {
    Tokens tokens(call, "results", JSONBOID);
    std::vector<queue::Completion> items;
    for (std::size_t i = 0; i < tokens.ids.size; ++i)
        items.push_back(
            {.id = tokens.id(i), .attempt = tokens.attempt(i), .result = tokens.extra(i)});
    return return_ids(call, queue::complete(items, OnLocked::wait));
}

JOBQ_FUNCTION(jobq_fail_many) {
    Tokens tokens(call, "errors", TEXTOID);
    auto retry_in = delay_argument(call, 3, "retry_in");
    std::vector<queue::Failure> items;
    for (std::size_t i = 0; i < tokens.ids.size; ++i)
        items.push_back({.id = tokens.id(i),
                         .attempt = tokens.attempt(i),
                         .error = tokens.extra_text(i),
                         .retry_in = retry_in});
    pg::Spi spi;
    return return_ids(call, queue::fail(spi, items, OnLocked::wait));
}

JOBQ_FUNCTION(jobq_release_many) {
    Tokens tokens(call);
    auto delay = delay_argument(call, 2, "delay");
    std::vector<queue::Failure> items;
    for (std::size_t i = 0; i < tokens.ids.size; ++i)
        items.push_back({.id = tokens.id(i),
                         .attempt = tokens.attempt(i),
                         .ending = queue::Ending::release,
                         .outcome = "released",
                         .retry_in = delay});
    pg::Spi spi;
    return return_ids(call, queue::fail(spi, items, OnLocked::wait));
}

JOBQ_FUNCTION(jobq_bury_many) {
    Tokens tokens(call, "reasons", TEXTOID);
    std::vector<queue::Failure> items;
    for (std::size_t i = 0; i < tokens.ids.size; ++i)
        items.push_back({.id = tokens.id(i),
                         .attempt = tokens.attempt(i),
                         .ending = queue::Ending::bury,
                         .outcome = "buried",
                         .error = tokens.extra_text(i)});
    pg::Spi spi;
    return return_ids(call, queue::fail(spi, items, OnLocked::wait));
}

JOBQ_FUNCTION(jobq_extend_many) {
    Tokens tokens(call);
    auto lease = lease_argument(call, 2);
    pg::RowSink rows(call);
    pg::Spi spi;
    auto extended = extend(spi, {UUIDARRAYOID, call.datum(0)}, {INT4ARRAYOID, call.datum(1)}, lease,
                           pg::null_param(FLOAT8OID), pg::null_param(TEXTOID));
    for (auto row : extended)
        rows.put({pg::param(row.uuid(1))});
    return call.return_null();
}

JOBQ_FUNCTION(jobq_maintain) {
    constexpr std::size_t at_once = 10000;
    pg::Spi spi;
    std::size_t done = 0;
    for (core::Stream stream : queue::streams())
        done += queue::end_leases(stream, at_once - std::min(done, at_once), {});
    done += queue::delete_old(spi, at_once);
    return Int64GetDatum(static_cast<int64>(done));
}

JOBQ_FUNCTION(jobq_wake) {
    call.require(0, "queue_id");
    call.require(1, "queue");
    queue::wake::note({call.int4(0), core::Stream::any}, call.text(1));
    return 0;
}

JOBQ_FUNCTION(jobq_wake_taken) {
    call.require(0, "queue_id");
    call.require(1, "queue");
    core::Stream stream{call.int4(0), call.null(2) ? core::Stream::own : call.int4(2)};
    queue::wake::note_room({stream.queue, core::Stream::any}, call.text(1));
    queue::wake::note_taken(stream, {call.timestamp(3), call.int8(4)});
    return 0;
}
