#pragma once

#include <cstddef>
#include <optional>

#include "worker/shared.hpp"

namespace jobq::worker {

// What pg_stat_activity shows of the dispatcher: "delivering: 12 in flight", "draining: 3 in
// flight", "idle", or what jobq.status() calls a dispatcher that does not deliver. Told when it
// changes, but ten times a second at the most.
class Activity {
public:
    // To be called before each sleep, and when it says: what could not be told yet is told then.
    TimestampTz show(shared::State state, std::size_t in_flight);

private:
    struct Shown {
        shared::State state;
        std::size_t in_flight;
        bool operator==(const Shown&) const = default;
    };
    std::optional<Shown> shown_;
    TimestampTz next_ = 0;
};

} // namespace jobq::worker
