// Queues by name.
#pragma once

#include <optional>
#include <string_view>

#include "pg/table.hpp"

namespace jobq::queue {

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
    Datum types; // jsonb

    // What a push takes as max_attempts where it does not say.
    int32 max_attempts_of(std::optional<std::string_view> type) const;
};

std::optional<QueueRow> find_queue(std::string_view name);
std::optional<QueueRow> find_queue(int32 id);

// Error 42704 where there is none.
QueueRow require_queue(std::string_view name);

} // namespace jobq::queue
