#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "core/backoff.hpp"
#include "pg/locks.hpp"
#include "pg/table.hpp"
#include "pg/xact.hpp"
#include "queue/finish.hpp"
#include "queue/job_row.hpp"
#include "queue/queues.hpp"
#include "queue/running_groups.hpp"
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
            RETURNING j.id, j.seq, j.run_at, j.expires_at, j.queue_id, j.endpoint_id, j.priority, j.max_attempts, j.type,
                      j.group_key, j.unique_key, j.pushed_by, j.content_type, j.headers, j.payload, j.body,
                      t.last_attempt, t.started_at, t.status_code, t.outcome, t.worker, t.error, t.response, t.charged
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
            RETURNING j.id, j.seq, j.run_at, j.expires_at, j.queue_id, j.endpoint_id, j.priority, j.max_attempts, j.type,
                      j.group_key, j.unique_key, j.pushed_by, j.content_type, j.headers, j.payload, j.body,
                      t.last_attempt, t.started_at, t.status_code, t.outcome, t.worker, t.error, t.response, t.charged,
                      q.keep
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
    // So many stay. A job that is released again and again never runs out of attempts.
    constexpr int32 most = 50;
    static pg::Statement forget(R"(
        DELETE FROM jobq.attempt AS a USING unnest($1::uuid[], $2::int[]) AS t (id, attempt)
        WHERE a.job_id = t.id AND a.attempt <= t.attempt - $3)");
    LastArrays a(items);
    insert.run(spi, {a.id.param(), a.attempt.param(), a.started_at.param(), a.status_code.param(),
                     a.outcome.param(), a.worker.param(), a.error.param(), a.response.param()});
    if (std::any_of(items.begin(), items.end(), [](const Last& l) { return l.attempt > most; }))
        forget.run(spi, {a.id.param(), a.attempt.param(), pg::param(most)});
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

// How long a job waits after a failure: by a formula, or by a list where there is one.
struct Retries {
    core::Backoff backoff;
    std::vector<std::chrono::microseconds> waits; // after the first failure, the second...

    std::chrono::microseconds wait(int failures) const {
        if (waits.empty())
            return core::wait(backoff, failures, pg_prng_double(&pg_global_prng_state));
        return waits[std::min(static_cast<std::size_t>(failures), waits.size()) - 1];
    }
    std::chrono::microseconds wait(std::chrono::seconds asked) const {
        auto low = std::min(backoff.first, backoff.longest), high = backoff.longest;
        if (!waits.empty()) {
            low = *std::min_element(waits.begin(), waits.end());
            high = *std::max_element(waits.begin(), waits.end());
        }
        return core::clamp_retry_after(asked, low, high);
    }
};

Retries retries_of(const pg::Row& row, int column) {
    Retries retries{backoff_of(row, column), {}};
    if (auto list = row.maybe(column + 4)) {
        auto waits = pg::elements(*list, INTERVALOID);
        for (std::size_t i = 0; i < waits.size; ++i)
            if (!waits.null(i))
                retries.waits.push_back(pg::length_of(waits.values[i]));
    }
    return retries;
}

TimestampTz next_run(const Failure& item, const Retries& retries, int failures,
                     TimestampTz was_due) {
    TimestampTz now = pg::clock();
    if (item.retry_in)
        return pg::add(now, *item.retry_in);
    switch (item.ending) {
    case Ending::release:
        return was_due;
    case Ending::fail:
        return now + (item.retry_after ? retries.wait(*item.retry_after) : retries.wait(failures))
                         .count();
    default: // before what has come due since
        return std::min(now, was_due);
    }
}

} // namespace

