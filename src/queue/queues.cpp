#include <fmt/format.h>

#include "queue/checks.hpp"
#include "queue/queues.hpp"

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

std::optional<QueueRow> find(const char* index, const pg::Param& value) {
    using Column = QueueColumn;
    pg::Table queues("queue", pg::Table::For::reading);
    pg::FreshSnapshot snapshot;
    pg::Scan scan(queues, index, snapshot, {{1, pg::Key::Is::equal, value}});
    if (!scan.next())
        return std::nullopt;
    pg::Tuple row = scan.row().copy();
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
    return find("queue_name_key", pg::param(name));
}

std::optional<QueueRow> find_queue(int32 id) {
    return find("queue_pkey", pg::param(id));
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
