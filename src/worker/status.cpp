// The C functions behind jobq.status() and jobq.preloaded().
#include <cstring>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "pg/call.hpp"
#include "worker/shared.hpp"
#include "worker/status.hpp"

extern "C" {
#include "access/xlog.h"
#include "catalog/pg_authid.h"
#include "commands/dbcommands.h"
#include "utils/acl.h"
}

namespace jobq::worker {

namespace {

using shared::State;
using shared::View;

struct Line {
    std::string_view component;
    const char* database = nullptr;
    int pid = 0; // 0: NULL, as the other zeros
    std::string_view state;
    TimestampTz since = 0;
    std::optional<int32> in_flight = std::nullopt;
    std::optional<int64> delivered = std::nullopt, failed = std::nullopt;
    std::string_view message = {};
};

void put(pg::RowSink& rows, const Line& line) {
    auto text = [](std::string_view value) {
        return value.empty() ? pg::null_param(TEXTOID) : pg::param(value);
    };
    rows.put({
        pg::param(line.component),
        line.database == nullptr ? pg::null_param(TEXTOID)
                                 : pg::param(std::string_view(line.database)),
        line.pid == 0 ? pg::null_param(INT4OID) : pg::param(static_cast<int32>(line.pid)),
        pg::param(line.state),
        line.since == 0 ? pg::null_param(TIMESTAMPTZOID) : pg::timestamp_param(line.since),
        pg::param(line.in_flight, INT4OID),
        pg::param(line.delivered, INT8OID),
        pg::param(line.failed, INT8OID),
        text(line.message),
    });
}

const char* name_of_database(Oid database) {
    return pg::guarded([&] { return get_database_name(database); });
}

constexpr const char* not_preloaded = "not preloaded";
constexpr const char* preload_it =
    "nothing is delivered: add jobq to shared_preload_libraries and restart the server";

const char* explain_no_launcher() {
    return RecoveryInProgress() ? "this server is a standby: it delivers once promoted"
                                : "started again within a second; if not, there was no worker slot "
                                  "for it: raise max_worker_processes";
}

void put_launcher(pg::RowSink& rows) {
    auto launcher = shared::launcher();
    Line line{.component = "launcher",
              .pid = launcher.pid,
              .state = launcher.pid != 0 ? "running" : "not running",
              .since = launcher.since};
    if (launcher.pid == 0)
        line.message = explain_no_launcher();
    put(rows, line);
}

std::string explain(const View& slot) {
    switch (slot.state) {
    case State::waiting_for_slot:
        return fmt::format(
            "no worker slot is free: raise max_worker_processes (now {}) by the number "
            "of databases with jobq",
            max_worker_processes);
    case State::foreign:
        return "the jobs belong to the database this one is a copy of: jobq.adopt() takes them "
               "over";
    case State::off:
        return "jobq.deliver is off";
    case State::stopped:
        return slot.held ? "stopped for a DROP, ALTER or CREATE DATABASE command" : "";
    default:
        return slot.message.data();
    }
}

const char* explain_no_slot() {
    return shared::launcher().pid == 0 ? "waits for the launcher"
                                       : "the launcher has not found this database yet, or leaves "
                                         "it alone because it is a template";
}

void put_database(pg::RowSink& rows, const View& slot, const char* name) {
    std::string message = explain(slot);
    put(rows, {.component = "dispatcher",
               .database = name,
               .pid = slot.pid,
               .state = shared::name_of(slot.state),
               .since = slot.since,
               .in_flight = slot.in_flight,
               .delivered = slot.delivered,
               .failed = slot.failed,
               .message = message});
}

bool sees_all() {
    return pg::guarded(
        [] { return superuser() || has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS); });
}

} // namespace

std::string dispatcher_status() {
    if (!shared::preloaded())
        return fmt::format("{}: {}", not_preloaded, preload_it);
    if (shared::launcher().pid == 0)
        return fmt::format("the launcher is not running: {}", explain_no_launcher());
    auto slot = shared::find(MyDatabaseId);
    if (!slot)
        return explain_no_slot();
    std::string message = explain(*slot);
    return message.empty() ? shared::name_of(slot->state)
                           : fmt::format("{}: {}", shared::name_of(slot->state), message);
}

} // namespace jobq::worker

namespace {
namespace pg = jobq::pg;
namespace worker = jobq::worker;
namespace shared = jobq::worker::shared;
} // namespace

JOBQ_FUNCTION(jobq_preloaded) {
    return BoolGetDatum(shared::preloaded());
}

JOBQ_FUNCTION(jobq_status) {
    using namespace worker;
    pg::RowSink rows(call);
    if (!shared::preloaded()) {
        put(rows, {.component = "library", .state = not_preloaded, .message = preload_it});
        return call.return_null();
    }
    put_launcher(rows);
    bool all = sees_all(), here = false;
    for (std::size_t i = 0; i < shared::most_databases; ++i) {
        View slot = shared::view(i);
        bool current = slot.database == MyDatabaseId;
        if (slot.database == InvalidOid || !(current || (all && slot.state != State::absent)))
            continue;
        here |= current;
        // Dropped, and not noticed yet.
        if (const char* name = name_of_database(slot.database))
            put_database(rows, slot, name);
    }
    if (!here)
        put(rows, {.component = "dispatcher",
                   .database = name_of_database(MyDatabaseId),
                   .state = "unknown",
                   .message = explain_no_slot()});
    return call.return_null();
}
