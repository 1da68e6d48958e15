#include <algorithm>
#include <set>
#include <span>

#include <fmt/format.h>

#include "pg/locks.hpp"
#include "queue/bounds.hpp"
#include "queue/claim.hpp"
#include "queue/finish.hpp"
#include "queue/wake.hpp"

namespace jobq::queue {

namespace {

using Level = core::QueueBounds::Level;

// The next priority that has jobs. Going from one to the next passes over the future jobs of each:
// they stand behind its due ones, and in front of the next priority.
std::optional<int32> next_priority(const pg::Spi& spi, int32 queue_id, int32 after) {
    static pg::Statement next(R"(
        SELECT j.priority FROM jobq.job AS j WHERE j.queue_id = $1 AND j.priority > $2
        ORDER BY j.priority LIMIT 1)");
    auto rows = next.run(spi, {pg::param(queue_id), pg::param(after)});
    return rows.empty() ? std::nullopt : std::optional<int32>(DatumGetInt16(rows[0].datum(1)));
}

// A queue's priorities and where to begin in each, from what is known of its bounds or else by a
// search.
class Search {
public:
    Search(const pg::Spi& spi, int32 queue_id) : queue_id_(queue_id), began_(pg::clock()) {
        bounds_ = bounds::look(queue_id, began_);
        if (bounds_.complete()) {
            levels_.assign(bounds_.levels().begin(), bounds_.levels().end());
            grouped_ = bounds_.grouped();
        } else {
            std::optional<int32> priority = PG_INT16_MIN - 1;
            while ((priority = next_priority(spi, queue_id, *priority)))
                levels_.push_back(level(*priority));
            grouped_ = has_groups(spi, queue_id);
        }
        if (grouped_)
            for (Level& level : levels_)
                level.from = core::first_place;
    }

    const std::vector<Level>& levels() const { return levels_; }
    bool grouped() const { return grouped_; }

    // What came out of a search is kept, once the cost of looking from the start is known.
    void keep() const {
        if (bounds_.complete())
            return;
        std::vector<int32> priorities;
        for (const Level& level : levels_)
            priorities.push_back(level.priority);
        TimestampTz now = pg::clock();
        bounds::found(queue_id_, priorities, grouped_, bounds_.changes(), now,
                      std::chrono::microseconds(now - began_));
    }

private:
    Level level(int32 priority) const {
        for (const Level& level : bounds_.levels())
            if (level.priority == priority)
                return level;
        return {priority, core::first_place, core::last_place, 0};
    }

    static bool has_groups(const pg::Spi& spi, int32 queue_id) {
        static pg::Statement find(R"(
            SELECT true FROM jobq.job AS j WHERE j.queue_id = $1 AND j.group_key IS NOT NULL LIMIT 1)");
        return !find.run(spi, {pg::param(queue_id)}).empty();
    }

