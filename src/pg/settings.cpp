#include "pg/settings.hpp"

#include <variant>

#include "core/fixed_text.hpp"
#include "core/trace.hpp"
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
char* networks_text;
char* traceparent_text;

// Why it is no list of networks; empty if it is one.
core::FixedText<200> wrong_networks(const char* list) noexcept {
    core::FixedText<200> reason;
    try {
        auto parsed = core::Networks::parse(list);
        if (auto* wrong = std::get_if<std::string>(&parsed))
            reason = *wrong;
    } catch (const std::bad_alloc&) {
        reason = "out of memory";
    }
    return reason;
}

// PostgreSQL calls these.
bool check_networks(char** value, void**, GucSource) {
    auto wrong = wrong_networks(*value);
    if (wrong.empty())
        return true;
    GUC_check_errdetail("%.*s.", static_cast<int>(wrong.view().size()), wrong.view().data());
    return false;
}

bool check_traceparent(char** value, void**, GucSource) {
    if (**value == '\0' || core::is_traceparent(*value))
        return true;
    GUC_check_errdetail("It must be a W3C traceparent, such as "
                        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01.");
    return false;
}
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

std::shared_ptr<const core::Networks> allowed_networks() {
    static std::string known;
    static auto networks = std::make_shared<const core::Networks>();
    if (known != networks_text) {
        auto parsed = core::Networks::parse(networks_text);
        if (auto* good = std::get_if<core::Networks>(&parsed))
            networks = std::make_shared<const core::Networks>(std::move(*good));
        known = networks_text;
    }
    return networks;
}

std::string_view traceparent() noexcept {
    return traceparent_text == nullptr ? std::string_view() : traceparent_text;
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
    DefineCustomStringVariable(
        "jobq.allow_networks",
        "Sets the networks that deliveries may go to although their addresses are not public.",
        "A list of addresses and networks such as 10.0.0.0/8. All others that are private, "
        "loopback, link-local or otherwise not of the public internet are refused.",
        &networks_text, "", PGC_SIGHUP, GUC_SUPERUSER_ONLY, check_networks, nullptr, nullptr);
    DefineCustomStringVariable(
        "jobq.traceparent", "Sets the trace that the jobs pushed from now on belong to.",
        "A W3C traceparent, sent with each delivery as the header of that "
        "name. Empty for none.",
        &traceparent_text, "", PGC_USERSET, GUC_NOT_IN_SAMPLE, check_traceparent, nullptr, nullptr);
    MarkGUCPrefixReserved("jobq");
}

} // namespace jobq::pg::settings
