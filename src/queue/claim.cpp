#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <string>
#include <unordered_map>

#include "pg/locks.hpp"
#include "pg/spi.hpp"
#include "queue/bounds.hpp"
#include "queue/claim.hpp"
#include "queue/finish.hpp"
#include "queue/running_groups.hpp"
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

// The index that has a stream's jobs in their order, and its columns.
struct ReadyIndex {
    explicit ReadyIndex(core::Stream s) : stream(s), own(s.endpoint == core::Stream::own) {}

    const char* name() const { return own ? "job_ready" : "job_ready_for"; }
    int priority() const { return own ? 2 : 3; }
    int run_at() const { return priority() + 1; } // then seq

    // The conditions that choose the stream, and others behind them.
    class Keys {
    public:
        void add(const Key& key) { keys_[size_++] = key; }
        operator std::span<const Key>() const { return {keys_.data(), size_}; }

    private:
        std::array<Key, 4> keys_;
        std::size_t size_ = 0;
    };
    Keys keys(std::initializer_list<Key> others = {}) const {
        Keys keys;
        keys.add({1, Key::Is::equal, pg::param(stream.queue)});
        if (!own)
            keys.add({2, Key::Is::equal, pg::param(stream.endpoint)});
        for (const Key& other : others)
            keys.add(other);
        return keys;
    }

    core::Stream stream;
    bool own;
};

// The jobs of a level, from its bound on.
struct LevelScan : Scan {
    LevelScan(const Table& jobs, const pg::FreshSnapshot& snapshot, core::Stream stream,
              const Level& level)
        : Scan(jobs, ReadyIndex(stream).name(), snapshot, keys(stream, level),
               from(stream, level)) {}
    void begin(core::Stream stream, const Level& level) {
        start(keys(stream, level), from(stream, level));
    }

private:
    static ReadyIndex::Keys keys(core::Stream stream, const Level& level) {
        ReadyIndex index(stream);
        return index.keys({{index.priority(), Key::Is::equal, smallint(level.priority)}});
    }
    static From from(core::Stream stream, const Level& level) {
        return {ReadyIndex(stream).run_at(), pg::timestamp_param(level.from.run_at),
                pg::param(level.from.seq)};
    }
};

// The next priority that has jobs. Going from one to the next passes over the future jobs of each:
// they stand behind its due ones, and in front of the next priority.
std::optional<int32> next_priority(const Table& jobs, const pg::FreshSnapshot& snapshot,
                                   core::Stream stream, std::optional<int32> after) {
    ReadyIndex index(stream);
    auto first = [](Scan&& scan) {
        return scan.next() ? std::optional<int32>(scan.row().int2(Column::priority)) : std::nullopt;
    };
    if (!after)
        return first(Scan(jobs, index.name(), snapshot, index.keys()));
    return first(Scan(jobs, index.name(), snapshot,
                      index.keys({{index.priority(), Key::Is::after, smallint(*after)}})));
}

// A stream's priorities and where to begin in each, from what is known of its bounds or else by a
// search.
class Search {
public:
    Search(const Table& jobs, core::Stream stream) : stream_(stream), began_(pg::clock()) {
        // What this transaction did is not in the bounds yet.
        auto own = wake::own(stream);
        if (!own.anything)
            seen_ = bounds::look(stream, began_);
        known_ = seen_.bounds.complete();
        if (known_) {
            levels_.assign(seen_.bounds.levels().begin(), seen_.bounds.levels().end());
            for (Level& level : levels_)
                level.from = std::min(level.from, own.low);
            for (int32 priority : own.priorities)
                add(priority, own.low);
        } else {
            pg::FreshSnapshot snapshot;
            std::optional<int32> priority;
            while ((priority = next_priority(jobs, snapshot, stream, priority)))
                levels_.push_back(level(*priority));
        }
    }

    // Whether it comes from the bounds. Then no lease of the claims before has ended.
    bool known() const { return known_; }
    // When something below the levels is to be looked at again.
    TimestampTz lease_end() const { return known_ ? seen_.lease_end : DT_NOEND; }
    const std::vector<Level>& levels() const { return levels_; }
    std::span<const core::QueueBounds::Spot> spots() const { return seen_.bounds.spots(); }

