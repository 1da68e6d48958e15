#include <fmt/format.h>

#include "queue/checks.hpp"
#include "queue/queues.hpp"

namespace jobq::queue {

namespace {

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
        types
    };
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
    return queue;
}

} // namespace

int32 QueueRow::max_attempts_of(std::optional<std::string_view> type) const {
    auto settings = type ? pg::json_field(types, *type) : std::nullopt;
    auto value = settings ? pg::json_field(*settings, "max_attempts") : std::nullopt;
    if (!value)
        return max_attempts;
    return parse_int(pg::json_text(*value)).value_or(max_attempts);
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
