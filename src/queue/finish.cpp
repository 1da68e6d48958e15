#include <algorithm>

#include <fmt/format.h>

#include "core/backoff.hpp"
#include "pg/locks.hpp"
#include "pg/xact.hpp"
#include "queue/finish.hpp"
#include "queue/wake.hpp"

extern "C" {
#include "common/pg_prng.h"
#include "utils/guc.h"
}

// What a job takes along when it ends, but for its attempt, which is the lease's.
#define MOVED                                                                                      \
    "id, seq, run_at, expires_at, queue_id, endpoint_id, priority, failures, max_attempts, type, " \
    "group_key, unique_key, pushed_by, content_type, headers, payload, body"
#define ENDED_COLUMNS                                                                              \
    "(" MOVED ", attempt, state, finished_at, started_at, worker, outcome, status_code, result, "  \
    "error, response)"

namespace jobq::queue {

namespace {

// Why an attempt ended, with what is known of it, on the way into jobq.dead or jobq.finished.
struct Last {
    core::Uuid id;
    int32 attempt;
    int32 failures;
    std::optional<TimestampTz> started_at = {};
    std::optional<std::string> worker = {};
    std::optional<std::string_view> outcome = {};
    std::optional<int32> status_code = {};
    std::optional<std::string> error = {};
    std::optional<std::string_view> response = {};
};

std::optional<std::string_view> view(const std::optional<std::string>& text) {
    return text ? std::optional<std::string_view>(*text) : std::nullopt;
}

// The attempts' columns as arrays, for unnest: id, attempt, started_at, status_code, outcome,
// worker, error, response, failures.
struct LastArrays {
    explicit LastArrays(std::span<const Last> items)
        : id(UUIDOID, items.size()), attempt(INT4OID, items.size()),
          started_at(TIMESTAMPTZOID, items.size()), status_code(INT4OID, items.size()),
          outcome(TEXTOID, items.size()), worker(TEXTOID, items.size()),
          error(TEXTOID, items.size()), response(TEXTOID, items.size()),
          failures(INT4OID, items.size()) {
        for (const Last& last : items) {
            id.add(pg::param(last.id));
            attempt.add(pg::param(last.attempt));
            started_at.add(last.started_at ? pg::timestamp_param(*last.started_at)
                                           : pg::null_param(TIMESTAMPTZOID));
            status_code.add(pg::param(last.status_code, INT4OID));
            outcome.add(pg::text_param(last.outcome));
            worker.add(pg::text_param(view(last.worker)));
            error.add(pg::text_param(view(last.error)));
            response.add(pg::text_param(last.response));
            failures.add(pg::param(last.failures));
        }
    }
    pg::ArrayBuilder id, attempt, started_at, status_code, outcome, worker, error, response,
        failures;
};

// Moves jobs, locked and without a lease, to where dead ones stand.
void bury(const pg::Spi& spi, std::span<const Last> items) {
    static pg::Statement move(R"(
        WITH gone AS (
            DELETE FROM jobq.job AS j
            USING unnest($1::uuid[], $2::int[], $3::timestamptz[], $4::int[], $5::text[], $6::text[], $7::text[],
                         $8::text[], $9::int[])
                  AS t (id, last_attempt, started_at, status_code, outcome, worker, error, response, charged)
            WHERE j.id = t.id
            RETURNING j.*, t.last_attempt, t.started_at, t.status_code, t.outcome, t.worker, t.error, t.response,
                      t.charged
        )
        INSERT INTO jobq.dead )" ENDED_COLUMNS R"(
        SELECT id, seq, run_at, expires_at, queue_id, endpoint_id, priority, charged, max_attempts, type,
               group_key, unique_key, pushed_by, content_type, headers, payload, body,
               last_attempt, 'dead', clock_timestamp(), started_at, worker, outcome, status_code, NULL, error, response
        FROM gone)");
    LastArrays a(items);
    move.run(spi, {a.id.param(), a.attempt.param(), a.started_at.param(), a.status_code.param(),
                   a.outcome.param(), a.worker.param(), a.error.param(), a.response.param(),
                   a.failures.param()});
}

// Moves jobs, locked and without a lease, to the finished ones, as cancelled or expired.
void retire(const pg::Spi& spi, std::span<const Last> items, const char* state) {
    static pg::Statement move(R"(
        WITH gone AS (
            DELETE FROM jobq.job AS j
            USING unnest($1::uuid[], $2::int[], $3::timestamptz[], $4::int[], $5::text[], $6::text[], $7::text[],
                         $8::text[], $9::int[])
                  AS t (id, last_attempt, started_at, status_code, outcome, worker, error, response, charged),
                  jobq.queue AS q
            WHERE j.id = t.id AND q.id = j.queue_id
            RETURNING j.*, t.last_attempt, t.started_at, t.status_code, t.outcome, t.worker, t.error, t.response,
                      t.charged, q.keep
        ), forgotten AS (
            DELETE FROM jobq.attempt AS a USING gone AS g
            WHERE g.keep = '0' AND g.last_attempt > 0 AND a.job_id = g.id
        )
        INSERT INTO jobq.finished )" ENDED_COLUMNS R"(
        SELECT id, seq, run_at, expires_at, queue_id, endpoint_id, priority, charged, max_attempts, type,
               group_key, unique_key, pushed_by, content_type, headers, payload, body,
               last_attempt, $10::jobq.job_state, clock_timestamp(), started_at, worker, outcome, status_code, NULL,
               error, response
        FROM gone WHERE keep IS DISTINCT FROM '0')");
    LastArrays a(items);
    move.run(spi, {a.id.param(), a.attempt.param(), a.started_at.param(), a.status_code.param(),
                   a.outcome.param(), a.worker.param(), a.error.param(), a.response.param(),
                   a.failures.param(), pg::param(std::string_view(state))});
}

void keep_attempts(const pg::Spi& spi, std::span<const Last> items) {
    static pg::Statement insert(R"(
        INSERT INTO jobq.attempt (job_id, attempt, started_at, finished_at, status_code, outcome, worker, error, response)
        SELECT t.id, t.attempt, t.started_at, clock_timestamp(), t.status_code, t.outcome, t.worker, t.error, t.response
        FROM unnest($1::uuid[], $2::int[], $3::timestamptz[], $4::int[], $5::text[], $6::text[], $7::text[], $8::text[])
             AS t (id, attempt, started_at, status_code, outcome, worker, error, response))");
    LastArrays a(items);
    insert.run(spi, {a.id.param(), a.attempt.param(), a.started_at.param(), a.status_code.param(),
                     a.outcome.param(), a.worker.param(), a.error.param(), a.response.param()});
}

enum class Key { ours, taken, undecided };

// Lets a job with a unique key wait again, unless a newer one waits for the key: then nothing
// changes. While a push of the same key is not committed yet, this waits for it, or with
// OnLocked::skip leaves it undecided.
Key wait_for_key(const pg::Spi& spi, const core::Uuid& id, OnLocked locked) {
    static pg::Statement taken(R"(
        SELECT o.id FROM jobq.job AS j, jobq.job AS o
        WHERE j.id = $1 AND o.queue_id = j.queue_id AND o.unique_key = j.unique_key AND o.key_waits)");
    static pg::Statement take("UPDATE jobq.job AS j SET key_waits = true WHERE j.id = $1");
    if (!taken.run(spi, {pg::param(id)}).empty())
        return Key::taken;
    pg::Subtransaction sub;
    try {
        // Goes back with the subtransaction, whichever way that ends.
        if (locked == OnLocked::skip)
            pg::guarded([] {
                set_config_option("lock_timeout", "1ms", PGC_USERSET, PGC_S_SESSION,
                                  GUC_ACTION_SAVE, true, 0, false);
            });
        take.run(spi, {pg::param(id)});
        sub.commit();
        return Key::ours;
    } catch (const pg::Error& error) {
        if (error.sqlstate == ERRCODE_UNIQUE_VIOLATION)
            return Key::taken;
        if (error.sqlstate == ERRCODE_LOCK_NOT_AVAILABLE && locked == OnLocked::skip)
            return Key::undecided;
        throw;
    }
}

// The jobs among ids that exist, locked. With OnLocked::skip those that nobody else has locked.
std::vector<core::Uuid> lock_jobs(const pg::Spi& spi, const pg::Param& ids, OnLocked locked) {
    static pg::Statement wait(R"(
        SELECT j.id FROM jobq.job AS j WHERE j.id IN (SELECT unnest($1::uuid[]) ORDER BY 1)
        ORDER BY j.id FOR UPDATE OF j)");
    static pg::Statement skip(R"(
        SELECT j.id FROM jobq.job AS j WHERE j.id IN (SELECT unnest($1::uuid[]) ORDER BY 1)
        ORDER BY j.id FOR UPDATE OF j SKIP LOCKED)");
    std::vector<core::Uuid> out;
    for (auto row : (locked == OnLocked::wait ? wait : skip).run(spi, {ids}))
        out.push_back(row.uuid(1));
    return out;
}

core::Backoff backoff_of(const pg::Row& row, int column) {
    return {pg::length_of(row.datum(column)), pg::length_of(row.datum(column + 1)),
            row.float8(column + 2), row.float8(column + 3)};
}

TimestampTz next_run(const Failure& item, const core::Backoff& backoff, int failures,
                     TimestampTz was_due) {
    TimestampTz now = pg::clock();
    if (item.retry_in)
        return pg::add(now, *item.retry_in);
    switch (item.ending) {
    case Ending::release:
        return was_due;
    case Ending::fail:
        return now + core::wait(backoff, failures, pg_prng_double(&pg_global_prng_state)).count();
    default: // before what has come due since
        return std::min(now, was_due);
    }
}

} // namespace

std::vector<Ended> complete(const pg::Spi& spi, std::span<const Completion> items,
                            OnLocked locked) {
#define COMPLETE(skip)                                                                             \
    "WITH held AS MATERIALIZED ("                                                                  \
    "    SELECT j.id, t.attempt, t.result, t.outcome, t.status_code, t.response"                   \
    "    FROM unnest($1::uuid[], $2::int[], $3::jsonb[], $4::text[], $5::int[], $6::text[])"       \
    "         AS t (id, attempt, result, outcome, status_code, response)"                          \
    "    JOIN jobq.job AS j ON j.id = t.id"                                                        \
    "    ORDER BY j.id FOR UPDATE OF j " skip "), ended AS ("                                      \
    "    DELETE FROM jobq.lease AS l USING held AS h WHERE l.job_id = h.id AND l.attempt = "       \
    "h.attempt"                                                                                    \
    "    RETURNING h.*, l.started_at, l.worker), gone AS ("                                        \
    "    DELETE FROM jobq.job AS j USING ended AS e, jobq.queue AS q WHERE j.id = e.id AND q.id "  \
    "= j.queue_id"                                                                                 \
    "    RETURNING j.*, e.attempt AS last_attempt, e.result, e.outcome, e.status_code, "           \
    "e.response,"                                                                                  \
    "              e.started_at, e.worker, q.keep, q.name, q.max_running), kept AS ("              \
    "    INSERT INTO jobq.finished " ENDED_COLUMNS "    SELECT " MOVED                             \
    ", last_attempt, 'completed', clock_timestamp(), started_at, worker, outcome,"                 \
    "           status_code, result, NULL, response"                                               \
    "    FROM gone WHERE keep IS DISTINCT FROM '0'), forgotten AS ("                               \
    "    DELETE FROM jobq.attempt AS a USING gone AS g"                                            \
    "    WHERE g.keep = '0' AND g.last_attempt > 1 AND a.job_id = g.id)"                           \
    "SELECT id, last_attempt, queue_id, name, group_key IS NOT NULL OR max_running IS NOT NULL "   \
    "FROM gone"
    static pg::Statement wait(COMPLETE("")), skip(COMPLETE("SKIP LOCKED"));
#undef COMPLETE
    if (items.empty())
        return {};
    pg::lock_for_writing("job");
    std::size_t n = items.size();
    pg::ArrayBuilder ids(UUIDOID, n), attempts(INT4OID, n), results(JSONBOID, n),
        outcomes(TEXTOID, n), codes(INT4OID, n), responses(TEXTOID, n);
    for (const Completion& item : items) {
        ids.add(pg::param(item.id));
        attempts.add(pg::param(item.attempt));
        results.add(item.result ? pg::jsonb_param(*item.result) : pg::null_param(JSONBOID));
        outcomes.add(pg::param(item.outcome));
        codes.add(pg::param(item.status_code, INT4OID));
        responses.add(pg::text_param(item.response));
    }
    std::vector<Ended> ended;
    int32 woken = 0;
    for (auto row : (locked == OnLocked::wait ? wait : skip)
                        .run(spi, {ids.param(), attempts.param(), results.param(), outcomes.param(),
                                   codes.param(), responses.param()})) {
        ended.push_back({row.uuid(1), row.int4(2)});
        // A group or a limit had held others back.
        if (row.boolean(5) && row.int4(3) != woken) {
            woken = row.int4(3);
            wake::note_room(woken, row.text(4));
        }
    }
    return ended;
}

std::vector<Ended> fail(const pg::Spi& spi, std::span<const Failure> items, OnLocked locked) {
    static pg::Statement held(R"(
        SELECT t.n, l.started_at, l.worker, j.queue_id, q.name, j.failures::int, j.max_attempts::int, j.run_at,
                  j.key_waits IS NOT NULL,
                  coalesce((q.types -> j.type ->> 'retry_first')::interval, q.retry_first),
                  coalesce((q.types -> j.type ->> 'retry_longest')::interval, q.retry_longest),
                  coalesce((q.types -> j.type ->> 'retry_factor')::float8, q.retry_factor),
                  coalesce((q.types -> j.type ->> 'retry_jitter')::float8, q.retry_jitter),
                  j.priority::int, j.group_key IS NOT NULL
        FROM (SELECT DISTINCT ON (u.id, u.attempt) * FROM unnest($1::uuid[], $2::int[]) WITH ORDINALITY AS u (id, attempt, n)) AS t,
             jobq.lease AS l, jobq.job AS j, jobq.queue AS q
        WHERE l.job_id = t.id AND l.attempt = t.attempt AND j.id = t.id AND q.id = j.queue_id)");
    static pg::Statement end(
        "DELETE FROM jobq.lease AS l USING unnest($1::uuid[]) AS t (id) WHERE l.job_id = t.id");
    static pg::Statement queue_again(R"(
        UPDATE jobq.job AS j SET attempt = t.attempt, failures = t.failures, run_at = t.run_at
        FROM unnest($1::uuid[], $2::int[], $3::int[], $4::timestamptz[]) AS t (id, attempt, failures, run_at)
        WHERE j.id = t.id)");
    if (items.empty())
        return {};
    pg::lock_for_writing("job");

    pg::ArrayBuilder wanted(UUIDOID, items.size());
    for (const Failure& item : items)
        wanted.add(pg::param(item.id));
    auto locked_ids = lock_jobs(spi, wanted.param(), locked);

    std::vector<const Failure*> candidates;
    pg::ArrayBuilder ids(UUIDOID, items.size()), attempts(INT4OID, items.size());
    for (const Failure& item : items)
        if (std::binary_search(locked_ids.begin(), locked_ids.end(), item.id)) {
            candidates.push_back(&item);
            ids.add(pg::param(item.id));
            attempts.add(pg::param(item.attempt));
        }

    std::vector<Ended> ended;
    std::vector<Last> tried, dead, superseded;
    pg::ArrayBuilder again_ids(UUIDOID, candidates.size()),
        again_attempts(INT4OID, candidates.size()), again_failures(INT4OID, candidates.size()),
        again_at(TIMESTAMPTZOID, candidates.size());
    int32 woken = 0;
    // Runs after the locks are held, so its snapshot is newer: what it finds are the running
    // attempts, and they stay so, because a lease changes only under the lock of its job.
    for (auto row : held.run(spi, {ids.param(), attempts.param()})) {
        const Failure& item = *candidates[static_cast<std::size_t>(row.int8(1) - 1)];
        bool charged = item.ending != Ending::release;
        int failures = row.int4(6) + (charged ? 1 : 0);
        auto worker = row.maybe_text(3);
        Last last{item.id,
                  item.attempt,
                  failures,
                  row.timestamp(2),
                  worker ? std::optional<std::string>(*worker) : std::nullopt,
                  item.outcome,
                  item.status_code,
                  item.error ? std::optional<std::string>(*item.error) : std::nullopt,
                  item.response};
        bool dies = item.ending == Ending::bury || (charged && failures >= row.int4(7));
        Key key = dies || !row.boolean(9) ? Key::ours : wait_for_key(spi, item.id, locked);
        if (key == Key::undecided)
            continue;
        if (row.int4(4) != woken) {
            woken = row.int4(4);
            wake::note_room(woken, row.text(5));
        }
        if (dies) {
            dead.push_back(std::move(last));
            ended.push_back({.id = item.id, .attempt = item.attempt, .dead = true});
        } else if (key == Key::taken) {
            last.error =
                "a newer job waits for its unique key" + (last.error ? "; " + *last.error : "");
            superseded.push_back(std::move(last));
            ended.push_back({.id = item.id, .attempt = item.attempt});
        } else {
            TimestampTz run_at = next_run(item, backoff_of(row, 10), failures, row.timestamp(8));
            again_ids.add(pg::param(item.id));
            again_attempts.add(pg::param(item.attempt));
            again_failures.add(pg::param(failures));
            again_at.add(pg::timestamp_param(run_at));
            wake::note(
                row.int4(4), row.text(5),
                {.priority = row.int4(14), .place = {run_at, 0}, .grouped = row.boolean(15)});
            tried.push_back(std::move(last));
            ended.push_back(
                {.id = item.id, .attempt = item.attempt, .waits = true, .run_at = run_at});
        }
    }
    pg::ArrayBuilder over(UUIDOID, ended.size());
    for (const Ended& job : ended)
        over.add(pg::param(job.id));
    end.run(spi, {over.param()});
    if (!tried.empty()) {
        queue_again.run(spi, {again_ids.param(), again_attempts.param(), again_failures.param(),
                              again_at.param()});
        keep_attempts(spi, tried);
    }
    if (!dead.empty())
        bury(spi, dead);
    if (!superseded.empty())
        retire(spi, superseded, "cancelled");
    return ended;
}

std::vector<core::Uuid> still_running(const pg::Spi& spi, std::span<const core::Uuid> ids,
                                      std::span<const int32> attempts) {
    static pg::Statement find(R"(
        SELECT l.job_id FROM unnest($1::uuid[], $2::int[]) AS t (id, attempt)
        JOIN jobq.lease AS l ON l.job_id = t.id AND l.attempt = t.attempt)");
    pg::ArrayBuilder id_array(UUIDOID, ids.size()), attempt_array(INT4OID, ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) {
        id_array.add(pg::param(ids[i]));
        attempt_array.add(pg::param(attempts[i]));
    }
    std::vector<core::Uuid> running;
    for (auto row : find.run(spi, {id_array.param(), attempt_array.param()}))
        running.push_back(row.uuid(1));
    return running;
}

void expire(const pg::Spi& spi, std::span<const core::Uuid> ids) {
    // Seen as they are since they were locked: another claim may have been quicker.
    static pg::Statement claims(R"(
        SELECT j.id, j.attempt, j.failures::int FROM jobq.job AS j
        WHERE j.id = ANY ($1) AND (SELECT true FROM jobq.lease AS l WHERE l.job_id = j.id) IS NULL)");
    pg::ArrayBuilder wanted(UUIDOID, ids.size());
    for (const auto& id : ids)
        wanted.add(pg::param(id));
    std::vector<Last> items;
    for (auto row : claims.run(spi, {wanted.param()}))
        items.push_back({.id = row.uuid(1), .attempt = row.int4(2), .failures = row.int4(3)});
    retire(spi, items, "expired");
}

std::size_t end_expired_leases(const pg::Spi& spi, int64 limit) {
    static pg::Statement over(R"(
        SELECT l.job_id, l.attempt FROM jobq.lease AS l WHERE l.lease_until <= $1
        ORDER BY l.lease_until LIMIT $2)");
    std::vector<Failure> items;
    for (auto row : over.run(spi, {pg::timestamp_param(pg::clock()), pg::param(limit)}))
        items.push_back({.id = row.uuid(1),
                         .attempt = row.int4(2),
                         .ending = Ending::lease_expired,
                         .outcome = "lease_expired",
                         .error = "the lease ended before the attempt did"});
    return fail(spi, items, OnLocked::skip).size();
}

std::size_t delete_old(const pg::Spi& spi, int64 limit) {
    static pg::Statement remove(R"(
        WITH old AS MATERIALIZED (
            SELECT f.id FROM jobq.finished AS f JOIN jobq.queue AS q ON q.id = f.queue_id
            WHERE f.finished_at < $1 - (SELECT min(k.keep) FROM jobq.queue AS k) AND f.finished_at < $1 - q.keep
            ORDER BY f.finished_at LIMIT $2 FOR UPDATE OF f SKIP LOCKED
        ), attempts AS (
            DELETE FROM jobq.attempt AS a USING old AS o WHERE a.job_id = o.id
        )
        DELETE FROM jobq.finished AS f USING old AS o WHERE f.id = o.id)");
    return remove.run(spi, {pg::timestamp_param(pg::clock()), pg::param(limit)}).size();
}

} // namespace jobq::queue