    int32 queue_id_;
    TimestampTz began_;
    core::QueueBounds bounds_;
    std::vector<Level> levels_;
    bool grouped_;
};

// The leases and groups are asked for in scalar subqueries: the planner does not turn these into
// joins, which could read all of a table.
pg::Rows due_jobs(const pg::Spi& spi, const ClaimOrder& order, const Level& level,
                  std::size_t limit, std::span<const core::Uuid> passed_over) {
    static pg::Statement due(R"(
        SELECT j.id, j.attempt, j.type, j.payload, j.body, j.content_type, j.headers, j.group_key,
               j.max_attempts::int, j.key_waits IS NOT NULL, j.expires_at, j.endpoint_id,
               j.run_at, j.seq
        FROM jobq.job AS j
        WHERE j.queue_id = $1 AND j.priority = $2 AND j.run_at <= $3 AND (j.run_at, j.seq) >= ($8, $9)
          AND ($4::text[] IS NULL OR j.type = ANY ($4))
          AND ($6::uuid[] IS NULL OR j.id <> ALL ($6))
          AND ($7::int[] IS NULL OR j.endpoint_id IS NULL OR j.endpoint_id <> ALL ($7))
          AND (SELECT true FROM jobq.lease AS l WHERE l.job_id = j.id) IS NULL
          AND (j.group_key IS NULL
               OR (SELECT h.id FROM jobq.job AS h
                   WHERE h.queue_id = j.queue_id AND h.group_key = j.group_key
                   ORDER BY h.queue_id, h.group_key, h.seq LIMIT 1) = j.id
                  AND (SELECT true FROM jobq.lease AS l
                       WHERE l.queue_id = j.queue_id AND l.group_key = j.group_key) IS NULL)
        ORDER BY j.queue_id, j.priority, j.run_at, j.seq
        LIMIT $5
        FOR UPDATE OF j SKIP LOCKED)");
    pg::ArrayBuilder skip(UUIDOID, passed_over.size());
    for (const auto& id : passed_over)
        skip.add(pg::param(id));
    pg::ArrayBuilder closed(INT4OID, order.closed.size());
    for (int32 id : order.closed)
        closed.add(pg::param(id));
    return due.run(
        spi, {pg::param(order.queue_id), pg::param(level.priority), pg::timestamp_param(order.due),
              order.types ? pg::Param{TEXTARRAYOID, *order.types} : pg::null_param(TEXTARRAYOID),
              pg::param(static_cast<int64>(limit)),
              passed_over.empty() ? pg::null_param(UUIDARRAYOID) : skip.param(),
              order.closed.empty() ? pg::null_param(INT4ARRAYOID) : closed.param(),
              pg::timestamp_param(level.from.run_at), pg::param(level.from.seq)});
}

// Drops the grouped candidates whose group another claim has locked, and those that are no longer,
// or not yet, their group's next. What is dropped goes to passed_over.
void keep_next_of_groups(const pg::Spi& spi, const ClaimOrder& order,
                         std::vector<ClaimedJob>& candidates,
                         std::vector<core::Uuid>& passed_over) {
    static pg::Statement still_next(R"(
        SELECT t.id FROM unnest($2::uuid[], $3::text[]) AS t (id, group_key)
        WHERE (SELECT h.id FROM jobq.job AS h
               WHERE h.queue_id = $1 AND h.group_key = t.group_key
               ORDER BY h.queue_id, h.group_key, h.seq LIMIT 1) = t.id
          AND (SELECT true FROM jobq.lease AS l WHERE l.queue_id = $1 AND l.group_key = t.group_key) IS NULL)");
    pg::ArrayBuilder ids(UUIDOID, candidates.size()), groups(TEXTOID, candidates.size());
    for (const auto& job : candidates) {
        auto group = job.group_key();
        if (group && pg::try_lock(pg::LockKind::group, pg::group_hash(order.queue_id, *group))) {
            ids.add(pg::param(job.id));
            groups.add(pg::text_param(group));
        }
    }
    std::set<core::Uuid> next;
    for (auto row : still_next.run(spi, {pg::param(order.queue_id), ids.param(), groups.param()}))
        next.insert(row.uuid(1));
    std::erase_if(candidates, [&](const ClaimedJob& job) {
        bool drop = job.group_key() && !next.contains(job.id);
        if (drop)
            passed_over.push_back(job.id);
        return drop;
    });
}

// Writes the leases. The jobs that got one remain; what another claim was quicker with goes to
// passed_over.
void lease(const pg::Spi& spi, const ClaimOrder& order, std::vector<ClaimedJob>& jobs,
           std::vector<core::Uuid>& passed_over) {
    static pg::Statement insert(R"(
        INSERT INTO jobq.lease (job_id, queue_id, attempt, lease_until, started_at, endpoint_id, worker, group_key)
        SELECT t.id, $1, t.attempt, $2, clock_timestamp(), t.endpoint_id, $3, t.group_key
        FROM unnest($4::uuid[], $5::int[], $6::int[], $7::text[]) AS t (id, attempt, endpoint_id, group_key)
        ON CONFLICT DO NOTHING
        RETURNING job_id)");
    static pg::Statement take_keys("UPDATE jobq.job AS j SET key_waits = false FROM "
                                   "unnest($1::uuid[]) AS t (id) WHERE j.id = t.id");

    pg::ArrayBuilder ids(UUIDOID, jobs.size()), attempts(INT4OID, jobs.size()),
        endpoints(INT4OID, jobs.size()), groups(TEXTOID, jobs.size()), keyed(UUIDOID, jobs.size());
    for (const auto& job : jobs) {
        ids.add(pg::param(job.id));
        attempts.add(pg::param(job.attempt));
        bool own = order.endpoint_id && !job.row.null(ClaimedJob::endpoint_id_);
        endpoints.add(own ? pg::param(job.row.int4(ClaimedJob::endpoint_id_))
                          : pg::param(order.endpoint_id, INT4OID));
        groups.add(pg::text_param(job.group_key()));
    }
    auto rows = insert.run(spi, {pg::param(order.queue_id), pg::timestamp_param(order.lease_until),
                                 pg::text_param(order.worker), ids.param(), attempts.param(),
                                 endpoints.param(), groups.param()});
    if (rows.size() < jobs.size()) {
        std::set<core::Uuid> leased;
        for (auto row : rows)
            leased.insert(row.uuid(1));
        std::erase_if(jobs, [&](const ClaimedJob& job) {
            bool lost = !leased.contains(job.id);
            if (lost)
                passed_over.push_back(job.id);
            return lost;
        });
    }
    for (const auto& job : jobs)
        if (job.row.boolean(ClaimedJob::keyed_))
            keyed.add(pg::param(job.id));
    if (keyed.size() > 0)
        take_keys.run(spi, {keyed.param()});
}

// How many more may run in a limited queue. Claims that are not committed cannot be counted, so
// only one transaction claims at a time; the others get nothing.
std::size_t room(const pg::Spi& spi, const ClaimOrder& order) {
    if (!order.max_running)
        return order.limit;
    if (!pg::try_lock(pg::LockKind::queue, static_cast<std::uint64_t>(order.queue_id)))
        return 0;
    static pg::Statement count("SELECT count(*) FROM jobq.lease AS l WHERE l.queue_id = $1");
    int64 running = count.run(spi, {pg::param(order.queue_id)})[0].int8(1);
    auto free = std::max<int64>(0, *order.max_running - running);
    return std::min(order.limit, static_cast<std::size_t>(free));
}

} // namespace

std::vector<ClaimedJob> claim(const pg::Spi& spi, const ClaimOrder& order) {
    std::vector<ClaimedJob> claimed;
    std::vector<core::Uuid> passed_over;
    pg::lock_for_writing("job");
    std::size_t limit = room(spi, order);
    if (limit == 0)
        return claimed;

    // The bounds are read before the snapshots of the statements below are taken.
    Search search(spi, order.queue_id);
    bool reads_all = order.by_clock && !order.types && order.closed.empty() && !search.grouped();
    // `at` may lie before or after what the clock says: what has not expired by both still stands.
    TimestampTz expired_by = std::min(order.due, pg::clock());
    std::optional<core::Place> first;
    const auto& levels = search.levels();
    for (auto at = levels.begin(); at != levels.end() && claimed.size() < limit;) {
        const Level& level = *at++;
        core::Place read_to{order.due, 0};
        bool heads_expired = false;
        // More than one round only where some of a full one did not come to be claimed.
        for (bool full = true; full && claimed.size() < limit;) {
            std::size_t wanted = limit - claimed.size();
            auto rows = due_jobs(spi, order, level, wanted, passed_over);
            full = rows.size() == wanted;

            std::vector<ClaimedJob> jobs;
            std::vector<core::Uuid> expired;
            bool grouped = false;
            for (auto row : rows) {
                ClaimedJob job{row, row.uuid(ClaimedJob::id_), row.int4(ClaimedJob::attempt_) + 1};
                first = std::min(first.value_or(core::last_place), job.place());
                if (full)
                    read_to = job.place();
                if (!row.null(ClaimedJob::expires_at_) &&
                    row.timestamp(ClaimedJob::expires_at_) <= expired_by) {
                    expired.push_back(job.id);
                    heads_expired |= !row.null(ClaimedJob::group_key_);
                    continue;
                }
                grouped |= !row.null(ClaimedJob::group_key_);
                jobs.push_back(job);
            }
            if (!expired.empty())
                expire(spi, expired);
            if (grouped)
                keep_next_of_groups(spi, order, jobs, passed_over);
            if (!jobs.empty())
                lease(spi, order, jobs, passed_over);
            reads_all &= !grouped;
            claimed.insert(claimed.end(), jobs.begin(), jobs.end());
            if (!full)
                read_to = {order.due, 0};
        }
        if (reads_all && read_to > level.from)
            wake::note_raise(order.queue_id, level.priority, read_to, level.generation);
        // The next of their groups may have any priority.
        if (heads_expired)
            at = levels.begin();
    }
    if (first)
        wake::note_taken(order.queue_id, *first);
    search.keep();
    return claimed;
}

bool has_due(const pg::Spi& spi, int32 queue_id, TimestampTz now) {
    static pg::Statement find(R"(
        SELECT true FROM jobq.job AS j
        WHERE j.queue_id = $1 AND j.priority = $2 AND j.run_at <= $3 AND (j.run_at, j.seq) >= ($4, $5)
          AND (SELECT true FROM jobq.lease AS l WHERE l.job_id = j.id) IS NULL
        ORDER BY j.queue_id, j.priority, j.run_at, j.seq
        LIMIT 1)");
    Search search(spi, queue_id);
    bool due = std::any_of(search.levels().begin(), search.levels().end(), [&](const Level& level) {
        return !find.run(spi,
                         {pg::param(queue_id), pg::param(level.priority), pg::timestamp_param(now),
                          pg::timestamp_param(level.from.run_at), pg::param(level.from.seq)})
                    .empty();
    });
    search.keep();
    return due;
}

std::optional<TimestampTz> next_due(const pg::Spi& spi, int32 queue_id, TimestampTz after) {
    static pg::Statement find(R"(
        SELECT j.run_at FROM jobq.job AS j WHERE j.queue_id = $1 AND j.priority = $2 AND j.run_at > $3
        ORDER BY j.queue_id, j.priority, j.run_at LIMIT 1)");
    Search search(spi, queue_id);
    std::optional<TimestampTz> soonest;
    for (const Level& level : search.levels()) {
        auto rows = find.run(
            spi, {pg::param(queue_id), pg::param(level.priority), pg::timestamp_param(after)});
        if (!rows.empty() && (!soonest || rows[0].timestamp(1) < *soonest))
            soonest = rows[0].timestamp(1);
    }
    search.keep();
    return soonest;
}

} // namespace jobq::queue