    // What came out of a search is kept, once the cost of looking from the start is known.
    void keep() const {
        if (known_)
            return;
        std::vector<int32> priorities;
        for (const Level& level : levels_)
            priorities.push_back(level.priority);
        TimestampTz now = pg::clock();
        bounds::found(stream_, priorities, seen_.bounds.changes(), now,
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
        for (const Level& level : seen_.bounds.levels())
            if (level.priority == priority)
                return level;
        return {priority, core::first_place, core::last_place, 0};
    }

    core::Stream stream_;
    TimestampTz began_;
    bounds::Known seen_;
    std::vector<Level> levels_;
    bool known_;
};

// Whose turn it is in the groups that one pass of a claim meets.
class Groups {
public:
    Groups(const Table& jobs, RunningGroups& running, const pg::FreshSnapshot& snapshot,
           int32 queue_id)
        : jobs_(jobs), running_(running), snapshot_(snapshot), queue_id_(queue_id) {}

    enum class Turn {
        now,       // the job is the next of its group, which is this transaction's to claim from
        later,     // another one is
        contended, // somebody else may be about to claim from the group, or runs a later job of it
    };
    // likely: it was the next when its spot was noted.
    Turn of(const Tuple& row, bool likely) {
        auto group = row.text(Column::group_key);
        core::Uuid id = row.uuid(Column::id);
        if (!likely) {
            auto [head, first] = heads_.try_emplace(std::string(group));
            if (first)
                head->second = next(seen_, snapshot_, group);
            if (head->second != id)
                return Turn::later;
        }
        if (!pg::try_lock(pg::LockKind::group, pg::group_hash(queue_id_, group)))
            return Turn::contended;
        pg::FreshSnapshot later;
        // A group that many jobs went through has them at its front until vacuum: looking costs.
        bool seen = !likely && later.same(snapshot_);
        if (!seen && next(now_, later, group) != id)
            return Turn::later;
        return running_.runs(jobs_, later, queue_id_, group) ? Turn::contended : Turn::now;
    }

private:
    // The first unfinished job of the group.
    std::optional<core::Uuid> next(std::optional<Scan>& scan, const pg::FreshSnapshot& snapshot,
                                   std::string_view group) const {
        Key keys[] = {{1, Key::Is::equal, pg::param(queue_id_)},
                      {2, Key::Is::equal, pg::param(group)}};
        if (scan) {
            scan->look_through(snapshot);
            scan->start(keys);
        } else {
            scan.emplace(jobs_, "job_group", snapshot, keys);
        }
        return scan->next() ? std::optional(scan->row().uuid(Column::id)) : std::nullopt;
    }

    const Table& jobs_;
    RunningGroups& running_;
    const pg::FreshSnapshot& snapshot_;
    int32 queue_id_;
    std::unordered_map<std::string, std::optional<core::Uuid>> heads_;
    std::optional<Scan> seen_, now_;
};

// How many more may run in a limited queue. Claims that are not committed cannot be counted, so
// only one transaction claims at a time; the others get nothing.
std::size_t room(const Table& jobs, const ClaimOrder& order) {
    if (!order.max_running)
        return order.limit;
    if (!pg::try_lock(pg::LockKind::queue, static_cast<std::uint64_t>(order.stream.queue)))
        return 0;
    pg::FreshSnapshot snapshot;
    Scan running(jobs, "job_limited", snapshot,
                 {{1, Key::Is::equal, pg::param(order.stream.queue)}});
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
        Search search(jobs_, order_.stream);
        bool reads_all = order_.by_clock && !order_.types;
        const auto& levels = search.levels();
        for (auto at = levels.begin(); at != levels.end() && claimed_.size() < limit_;) {
            const Level& level = *at++;
            core::Place read_to;
            bool group_let_go = false;
            while (!pass(search, level, read_to)) {
                group_let_go |= let_go();
                over_.clear();
            }
            if (reads_all && read_to > level.from)
                wake::note_raise(order_.stream, level.priority, read_to, level.generation);
            // The next of their groups may have any priority.
            if (group_let_go)
                at = levels.begin();
        }
        if (first_)
            wake::note_taken(order_.stream, *first_);
        if (lease_end_ != DT_NOEND)
            wake::note_lease(order_.stream, lease_end_);
        search.keep();
        // This one has not met what one before met locked.
        blocked_ |= search.lease_end() <= now_ + look_again_after;
        Claims claims{std::move(claimed_), durable_at_, {}, blocked_, {}};
        if (claims.jobs.size() < limit_ && next_due_ != DT_NOEND)
            claims.next_due = next_due_;
        if (held_until_ != DT_NOEND)
            claims.lease_end = held_until_;
        return claims;
    }

private:
    struct Over {
        core::Uuid id;
        int32 attempt;
        enum class Why { expired, lease_over, not_in_hand } why;
        bool grouped;
    };

