#include "pg/settings.hpp"

#include "pg/postgres.hpp"

extern "C" {
#include "utils/guc.h"
}

namespace jobq::pg::settings {

namespace {
bool delivers = true;
int in_flight_limit = 1000;
int scan_interval_ms = 5000;
int drain_timeout_ms = 10000;
int payload_limit = 1024 * 1024;
} // namespace

bool deliver() noexcept {
    return delivers;
}
int max_in_flight() noexcept {
    return in_flight_limit;
}
std::chrono::milliseconds scan_interval() noexcept {
    return std::chrono::milliseconds(scan_interval_ms);
}
std::chrono::milliseconds drain_timeout() noexcept {
    return std::chrono::milliseconds(drain_timeout_ms);
}
int max_payload() noexcept {
    return payload_limit;
}

void define() {
    constexpr int hour_ms = 60 * 60 * 1000;
    DefineCustomBoolVariable("jobq.deliver", "Sets whether dispatchers deliver jobs.",
                             "Off is for copies of a server: they take and change nothing by "
                             "themselves.",
                             &delivers, delivers, PGC_SIGHUP, 0, nullptr, nullptr, nullptr);
    DefineCustomIntVariable("jobq.max_in_flight",
                            "Sets the number of deliveries a dispatcher has in flight at once.",
                            nullptr, &in_flight_limit, in_flight_limit, 1, 100000, PGC_SIGHUP, 0,
                            nullptr, nullptr, nullptr);
    DefineCustomIntVariable("jobq.scan_interval",
                            "Sets how often a dispatcher looks for jobs it was not told of.",
                            nullptr, &scan_interval_ms, scan_interval_ms, 100, hour_ms, PGC_SIGHUP,
                            GUC_UNIT_MS, nullptr, nullptr, nullptr);
    DefineCustomIntVariable(
        "jobq.drain_timeout", "Sets how long a dispatcher that ends waits for its deliveries.",
        "What is still in flight then is given back to its queue.", &drain_timeout_ms,
        drain_timeout_ms, 0, hour_ms, PGC_SIGHUP, GUC_UNIT_MS, nullptr, nullptr, nullptr);
    DefineCustomIntVariable("jobq.max_payload", "Sets the largest payload of a job.", nullptr,
                            &payload_limit, payload_limit, 1, 256 * 1024 * 1024, PGC_SUSET,
                            GUC_UNIT_BYTE, nullptr, nullptr, nullptr);
    MarkGUCPrefixReserved("jobq");
}

} // namespace jobq::pg::settings