namespace {

// jobq.finished, which few completions of a queue without history need.
struct History {
    pg::Table table{"finished"};
    Oid completed = pg::enum_value("job_state", "completed");
    std::vector<pg::Tuple> rows;
};

// A completed job, on its way into jobq.finished.
pg::Tuple finished_row(History& history, const pg::Tuple& job, const Completion& item,
                       TimestampTz now) {
    using From = JobColumn;
    using To = FinishedColumn;
    pg::Values<To::count> row;
    constexpr std::pair<int, int> same[] = {
        {To::id, From::id},
        {To::seq, From::seq},
        {To::run_at, From::run_at},
        {To::expires_at, From::expires_at},
        {To::started_at, From::started_at},
        {To::attempt, From::attempt},
        {To::queue_id, From::queue_id},
        {To::endpoint_id, From::endpoint_id},
        {To::priority, From::priority},
        {To::failures, From::failures},
        {To::max_attempts, From::max_attempts},
        {To::type, From::type},
        {To::group_key, From::group_key},
        {To::unique_key, From::unique_key},
        {To::pushed_by, From::pushed_by},
        {To::worker, From::worker},
        {To::content_type, From::content_type},
        {To::headers, From::headers},
        {To::payload, From::payload},
        {To::body, From::body},
    };
    std::array<Datum, From::count> values;
    std::array<bool, From::count> nulls;
    job.take(values, nulls);
    for (auto [to, from] : same)
        row.set(to, values[from - 1], nulls[from - 1]);
    row.set(To::finished_at, pg::timestamp_param(now));
    row.set(To::state, ObjectIdGetDatum(history.completed), false);
    row.set(To::outcome, pg::param(item.outcome));
    row.set(To::status_code, pg::param(item.status_code, INT4OID));
    row.set(To::response, pg::text_param(item.response));
    row.set(To::result, item.result ? pg::jsonb_param(*item.result) : pg::null_param(JSONBOID));
    return history.table.make(row);
}

// A job of a group has ended, or its attempt.
struct Turn {
    core::Uuid job;
    int32 queue_id;
    std::string queue, group;
    int64 seq;
};

// Says whose turn it is now in these groups. Claims have passed over those that waited.
void note_turns(const pg::Table& jobs, std::span<const Turn> turns) {
    using Column = JobColumn;
    using pg::Key;
    if (turns.empty())
        return;
    TimestampTz now = pg::clock();
    pg::FreshSnapshot snapshot;
    std::optional<pg::Scan> scan;
    for (const Turn& turn : turns) {
        Key keys[] = {{1, Key::Is::equal, pg::param(turn.queue_id)},
                      {2, Key::Is::equal, pg::param(std::string_view(turn.group))},
                      {3, Key::Is::after, pg::param(turn.seq)}};
        if (scan)
            scan->start(keys);
        else
            scan.emplace(jobs, "job_group", snapshot, keys);
        if (!scan->next() || !scan->row().null(Column::lease_until))
            continue;
        pg::Tuple next = scan->row();
        core::Stream stream = stream_of(next);
        core::Place place{next.timestamp(Column::run_at), next.int8(Column::seq)};
        int32 priority = next.int2(Column::priority);
        if (place.run_at <= now)
            wake::note_spot(stream, turn.queue, priority, place);
        else
            wake::note(stream, turn.queue, {.priority = priority, .place = place});
    }
}

void free_groups(std::span<const Turn> ended) {
    if (ended.empty())
        return;
    pg::FreshSnapshot snapshot;
    RunningGroups running;
    for (const Turn& turn : ended)
        running.ended(snapshot, turn.queue_id, turn.group, turn.job);
}

void forget_attempts(std::span<const core::Uuid> ids) {
    static pg::Statement forget(
        "DELETE FROM jobq.attempt AS a USING unnest($1::uuid[]) AS t (id) WHERE a.job_id = t.id");
    pg::ArrayBuilder gone(UUIDOID, ids.size());
    for (const auto& id : ids)
        gone.add(pg::param(id));
    pg::Spi spi;
    forget.run(spi, {gone.param()});
}

} // namespace

