// Endpoints and queues as their rows say.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>

#include "pg/spi.hpp"
#include "worker/endpoint.hpp"

namespace jobq::worker {

struct QueueSettings {
    std::string name;
    std::optional<int32> endpoint_id;
    bool routed = false; // some types go to endpoints of their own
    bool paused = false;
    std::chrono::microseconds lease{};
    std::optional<int32> max_running;

    bool delivered() const { return endpoint_id || routed; }
    friend bool operator==(const QueueSettings&, const QueueSettings&) = default;
};

// By their ids.
std::map<int32, EndpointSettings> read_endpoints(const pg::Spi& spi);
// home: whether they all belong to this database.
std::map<int32, QueueSettings> read_queues(const pg::Spi& spi, bool& home);

} // namespace jobq::worker