    enum class Met {
        claimed,
        running,
        waits,       // for others of its group: whoever ends the one before notes its spot
        over,        // to be ended before others are claimed
        passed_over, // not wanted here, or somebody else has it locked
    };

    // Claims from one level: its spots, then all from its bound on. False where something has to be
    // ended first: over_. Else everything before read_to was read.
    bool pass(const Search& search, const Level& level, core::Place& read_to) {
        read_to = {order_.due, 0};
        pg::FreshSnapshot snapshot;
        Groups groups(jobs_, running_, snapshot, order_.stream.queue);
        LevelScan scan(jobs_, snapshot, order_.stream, level);
        visit_spots(search, level, scan, groups);
        if (claimed_.size() == limit_) // of what comes from the bound on, nothing is read
            read_to = level.from;
        scan.begin(order_.stream, level);
        while (claimed_.size() < limit_ && scan.next()) {
            Tuple row = scan.row();
            if (row.timestamp(Column::run_at) > order_.due) {
                next_due_ = std::min(next_due_, row.timestamp(Column::run_at));
                break;
            }
            bool to_be_ended = !over_.empty();
            if (visit(row, groups, false) != Met::over && to_be_ended)
                break;
            if (over_.size() == most_over)
                break;
            if (claimed_.size() == limit_)
                read_to = place_of(row);
        }
        return over_.empty();
    }

    void visit_spots(const Search& search, const Level& level, LevelScan& scan, Groups& groups) {
        struct Spot {
            core::Place place;
            std::optional<uint64> stamp; // none: this transaction noted it
        };
        std::vector<Spot> spots;
        auto add = [&](int32 priority, core::Place place, std::optional<uint64> stamp) {
            if (priority == level.priority && place < level.from && place.run_at <= order_.due)
                spots.push_back({place, stamp});
        };
        for (const auto& spot : search.spots())
            add(spot.priority, spot.place, spot.stamp);
        for (const auto& spot : wake::own_spots())
            if (spot.stream == order_.stream)
                add(spot.priority, spot.place, {});
        std::sort(spots.begin(), spots.end(),
                  [](const Spot& a, const Spot& b) { return a.place < b.place; });
        for (const Spot& spot : spots) {
            if (claimed_.size() == limit_ || !over_.empty())
                return;
            scan.begin(order_.stream, {level.priority, spot.place, {}, 0});
            if (scan.next() && place_of(scan.row()) == spot.place) {
                auto met = visit(scan.row(), groups, true);
                if (met == Met::over || met == Met::passed_over)
                    continue;
            }
            if (spot.stamp)
                wake::note_dropped(order_.stream, *spot.stamp);
            else
                wake::drop_own_spot(order_.stream, spot.place);
        }
    }

    Met visit(const Tuple& row, Groups& groups, bool spot) {
        if (!row.null(Column::lease_until))
            return meet_running(row) ? Met::over : Met::running;
        if (!wanted(row))
            return Met::passed_over;
        if (expired(row))
            return end(row, Over::Why::expired) ? Met::over : Met::passed_over;
        if (!over_.empty()) // that first
            return Met::passed_over;
        if (!row.null(Column::group_key)) {
            auto turn = groups.of(row, spot);
            if (turn == Groups::Turn::later)
                return Met::waits;
            if (turn == Groups::Turn::contended) {
                // Nobody would say so if it is not claimed after all.
                wake::note_spot(order_.stream, {}, row.int2(Column::priority), place_of(row));
                return Met::passed_over;
            }
        }
        return lease(row) ? Met::claimed : Met::passed_over;
    }

