#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <unordered_map>

#include "pg/locks.hpp"
#include "pg/spi.hpp"
#include "queue/bounds.hpp"
#include "queue/claim.hpp"
#include "queue/finish.hpp"
#include "queue/wake.hpp"

namespace jobq::queue {

namespace {

using Level = core::QueueBounds::Level;
using Column = JobColumn;
using pg::Key;
using pg::Scan;
using pg::Table;
using pg::Tuple;

// Ended before others are claimed, so many at a time.
constexpr std::size_t most_over = 500;
// At what somebody had locked, µs.
constexpr TimestampTz look_again_after = 100 * 1000;

pg::Param smallint(int32 value) {
    return {INT2OID, Int16GetDatum(static_cast<int16>(value))};
}

core::Place place_of(const Tuple& row) {
    return {row.timestamp(Column::run_at), row.int8(Column::seq)};
}

// The jobs of a level, from its bound on.
struct LevelScan : Scan {
    LevelScan(const Table& jobs, const pg::FreshSnapshot& snapshot, int32 queue_id,
              const Level& level)
        : Scan(jobs, "job_ready", snapshot,
               {{1, Key::Is::equal, pg::param(queue_id)},
                {2, Key::Is::equal, smallint(level.priority)}},
               From{3, pg::timestamp_param(level.from.run_at), pg::param(level.from.seq)}) {}
};

// The next priority that has jobs. Going from one to the next passes over the future jobs of each:
// they stand behind its due ones, and in front of the next priority.
std::optional<int32> next_priority(const Table& jobs, const pg::FreshSnapshot& snapshot,
                                   int32 queue_id, std::optional<int32> after) {
    Key queue{1, Key::Is::equal, pg::param(queue_id)};
    auto first = [](Scan&& scan) {
        return scan.next() ? std::optional<int32>(scan.row().int2(Column::priority)) : std::nullopt;
    };
    if (!after)
        return first(Scan(jobs, "job_ready", snapshot, {queue}));
    return first(Scan(jobs, "job_ready", snapshot, {queue, {2, Key::Is::after, smallint(*after)}}));
}

bool has_groups(const Table& jobs, const pg::FreshSnapshot& snapshot, int32 queue_id) {
    return Scan(jobs, "job_group", snapshot, {{1, Key::Is::equal, pg::param(queue_id)}}).next();
}

// A queue's priorities and where to begin in each, from what is known of its bounds or else by a
// search.
class Search {
public:
    Search(const Table& jobs, int32 queue_id) : queue_id_(queue_id), began_(pg::clock()) {
        // What this transaction did is not in the bounds yet.
        auto own = wake::own(queue_id);
        if (!own.anything)
            bounds_ = bounds::look(queue_id, began_);
        known_ = bounds_.complete();
        if (known_) {
            levels_.assign(bounds_.levels().begin(), bounds_.levels().end());
            grouped_ = bounds_.grouped();
            for (Level& level : levels_)
                level.from = std::min(level.from, own.low);
            for (int32 priority : own.priorities)
                add(priority, own.low);
        } else {
            pg::FreshSnapshot snapshot;
            std::optional<int32> priority;
            while ((priority = next_priority(jobs, snapshot, queue_id, priority)))
                levels_.push_back(level(*priority));
            grouped_ = has_groups(jobs, snapshot, queue_id);
        }
        if (grouped_)
            for (Level& level : levels_)
                level.from = core::first_place;
    }

    const std::vector<Level>& levels() const { return levels_; }
    bool grouped() const { return grouped_; }

    // What came out of a search is kept, once the cost of looking from the start is known.
    void keep() const {
        if (known_)
            return;
        std::vector<int32> priorities;
        for (const Level& level : levels_)
            priorities.push_back(level.priority);
        TimestampTz now = pg::clock();
        bounds::found(queue_id_, priorities, grouped_, bounds_.changes(), now,
                      std::chrono::microseconds(now - began_));
    }

private:
    void add(int32 priority, core::Place from) {
        auto at = std::find_if(levels_.begin(), levels_.end(),
                               [&](const Level& level) { return level.priority >= priority; });
        if (at == levels_.end() || at->priority != priority)
            levels_.insert(at, {priority, from, core::last_place, 0});
    }

