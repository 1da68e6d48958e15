#include <fmt/format.h>

#include "queue/queues.hpp"

namespace jobq::queue {

std::optional<QueueRow> find_queue(const pg::Spi& spi, std::string_view name) {
    static pg::Statement find("SELECT q.id, q.endpoint_id, q.paused, q.lease, q.max_running FROM "
                              "jobq.queue AS q WHERE q.name = $1");
    auto rows = find.run(spi, {pg::param(name)});
    if (rows.empty())
        return std::nullopt;
    auto row = rows[0];
    QueueRow queue;
    queue.id = row.int4(1);
    if (!row.null(2))
        queue.endpoint_id = row.int4(2);
    queue.paused = row.boolean(3);
    queue.lease = row.datum(4);
    if (!row.null(5))
        queue.max_running = row.int4(5);
    return queue;
}

QueueRow require_queue(const pg::Spi& spi, std::string_view name) {
    auto queue = find_queue(spi, name);
    if (!queue)
        throw pg::Error(ERRCODE_UNDEFINED_OBJECT, fmt::format("queue \"{}\" does not exist", name))
            .with_hint(
                fmt::format("Create it with SELECT jobq.create_queue({}).", pg::quoted(name)));
    return *queue;
}

} // namespace jobq::queue
