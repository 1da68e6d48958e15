#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "pg/watch.hpp"
#include "queue/checks.hpp"
#include "queue/queues.hpp"

extern "C" {
#include "utils/memutils.h"
}

namespace jobq::queue {

namespace {

// Of src/sql/10_settings.sql, by their order.
struct QueueColumn {
    enum : int {
        id = 1,
        name,
        endpoint_id,
        paused,
        max_attempts,
        lease,
        keep,
        retry_first,
        retry_factor,
        retry_longest,
        retry_jitter,
        max_running,
        types,
        routes
    };
};

struct EndpointColumn {
    enum : int { max_attempts = 13, retry_waits = 18 };
};

QueueRow read(const pg::Tuple& row) {
    using Column = QueueColumn;
    QueueRow queue;
    queue.id = row.int4(Column::id);
    queue.name = row.text(Column::name);
    if (!row.null(Column::endpoint_id))
        queue.endpoint_id = row.int4(Column::endpoint_id);
    queue.paused = row.boolean(Column::paused);
    queue.max_attempts = row.int4(Column::max_attempts);
    queue.lease = row.datum(Column::lease);
    auto keep = row.maybe(Column::keep);
    queue.keeps = !keep || pg::length_of(*keep).count() != 0;
    if (!row.null(Column::max_running))
        queue.max_running = row.int4(Column::max_running);
    queue.types = row.datum(Column::types);
    queue.routes = row.datum(Column::routes);
    queue.routed = !pg::is_empty_object(queue.routes);
    return queue;
}

// Rows that this process has read, kept while they are as they were: every call asks for one.
class Rows {
public:
    std::optional<QueueRow> find(std::string_view name) {
        return find(by_name_, name, "queue_name_key");
    }
    std::optional<QueueRow> find(int32 id) { return find(by_id_, id, "queue_pkey"); }

private:
    // So long a change may go unnoticed that fires no trigger, such as logical replication's.
    static constexpr TimestampTz longest = 5 * USECS_PER_SEC;
    static constexpr std::size_t most = 16384; // then all are forgotten

    template <class Id>
    std::optional<QueueRow> find(const std::unordered_map<Id, QueueRow>& rows, Id id,
                                 const char* index) {
        if (good())
            if (auto found = rows.find(id); found != rows.end())
                return found->second;
        return read_and_keep(index, pg::param(id));
    }

    bool good() { return watch_.changes() == changes_ && pg::clock() < until_; }

    std::optional<QueueRow> read_and_keep(const char* index, const pg::Param& id) {
        pg::Table queues("queue", pg::Table::For::reading);
        watch_.begin(queues);
        if (!good() || by_id_.size() == most)
            forget();
        pg::FreshSnapshot snapshot;
        pg::Scan scan(queues, index, snapshot, {{1, pg::Key::Is::equal, id}});
        if (!scan.next())
            return std::nullopt;
        QueueRow queue = read(scan.row().keep(memory_));
        if (watch_.changes() == changes_) {
            by_name_.emplace(queue.name, queue);
            by_id_.emplace(queue.id, queue);
        }
        return queue;
    }

    // Somebody may still have some of them in hand, so their memory goes with the transaction.
    void forget() {
        by_name_.clear();
        by_id_.clear();
        memory_ = pg::guarded([&] {
            if (auto* old = std::exchange(memory_, nullptr))
                MemoryContextSetParent(old, TopTransactionContext);
            return AllocSetContextCreate(TopMemoryContext, "jobq queues", ALLOCSET_SMALL_SIZES);
        });
        changes_ = watch_.changes();
        until_ = pg::clock() + longest;
    }

    pg::Watch watch_;
    std::uint64_t changes_ = 0;
    TimestampTz until_ = 0;
    MemoryContext memory_ = nullptr;
    std::unordered_map<std::string_view, QueueRow> by_name_;
    std::unordered_map<int32, QueueRow> by_id_;
};

Rows& rows() {
    static Rows rows;
    return rows;
}

} // namespace

namespace {

// What an endpoint says of the attempts at its jobs: a number, or a list of the waits between them.
std::optional<int32> endpoint_attempts(int32 id) {
    using Column = EndpointColumn;
    pg::Table endpoints("endpoint", pg::Table::For::reading);
    pg::FreshSnapshot snapshot;
    pg::Scan scan(endpoints, "endpoint_pkey", snapshot, {{1, pg::Key::Is::equal, pg::param(id)}});
    if (!scan.next())
        return std::nullopt;
    pg::Tuple row = scan.row();
    if (!row.null(Column::max_attempts))
        return row.int4(Column::max_attempts);
    if (auto waits = row.maybe(Column::retry_waits))
        return static_cast<int32>(pg::elements(*waits, INTERVALOID).size) + 1;
    return std::nullopt;
}

} // namespace

std::optional<int32> QueueRow::route_of(std::optional<std::string_view> type) const {
    if (!routed)
        return std::nullopt;
    if (auto route = type ? pg::json_field(routes, *type) : std::nullopt)
        return parse_int(pg::json_text(*route));
    return endpoint_id ? std::nullopt : std::optional(no_route);
}

int32 QueueRow::max_attempts_of(std::optional<std::string_view> type,
                                std::optional<int32> endpoint) const {
    auto settings = type ? pg::json_field(types, *type) : std::nullopt;
    auto value = settings ? pg::json_field(*settings, "max_attempts") : std::nullopt;
    if (value)
        return parse_int(pg::json_text(*value)).value_or(max_attempts);
    if (!endpoint)
        endpoint = endpoint_id;
    return endpoint ? endpoint_attempts(*endpoint).value_or(max_attempts) : max_attempts;
}

std::optional<QueueRow> find_queue(std::string_view name) {
    return rows().find(name);
}

std::optional<QueueRow> find_queue(int32 id) {
    return rows().find(id);
}

QueueRow require_queue(std::string_view name) {
    auto queue = find_queue(name);
    if (!queue)
        throw pg::Error(ERRCODE_UNDEFINED_OBJECT, fmt::format("queue \"{}\" does not exist", name))
            .with_hint(
                fmt::format("Create it with SELECT jobq.create_queue({}).", pg::quoted(name)));
    return *queue;
}

} // namespace jobq::queue