    bool wanted(const Tuple& row) const {
        return !order_.types ||
               (!row.null(Column::type) && types_.contains(row.text(Column::type)));
    }

    // `at` may lie before or after what the clock says: what has not expired by both still stands.
    bool expired(const Tuple& row) const {
        return !row.null(Column::expires_at) &&
               row.timestamp(Column::expires_at) <= std::min(order_.due, now_);
    }

    // Whether the attempt is to be ended.
    bool meet_running(const Tuple& row) {
        TimestampTz until = row.timestamp(Column::lease_until);
        bool delivery = row.boolean(Column::delivery);
        if (delivery && order_.in_hand) {
            if (!row.written_by_us() &&
                !order_.in_hand(row.uuid(Column::id), row.int4(Column::attempt)))
                return end(row, Over::Why::not_in_hand);
        } else if (until <= now_) {
            return end(row, Over::Why::lease_over);
        } else {
            lease_end_ = std::min(lease_end_, until);
            if (!delivery)
                held_until_ = std::min(held_until_, until);
        }
        return false;
    }

    // False: that was tried before.
    bool end(const Tuple& row, Over::Why why) {
        core::Uuid id = row.uuid(Column::id);
        if (!tried_.insert(id).second)
            return false;
        core::Place place = place_of(row);
        first_ = std::min(first_.value_or(place), place);
        over_.push_back({id, row.int4(Column::attempt), why, !row.null(Column::group_key)});
        return true;
    }

    // False: somebody else has it locked, or has changed it.
    bool lease(const Tuple& row) {
        core::Place place = place_of(row);
        int32 attempt = row.int4(Column::attempt) + 1;
        auto leased = jobs_.update(
            row, {{Column::lease_until, pg::timestamp_param(order_.lease_until)},
                  {Column::started_at, pg::timestamp_param(pg::clock())},
                  {Column::attempt, pg::param(attempt)},
                  {Column::key_waits,
                   row.null(Column::key_waits) ? pg::null_param(BOOLOID) : pg::param(false)},
                  {Column::delivery, order_.delivery ? pg::param(true) : pg::null_param(BOOLOID)},
                  {Column::limited, order_.max_running ? pg::param(true) : pg::null_param(BOOLOID)},
                  {Column::worker, pg::text_param(order_.worker)}});
        if (!leased)
            return false;
        if (!row.null(Column::group_key))
            running_.begun(order_.stream.queue, row.text(Column::group_key), row.uuid(Column::id));
        first_ = std::min(first_.value_or(place), place);
        lease_end_ = std::min(lease_end_, order_.lease_until);
        if (order_.delivery)
            durable_at_ = std::max(durable_at_, row.durable_at());
        claimed_.push_back({*leased, row.uuid(Column::id), attempt});
        return true;
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
    RunningGroups running_;
    std::size_t limit_;
    TimestampTz now_;
    std::set<std::string_view> types_;
    std::vector<ClaimedJob> claimed_;
    std::vector<Over> over_;
    std::set<core::Uuid> tried_; // to be ended: once, since somebody may have them locked
    std::optional<core::Place> first_;
    TimestampTz lease_end_ = DT_NOEND;  // the first of those that were met
    TimestampTz held_until_ = DT_NOEND; // the same, but for deliveries
    XLogRecPtr durable_at_ = InvalidXLogRecPtr;
    TimestampTz next_due_ = DT_NOEND;
    bool blocked_ = false;
};

} // namespace

Claims claim(const ClaimOrder& order) {
    return Claim(order).run();
}