    Level level(int32 priority) const {
        for (const Level& level : bounds_.levels())
            if (level.priority == priority)
                return level;
        return {priority, core::first_place, core::last_place, 0};
    }

    int32 queue_id_;
    TimestampTz began_;
    core::QueueBounds bounds_;
    std::vector<Level> levels_;
    bool known_, grouped_;
};

// Of the groups that one pass of a claim has met: which job is the next of each, if any.
class Groups {
public:
    Groups(const Table& jobs, int32 queue_id) : jobs_(jobs), queue_id_(queue_id) {}

    // Whether the job is the next of its group, which is this transaction's to claim from then.
    bool take(const pg::FreshSnapshot& snapshot, const Tuple& row) {
        auto group = row.text(Column::group_key);
        auto [known, first] = next_.try_emplace(std::string(group));
        if (first)
            known->second = next(snapshot, group);
        core::Uuid id = row.uuid(Column::id);
        if (known->second != id)
            return false;
        known->second.reset();
        if (!pg::try_lock(pg::LockKind::group, pg::group_hash(queue_id_, group)))
            return false;
        pg::FreshSnapshot later;
        return next(later, group) == id;
    }

private:
    std::optional<core::Uuid> next(const pg::FreshSnapshot& snapshot,
                                   std::string_view group) const {
        Key queue{1, Key::Is::equal, pg::param(queue_id_)},
            key{2, Key::Is::equal, pg::param(group)};
        if (Scan(jobs_, "job_running_group", snapshot, {queue, key}).next())
            return std::nullopt;
        Scan scan(jobs_, "job_group", snapshot, {queue, key});
        return scan.next() ? std::optional(scan.row().uuid(Column::id)) : std::nullopt;
    }

    const Table& jobs_;
    int32 queue_id_;
    std::unordered_map<std::string, std::optional<core::Uuid>> next_;
};

// How many more may run in a limited queue. Claims that are not committed cannot be counted, so
// only one transaction claims at a time; the others get nothing.
std::size_t room(const Table& jobs, const ClaimOrder& order) {
    if (!order.max_running)
        return order.limit;
    if (!pg::try_lock(pg::LockKind::queue, static_cast<std::uint64_t>(order.queue_id)))
        return 0;
    pg::FreshSnapshot snapshot;
    Scan running(jobs, "job_limited", snapshot, {{1, Key::Is::equal, pg::param(order.queue_id)}});
    auto free = static_cast<std::size_t>(std::max(*order.max_running, 0));
    while (free > 0 && running.next())
        --free;
    return std::min(order.limit, free);
}

class Claim {
public:
    explicit Claim(const ClaimOrder& order)
        : order_(order), jobs_("job"), limit_(room(jobs_, order)), now_(pg::clock()) {
        if (order.types) {
            auto types = pg::elements(*order.types, TEXTOID);
            for (std::size_t i = 0; i < types.size; ++i)
                if (!types.null(i))
                    types_.insert(pg::text_of(types.values[i]));
        }
    }

    Claims run() {
        if (limit_ == 0)
            return {};
        // The bounds are read before the snapshots below are taken.
        Search search(jobs_, order_.queue_id);
        bool reads_all =
            order_.by_clock && !order_.types && order_.closed.empty() && !search.grouped();
        const auto& levels = search.levels();
        for (auto at = levels.begin(); at != levels.end() && claimed_.size() < limit_;) {
            const Level& level = *at++;
            core::Place read_to;
            bool group_let_go = false;
            while (!pass(level, read_to)) {
                group_let_go |= let_go();
                over_.clear();
            }
            reads_all &= !grouped_;
            if (reads_all && read_to > level.from)
                wake::note_raise(order_.queue_id, level.priority, read_to, level.generation);
            // The next of their groups may have any priority.
            if (group_let_go)
                at = levels.begin();
        }
        if (first_)
            wake::note_taken(order_.queue_id, *first_);
        if (lease_end_ != DT_NOEND)
            wake::note_lease(order_.queue_id, lease_end_);
        search.keep();
        Claims claims{std::move(claimed_), durable_at_, {}, blocked_};
        if (claims.jobs.size() < limit_ && next_due_ != DT_NOEND)
            claims.next_due = next_due_;
        return claims;
    }

private:
    struct Over {
        core::Uuid id;
        int32 attempt;
        enum class Why { expired, lease_over, not_in_hand } why;
        bool grouped;
    };

