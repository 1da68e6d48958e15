#include <string>

#include <fmt/format.h>

#include "pg/error.hpp"
#include "worker/activity.hpp"

extern "C" {
#include "pgstat.h"
}

namespace jobq::worker {

namespace {

constexpr TimestampTz shortest_change = 100 * 1000; // µs

} // namespace

TimestampTz Activity::show(shared::State state, std::size_t in_flight) {
    Shown now{state, in_flight};
    if (shown_ == now)
        return DT_NOEND;
    TimestampTz at = GetCurrentTimestamp();
    if (at < next_)
        return next_;
    bool running = state == shared::State::running;
    std::string text;
    if ((running && in_flight > 0) || state == shared::State::draining)
        text = fmt::format("{}: {} in flight", running ? "delivering" : "draining", in_flight);
    else
        text = running ? "idle" : shared::name_of(state);
    bool busy = in_flight > 0;
    pg::guarded([&] {
        // query_start is then that of the change.
        SetCurrentStatementStartTimestamp();
        pgstat_report_activity(busy ? STATE_RUNNING : STATE_IDLE, text.c_str());
    });
    shown_ = now;
    next_ = at + shortest_change;
    return DT_NOEND;
}

} // namespace jobq::worker