std::vector<Ended> complete(std::span<const Completion> items, OnLocked locked) {
    using Column = JobColumn;
    if (items.empty())
        return {};
    pg::Table jobs("job");
    std::optional<History> history;
    std::vector<const Completion*> order;
    for (const Completion& item : items)
        order.push_back(&item);
    std::sort(order.begin(), order.end(),
              [](const Completion* a, const Completion* b) { return a->id < b->id; });

    std::vector<Ended> ended;
    std::vector<core::Uuid> forgotten;
    std::vector<QueueRow> queues;
    std::vector<Turn> turns;
    auto queue_of = [&](int32 id) -> const QueueRow* {
        for (const QueueRow& queue : queues)
            if (queue.id == id)
                return &queue;
        auto found = find_queue(id);
        return found ? &queues.emplace_back(std::move(*found)) : nullptr;
    };
    TimestampTz now = pg::clock();
    std::optional<pg::FreshSnapshot> snapshot;
    std::optional<pg::Scan> scan;
    auto busy = locked == OnLocked::wait ? pg::OnBusy::wait : pg::OnBusy::skip;

    for (const Completion* item : order) {
        // Once more, from a new snapshot, if somebody changed the row meanwhile.
        for (;;) {
            std::initializer_list<pg::Key> key = {{1, pg::Key::Is::equal, pg::param(item->id)}};
            if (!scan) {
                snapshot.emplace();
                scan.emplace(jobs, "job_pkey", *snapshot, key);
            } else {
                scan->start(key);
            }
            if (!scan->next())
                break;
            pg::Tuple row = scan->row();
            if (row.null(Column::lease_until) || row.int4(Column::attempt) != item->attempt)
                break;
            const QueueRow* queue = queue_of(row.int4(Column::queue_id));
            if (queue == nullptr) // dropped since the snapshot, and the job with it
                break;
            std::optional<Turn> turn;
            if (!row.null(Column::group_key))
                turn = {item->id, queue->id, std::string(queue->name),
                        std::string(row.text(Column::group_key)), row.int8(Column::seq)};
            std::optional<pg::Tuple> keep;
            if (queue->keeps) {
                if (!history)
                    history.emplace();
                keep = finished_row(*history, row, *item, now);
            }
            auto written = jobs.remove(row, busy);
            if (written == pg::Written::changed) {
                scan.reset();
                snapshot.reset();
                continue;
            }
            if (written == pg::Written::locked)
                break;
            ended.push_back({item->id, item->attempt});
            if (keep)
                history->rows.push_back(*keep);
            else if (item->attempt > 1)
                forgotten.push_back(item->id);
            // A group or a limit had held others back.
            if (turn)
                turns.push_back(std::move(*turn));
            if (queue->max_running)
                wake::note_room({queue->id, core::Stream::any}, queue->name);
            break;
        }
    }
    scan.reset();
    snapshot.reset();
    if (history)
        history->table.insert(history->rows);
    if (!forgotten.empty())
        forget_attempts(forgotten);
    free_groups(turns);
    note_turns(jobs, turns);
    return ended;
}

