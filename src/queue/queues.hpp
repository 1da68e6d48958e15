// Queues by name.
#pragma once

#include <optional>
#include <string_view>

#include "pg/table.hpp"

namespace jobq::queue {

// In place of an endpoint's id, of jobs that have nowhere to go.
constexpr int32 no_route = -1;

// What claims, pushes and endings need of a queue's row.
struct QueueRow {
    int32 id;
    std::string_view name;
    std::optional<int32> endpoint_id;
    bool paused;
    int32 max_attempts;
    Datum lease; // interval
    bool keeps;  // its finished jobs, for a while
    std::optional<int32> max_running;
    Datum types;  // jsonb
    Datum routes; // jsonb
    bool routed;  // there are any

    // By the server, to some endpoint; else its jobs are pulled.
    bool delivered() const { return endpoint_id || routed; }
    // The endpoint of a job that names none: that of its type's route; nothing: the queue's own.
    // no_route: its type has none, and the queue no endpoint; the job waits until it gets one.
    std::optional<int32> route_of(std::optional<std::string_view> type) const;
    // What a push takes as max_attempts where it does not say.
    int32 max_attempts_of(std::optional<std::string_view> type,
                          std::optional<int32> endpoint) const;
};

// As it is now: what others have committed counts, and what this transaction did. Lives as long as
// the transaction.
std::optional<QueueRow> find_queue(std::string_view name);
std::optional<QueueRow> find_queue(int32 id);

// Error 42704 where there is none.
QueueRow require_queue(std::string_view name);

} // namespace jobq::queue
