// Queues by name.
#pragma once

#include <optional>
#include <string_view>

#include "pg/spi.hpp"

namespace jobq::queue {

struct QueueRow {
    int32 id;
    std::optional<int32> endpoint_id;
    bool paused;
    Datum lease; // interval
    std::optional<int32> max_running;
};

std::optional<QueueRow> find_queue(const pg::Spi& spi, std::string_view name);

// Error 42704 where there is none.
QueueRow require_queue(const pg::Spi& spi, std::string_view name);

} // namespace jobq::queue