    // Claims from one level. False where something has to be ended first: over_. Else everything
    // before read_to was read.
    bool pass(const Level& level, core::Place& read_to) {
        read_to = {order_.due, 0};
        pg::FreshSnapshot snapshot;
        Groups groups(jobs_, order_.queue_id);
        LevelScan scan(jobs_, snapshot, order_.queue_id, level);
        while (scan.next()) {
            Tuple row = scan.row();
            if (row.timestamp(Column::run_at) > order_.due) {
                next_due_ = std::min(next_due_, row.timestamp(Column::run_at));
                break;
            }
            if (!row.null(Column::lease_until)) {
                meet_running(row);
            } else if (wanted(row)) {
                if (expired(row))
                    end(row, Over::Why::expired);
                else if (!over_.empty())
                    break;
                else if (row.null(Column::group_key) || groups.take(snapshot, row))
                    lease(row);
            }
            grouped_ |= !row.null(Column::group_key);
            if (claimed_.size() == limit_) {
                read_to = place_of(row);
                break;
            }
            if (over_.size() == most_over)
                break;
        }
        return over_.empty();
    }

    bool wanted(const Tuple& row) const {
        if (order_.types && (row.null(Column::type) || !types_.contains(row.text(Column::type))))
            return false;
        return order_.closed.empty() || row.null(Column::endpoint_id) ||
               std::find(order_.closed.begin(), order_.closed.end(),
                         row.int4(Column::endpoint_id)) == order_.closed.end();
    }

    // `at` may lie before or after what the clock says: what has not expired by both still stands.
    bool expired(const Tuple& row) const {
        return !row.null(Column::expires_at) &&
               row.timestamp(Column::expires_at) <= std::min(order_.due, now_);
    }

    void meet_running(const Tuple& row) {
        TimestampTz until = row.timestamp(Column::lease_until);
        bool delivery = row.boolean(Column::delivery);
        if (delivery && order_.in_hand) {
            if (!row.written_by_us() &&
                !order_.in_hand(row.uuid(Column::id), row.int4(Column::attempt)))
                end(row, Over::Why::not_in_hand);
        } else if (until <= now_) {
            end(row, Over::Why::lease_over);
        } else {
            lease_end_ = std::min(lease_end_, until);
        }
    }

    void end(const Tuple& row, Over::Why why) {
        core::Uuid id = row.uuid(Column::id);
        if (!tried_.insert(id).second)
            return;
        core::Place place = place_of(row);
        first_ = std::min(first_.value_or(place), place);
        over_.push_back({id, row.int4(Column::attempt), why, !row.null(Column::group_key)});
    }

    void lease(const Tuple& row) {
        core::Place place = place_of(row);
        bool grouped = !row.null(Column::group_key);
        int32 attempt = row.int4(Column::attempt) + 1;
        auto leased = jobs_.update(
            row, {{Column::lease_until, pg::timestamp_param(order_.lease_until)},
                  {Column::started_at, pg::timestamp_param(pg::clock())},
                  {Column::attempt, pg::param(attempt)},
                  {Column::key_waits,
                   row.null(Column::key_waits) ? pg::null_param(BOOLOID) : pg::param(false)},
                  {Column::delivery, order_.delivery ? pg::param(true) : pg::null_param(BOOLOID)},
                  {Column::limited, order_.max_running ? pg::param(true) : pg::null_param(BOOLOID)},
                  {Column::running_group, row.param(Column::group_key, TEXTOID)},
                  {Column::worker, pg::text_param(order_.worker)}});
        if (!leased)
            return;
        grouped_ |= grouped;
        first_ = std::min(first_.value_or(place), place);
        lease_end_ = std::min(lease_end_, order_.lease_until);
        durable_at_ = std::max(durable_at_, row.durable_at());
        claimed_.push_back({*leased, row.uuid(Column::id), attempt});
    }