std::vector<Ended> fail(const pg::Spi& spi, std::span<const Failure> items, OnLocked locked) {
    static pg::Statement held(R"(
        SELECT t.n, j.started_at, j.worker, j.queue_id, q.name, j.failures::int, j.max_attempts::int, j.run_at,
                  j.key_waits IS NOT NULL,
                  coalesce((q.types -> j.type ->> 'retry_first')::interval, e.retry_first, q.retry_first),
                  coalesce((q.types -> j.type ->> 'retry_longest')::interval, e.retry_longest, q.retry_longest),
                  coalesce((q.types -> j.type ->> 'retry_factor')::float8, e.retry_factor, q.retry_factor),
                  coalesce((q.types -> j.type ->> 'retry_jitter')::float8, e.retry_jitter, q.retry_jitter),
                  CASE WHEN q.types -> j.type ->> 'retry_first' IS NULL THEN e.retry_waits END,
                  j.priority::int, j.group_key, j.seq, coalesce(j.endpoint_id, 0), q.max_running IS NOT NULL
        FROM (SELECT DISTINCT ON (u.id, u.attempt) * FROM unnest($1::uuid[], $2::int[]) WITH ORDINALITY AS u (id, attempt, n)) AS t
        JOIN jobq.job AS j ON j.id = t.id AND j.attempt = t.attempt AND j.lease_until IS NOT NULL
        JOIN jobq.queue AS q ON q.id = j.queue_id
        LEFT JOIN jobq.endpoint AS e ON e.id = coalesce(j.endpoint_id, q.endpoint_id))");
    static pg::Statement queue_again(R"(
        UPDATE jobq.job AS j
        SET failures = t.failures, run_at = t.run_at, lease_until = NULL, started_at = NULL, progress = NULL, delivery = NULL,
            limited = NULL, worker = NULL, note = NULL
        FROM unnest($1::uuid[], $2::int[], $3::timestamptz[]) AS t (id, failures, run_at)
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
    std::vector<Turn> turns, stopped;
    pg::ArrayBuilder again_ids(UUIDOID, candidates.size()),
        again_failures(INT4OID, candidates.size()), again_at(TIMESTAMPTZOID, candidates.size());
    int32 let_go = 0;
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
        core::Stream stream{row.int4(4), row.int4(18)};
        if (row.boolean(19) && std::exchange(let_go, stream.queue) != stream.queue)
            wake::note_room({stream.queue, core::Stream::any}, row.text(5));
        if (!row.null(16)) {
            stopped.push_back({item.id, row.int4(4), std::string(row.text(5)),
                               std::string(row.text(16)), row.int8(17)});
            if (dies || key == Key::taken)
                turns.push_back(stopped.back());
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
            TimestampTz run_at = next_run(item, retries_of(row, 10), failures, row.timestamp(8));
            again_ids.add(pg::param(item.id));
            again_failures.add(pg::param(failures));
            again_at.add(pg::timestamp_param(run_at));
            core::Place place{run_at, row.int8(17)};
            if (run_at <= pg::clock())
                wake::note_spot(stream, row.text(5), row.int4(15), place);
            else
                wake::note(stream, row.text(5), {.priority = row.int4(15), .place = place});
            tried.push_back(std::move(last));
            ended.push_back(
                {.id = item.id, .attempt = item.attempt, .waits = true, .run_at = run_at});
        }
    }
    if (!tried.empty()) {
        queue_again.run(spi, {again_ids.param(), again_failures.param(), again_at.param()});
        keep_attempts(spi, tried);
    }
    if (!dead.empty())
        bury(spi, dead);
    if (!superseded.empty())
        retire(spi, superseded, "cancelled");
    free_groups(stopped);
    if (!turns.empty())
        note_turns(pg::Table("job", pg::Table::For::reading), turns);
    return ended;
}

std::vector<LeaseEnd> hand_over(const pg::Spi& spi, std::span<const Attempt> items) {
    static pg::Statement extend(R"(
        UPDATE jobq.job AS j SET lease_until = clock_timestamp() + q.lease, delivery = NULL
        FROM unnest($1::uuid[], $2::int[]) AS t (id, attempt), jobq.queue AS q
        WHERE j.id = t.id AND j.attempt = t.attempt AND j.lease_until IS NOT NULL AND q.id = j.queue_id
        RETURNING j.queue_id, coalesce(j.endpoint_id, 0), j.lease_until)");
    if (items.empty())
        return {};
    pg::lock_for_writing("job");
    pg::ArrayBuilder wanted(UUIDOID, items.size());
    for (const Attempt& item : items)
        wanted.add(pg::param(item.id));
    auto locked = lock_jobs(spi, wanted.param(), OnLocked::skip);
    pg::ArrayBuilder ids(UUIDOID, items.size()), attempts(INT4OID, items.size());
    for (const Attempt& item : items)
        if (std::binary_search(locked.begin(), locked.end(), item.id)) {
            ids.add(pg::param(item.id));
            attempts.add(pg::param(item.attempt));
        }
    std::vector<LeaseEnd> ends;
    for (auto row : extend.run(spi, {ids.param(), attempts.param()})) {
        ends.push_back({{row.int4(1), row.int4(2)}, row.timestamp(3)});
        wake::note_lease(ends.back().stream, ends.back().at);
    }
    return ends;
}