namespace {

// From one stream's entries in the index to the next one's. What is dead counts too: to find the
// first that lives takes long where an old snapshot keeps vacuum from removing the others.
template <class Seen>
void look_for_streams(const Table& jobs, const pg::FreshSnapshot& snapshot,
                      std::optional<int32> queue, Seen&& seen) {
    auto keys = [&](int32 after) {
        return std::array{queue ? Key{1, Key::Is::equal, pg::param(*queue)}
                                : Key{1, Key::Is::after, pg::param(after)}};
    };
    Scan own(jobs, "job_ready", snapshot, keys(0));
    own.look_at_all();
    while (own.next()) {
        core::Stream stream = stream_of(own.row());
        seen(own, stream);
        if (queue)
            break;
        own.start(keys(stream.queue));
    }
    auto after = [](core::Stream stream) {
        return Scan::From{1, pg::param(stream.queue), pg::param(stream.endpoint + 1)};
    };
    core::Stream stream{queue.value_or(0), core::Stream::any};
    Scan others(jobs, "job_ready_for", snapshot, {}, after(stream));
    others.look_at_all();
    while (others.next()) {
        stream = stream_of(others.row());
        if (queue && stream.queue != *queue)
            break;
        seen(others, stream);
        others.start(std::span<const Key>(), after(stream));
    }
}

bool has_jobs(const Table& jobs, core::Stream stream) {
    Search search(jobs, stream);
    pg::FreshSnapshot snapshot;
    bool found =
        std::any_of(search.levels().begin(), search.levels().end(), [&](const Level& level) {
            return LevelScan(jobs, snapshot, stream, level).next();
        });
    search.keep();
    return found || !search.spots().empty();
}

} // namespace

std::vector<core::Stream> streams(std::optional<int32> queue) {
    Table jobs("job", Table::For::reading);
    std::vector<core::Stream> out, unclear;
    {
        pg::FreshSnapshot snapshot;
        look_for_streams(jobs, snapshot, queue, [&](const Scan& scan, core::Stream stream) {
            (scan.visible(snapshot) ? out : unclear).push_back(stream);
        });
    }
    std::copy_if(unclear.begin(), unclear.end(), std::back_inserter(out),
                 [&](core::Stream stream) { return has_jobs(jobs, stream); });
    return out;
}

bool has_due(core::Stream stream, TimestampTz now) {
    Table jobs("job", Table::For::reading);
    Search search(jobs, stream);
    pg::FreshSnapshot snapshot;
    auto due = [&](const Tuple& row) {
        return row.timestamp(Column::run_at) <= now &&
               (row.null(Column::lease_until) || row.timestamp(Column::lease_until) <= now);
    };
    bool found = std::any_of(
        search.spots().begin(), search.spots().end(), [&](const core::QueueBounds::Spot& spot) {
            LevelScan scan(jobs, snapshot, stream, {spot.priority, spot.place, {}, 0});
            return scan.next() && place_of(scan.row()) == spot.place && due(scan.row());
        });
    found = found ||
            std::any_of(search.levels().begin(), search.levels().end(), [&](const Level& level) {
                LevelScan scan(jobs, snapshot, stream, level);
                while (scan.next() && scan.row().timestamp(Column::run_at) <= now)
                    if (due(scan.row()))
                        return true;
                return false;
            });
    search.keep();
    return found;
}

std::optional<TimestampTz> next_due(core::Stream stream, TimestampTz after) {
    Table jobs("job", Table::For::reading);
    Search search(jobs, stream);
    pg::FreshSnapshot snapshot;
    std::optional<TimestampTz> soonest;
    for (const Level& level : search.levels()) {
        ReadyIndex index(stream);
        Scan scan(jobs, index.name(), snapshot,
                  index.keys({{index.priority(), Key::Is::equal, smallint(level.priority)},
                              {index.run_at(), Key::Is::after, pg::timestamp_param(after)}}));
        if (scan.next() && (!soonest || scan.row().timestamp(Column::run_at) < *soonest))
            soonest = scan.row().timestamp(Column::run_at);
    }
    search.keep();
    return soonest;
}

std::size_t end_leases(core::Stream stream, std::size_t limit,
                       std::optional<std::size_t> most_rows) {
    Table jobs("job");
    Search search(jobs, stream);
    TimestampTz now = pg::clock();
    std::vector<Failure> over;
    {
        pg::FreshSnapshot snapshot;
        for (const Level& level : search.levels()) {
            Level all = level;
            if (!most_rows || !search.known())
                all.from = core::first_place;
            LevelScan scan(jobs, snapshot, stream, all);
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