    // Ends what is over. Whether that may have let go the next job of a group.
    bool let_go() {
        bool group = false;
        std::vector<core::Uuid> expired;
        std::vector<Failure> failures;
        for (const Over& over : over_) {
            group |= over.grouped;
            if (over.why == Over::Why::expired)
                expired.push_back(over.id);
            else if (over.why == Over::Why::lease_over)
                failures.push_back(lease_over(over.id, over.attempt));
            else
                failures.push_back(interrupted(over.id, over.attempt));
        }
        pg::Spi spi;
        std::size_t ended = expire(spi, expired) + fail(spi, failures, OnLocked::skip).size();
        if (ended < over_.size()) {
            blocked_ = true;
            lease_end_ = std::min(lease_end_, now_ + look_again_after);
        }
        return group;
    }

    const ClaimOrder& order_;
    Table jobs_;
    std::size_t limit_;
    TimestampTz now_;
    std::set<std::string_view> types_;
    std::vector<ClaimedJob> claimed_;
    std::vector<Over> over_;
    std::set<core::Uuid> tried_; // to be ended: once, since somebody may have them locked
    std::optional<core::Place> first_;
    TimestampTz lease_end_ = DT_NOEND; // the first of those that were met
    XLogRecPtr durable_at_ = InvalidXLogRecPtr;
    TimestampTz next_due_ = DT_NOEND;
    bool grouped_ = false, blocked_ = false;
};

} // namespace

Claims claim(const ClaimOrder& order) {
    return Claim(order).run();
}

bool has_due(int32 queue_id, TimestampTz now) {
    Table jobs("job", Table::For::reading);
    Search search(jobs, queue_id);
    pg::FreshSnapshot snapshot;
    bool due = std::any_of(search.levels().begin(), search.levels().end(), [&](const Level& level) {
        LevelScan scan(jobs, snapshot, queue_id, level);
        while (scan.next() && scan.row().timestamp(Column::run_at) <= now)
            if (scan.row().null(Column::lease_until) ||
                scan.row().timestamp(Column::lease_until) <= now)
                return true;
        return false;
    });
    search.keep();
    return due;
}

std::optional<TimestampTz> next_due(int32 queue_id, TimestampTz after) {
    Table jobs("job", Table::For::reading);
    Search search(jobs, queue_id);
    pg::FreshSnapshot snapshot;
    std::optional<TimestampTz> soonest;
    for (const Level& level : search.levels()) {
        Scan scan(jobs, "job_ready", snapshot,
                  {{1, Key::Is::equal, pg::param(queue_id)},
                   {2, Key::Is::equal, smallint(level.priority)},
                   {3, Key::Is::after, pg::timestamp_param(after)}});
        if (scan.next() && (!soonest || scan.row().timestamp(Column::run_at) < *soonest))
            soonest = scan.row().timestamp(Column::run_at);
    }
    search.keep();
    return soonest;
}

std::size_t end_leases(int32 queue_id, std::size_t limit, std::optional<std::size_t> most_rows) {
    Table jobs("job");
    Search search(jobs, queue_id);
    TimestampTz now = pg::clock();
    std::vector<Failure> over;
    {
        pg::FreshSnapshot snapshot;
        for (const Level& level : search.levels()) {
            Level all = level;
            all.from = core::first_place;
            LevelScan scan(jobs, snapshot, queue_id, all);
            std::size_t rows = 0;
            while (over.size() < limit && scan.next()) {
                Tuple row = scan.row();
                if (most_rows && place_of(row) >= level.from && ++rows > *most_rows)
                    break;
                if (!row.null(Column::lease_until) && !row.boolean(Column::delivery) &&
                    row.timestamp(Column::lease_until) <= now)
                    over.push_back(lease_over(row.uuid(Column::id), row.int4(Column::attempt)));
            }
        }
    }
    search.keep();
    pg::Spi spi;
    return fail(spi, over, OnLocked::skip).size();
}

} // namespace jobq::queue