bool disable_endpoint(const pg::Spi& spi, int32 endpoint, std::string_view reason) {
    static pg::Statement disable(R"(
        UPDATE jobq.endpoint AS e SET enabled = false, disabled_reason = $2
        WHERE e.id IN (SELECT o.id FROM jobq.endpoint AS o WHERE o.id = $1 AND o.enabled FOR UPDATE SKIP LOCKED))");
    static pg::Statement enabled("SELECT FROM jobq.endpoint AS e WHERE e.id = $1 AND e.enabled");
    disable.run(spi, {pg::param(endpoint), pg::param(reason)});
    return enabled.run(spi, {pg::param(endpoint)}).empty();
}

std::vector<core::Uuid> still_running(const pg::Spi& spi, std::span<const core::Uuid> ids,
                                      std::span<const int32> attempts) {
    static pg::Statement find(R"(
        SELECT j.id FROM unnest($1::uuid[], $2::int[]) AS t (id, attempt)
        JOIN jobq.job AS j ON j.id = t.id AND j.attempt = t.attempt AND j.lease_until IS NOT NULL)");
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

Failure lease_over(const core::Uuid& id, int32 attempt) {
    return {.id = id,
            .attempt = attempt,
            .ending = Ending::lease_expired,
            .outcome = "lease_expired",
            .error = "the lease ended before the attempt did"};
}

Failure interrupted(const core::Uuid& id, int32 attempt) {
    return {.id = id,
            .attempt = attempt,
            .ending = Ending::release,
            .outcome = "interrupted",
            .error = "the dispatcher ended before the request did"};
}

std::size_t expire(const pg::Spi& spi, std::span<const core::Uuid> ids) {
    // Seen as they are since they were locked: another claim may have been quicker.
    static pg::Statement waiting(R"(
        SELECT j.id, j.attempt, j.failures::int, j.queue_id, q.name, j.group_key, j.seq
        FROM jobq.job AS j JOIN jobq.queue AS q ON q.id = j.queue_id
        WHERE j.id = ANY ($1) AND j.lease_until IS NULL)");
    if (ids.empty())
        return 0;
    pg::ArrayBuilder wanted(UUIDOID, ids.size());
    for (const auto& id : ids)
        wanted.add(pg::param(id));
    auto locked = lock_jobs(spi, wanted.param(), OnLocked::skip);
    pg::ArrayBuilder held(UUIDOID, locked.size());
    for (const auto& id : locked)
        held.add(pg::param(id));
    std::vector<Last> items;
    std::vector<Turn> turns;
    for (auto row : waiting.run(spi, {held.param()})) {
        items.push_back({.id = row.uuid(1), .attempt = row.int4(2), .failures = row.int4(3)});
        if (auto group = row.maybe_text(6))
            turns.push_back({row.uuid(1), row.int4(4), std::string(row.text(5)),
                             std::string(*group), row.int8(7)});
    }
    retire(spi, items, "expired");
    if (!turns.empty())
        note_turns(pg::Table("job", pg::Table::For::reading), turns);
    return items.size();
}

std::size_t delete_old(const pg::Spi& spi, int64 limit) {
    static pg::Statement remove(R"(
        WITH old AS MATERIALIZED (
            SELECT f.id FROM jobq.queue AS q CROSS JOIN LATERAL (
                SELECT f.id FROM jobq.finished AS f WHERE f.queue_id = q.id AND f.finished_at < $1 - q.keep
                ORDER BY f.finished_at LIMIT $2 FOR UPDATE OF f SKIP LOCKED
            ) AS f LIMIT $2
        ), attempts AS (
            DELETE FROM jobq.attempt AS a USING old AS o WHERE a.job_id = o.id
        )
        DELETE FROM jobq.finished AS f USING old AS o WHERE f.id = o.id)");
    return remove.run(spi, {pg::timestamp_param(pg::clock()), pg::param(limit)}).size();
}

} // namespace jobq::queue
