#include <algorithm>
#include <set>
#include <span>

#include <fmt/format.h>

#include "pg/locks.hpp"
#include "queue/claim.hpp"
#include "queue/finish.hpp"

namespace jobq::queue {

namespace {

// The next priority that has jobs. Going from one to the next passes over the future jobs of each:
// they stand behind its due ones, and in front of the next priority.
std::optional<int32> next_priority(const pg::Spi& spi, int32 queue_id, int32 after) {
    static pg::Statement next(R"(
        SELECT j.priority FROM jobq.job AS j WHERE j.queue_id = $1 AND j.priority > $2
        ORDER BY j.priority LIMIT 1)");
    auto rows = next.run(spi, {pg::param(queue_id), pg::param(after)});
    return rows.empty() ? std::nullopt : std::optional<int32>(DatumGetInt16(rows[0].datum(1)));
}

// The leases and groups are asked for in scalar subqueries: the planner does not turn these into
// joins, which could read all of a table.
pg::Rows due_jobs(const pg::Spi& spi, const ClaimOrder& order, int32 priority, std::size_t limit,
                  std::span<const core::Uuid> passed_over) {
    static pg::Statement due(R"(
        SELECT j.id, j.attempt, j.type, j.payload, j.body, j.content_type, j.headers, j.group_key,
               j.max_attempts::int, j.key_waits IS NOT NULL, j.expires_at, j.endpoint_id
        FROM jobq.job AS j
        WHERE j.queue_id = $1 AND j.priority = $2 AND j.run_at <= $3
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
        spi, {pg::param(order.queue_id), pg::param(priority), pg::timestamp_param(order.due),
              order.types ? pg::Param{TEXTARRAYOID, *order.types} : pg::null_param(TEXTARRAYOID),
              pg::param(static_cast<int64>(limit)),
              passed_over.empty() ? pg::null_param(UUIDARRAYOID) : skip.param(),
              order.closed.empty() ? pg::null_param(INT4ARRAYOID) : closed.param()});
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
    std::size_t limit = room(spi, order);
    std::optional<int32> priority = PG_INT16_MIN - 1;
    while (claimed.size() < limit && (priority = next_priority(spi, order.queue_id, *priority))) {
        // More than one round only where some of a full one did not come to be claimed.
        for (bool full = true; full && claimed.size() < limit;) {
            std::size_t wanted = limit - claimed.size();
            auto rows = due_jobs(spi, order, *priority, wanted, passed_over);
            full = rows.size() == wanted;

            std::vector<ClaimedJob> jobs;
            std::vector<core::Uuid> expired;
            bool grouped = false;
            for (auto row : rows) {
                ClaimedJob job{row, row.uuid(ClaimedJob::id_), row.int4(ClaimedJob::attempt_) + 1};
                if (!row.null(ClaimedJob::expires_at_) &&
                    row.timestamp(ClaimedJob::expires_at_) <= order.due) {
                    expired.push_back(job.id);
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
            claimed.insert(claimed.end(), jobs.begin(), jobs.end());
        }
    }
    return claimed;
}

std::optional<TimestampTz> next_due(const pg::Spi& spi, int32 queue_id, TimestampTz after) {
    static pg::Statement first(R"(
        SELECT j.run_at FROM jobq.job AS j WHERE j.queue_id = $1 AND j.priority = $2 AND j.run_at > $3
        ORDER BY j.queue_id, j.priority, j.run_at LIMIT 1)");
    std::optional<TimestampTz> soonest;
    std::optional<int32> priority = PG_INT16_MIN - 1;
    while ((priority = next_priority(spi, queue_id, *priority))) {
        auto rows =
            first.run(spi, {pg::param(queue_id), pg::param(*priority), pg::timestamp_param(after)});
        if (!rows.empty() && (!soonest || rows[0].timestamp(1) < *soonest))
            soonest = rows[0].timestamp(1);
    }
    return soonest;
}

} // namespace jobq::queue
