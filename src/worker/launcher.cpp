#include <algorithm>
#include <cerrno>
#include <csignal>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "pg/xact.hpp"
#include "worker/launcher.hpp"
#include "worker/shared.hpp"

extern "C" {
#include "access/heapam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "catalog/pg_database.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/memutils.h"
}

namespace jobq::worker {

namespace {

using pg::guarded;
using shared::State;
using shared::View;

constexpr TimestampTz second = USECS_PER_SEC;
// CREATE DATABASE and its like wake the launcher; this finds what changed in other ways.
constexpr TimestampTz list_interval = 10 * second;
// CREATE EXTENSION wakes it too, so this is for what bypassed the commit callbacks.
constexpr TimestampTz absent_interval = 300 * second;
constexpr TimestampTz no_room_interval = second;
// A worker that was registered and has not shown up, with nobody left who could ask the postmaster.
constexpr TimestampTz start_limit = 30 * second;
// Most databases of a server have no jobq: looking through them must not use up the worker slots.
constexpr int most_starting = 4;
// Nor the slots of the shared memory.
constexpr std::size_t most_unsettled = 64;

template <std::size_t N>
void set(char (&field)[N], const char* text) {
    pg_snprintf(field, N, "%s", text);
}

std::vector<Oid> list_databases() {
    struct List {
        Oid* oids;
        std::size_t size;
    };
    pg::Transaction transaction;
    auto list = guarded([] {
        Relation relation = table_open(DatabaseRelationId, AccessShareLock);
        TableScanDesc scan = table_beginscan_catalog(relation, 0, nullptr);
        std::size_t capacity = 64;
        List out{static_cast<Oid*>(palloc(capacity * sizeof(Oid))), 0};
        while (HeapTuple tuple = heap_getnext(scan, ForwardScanDirection)) {
            auto* database = reinterpret_cast<Form_pg_database>(GETSTRUCT(tuple));
            if (!database->datallowconn || database->datistemplate)
                continue;
#ifdef DATCONNLIMIT_INVALID_DB
            if (database->datconnlimit == DATCONNLIMIT_INVALID_DB)
                continue;
#endif
            if (out.size == capacity)
                out.oids = static_cast<Oid*>(repalloc(out.oids, (capacity *= 2) * sizeof(Oid)));
            out.oids[out.size++] = database->oid;
        }
        table_endscan(scan);
        table_close(relation, AccessShareLock);
        return out;
    });
    std::vector<Oid> databases(list.oids, list.oids + list.size);
    transaction.commit();
    return databases;
}

template <class F>
void for_slots(F&& f) {
    for (std::size_t i = 0; i < shared::most_databases; ++i)
        if (View slot = shared::view(i); slot.database != InvalidOid)
            f(slot);
}

class Launcher {
public:
    // Does what can be done now; returns when to be called again at the latest.
    TimestampTz work(TimestampTz now);

private:
    void list(TimestampTz now);
    void want_databases(TimestampTz now);
    void step(const View& slot, TimestampTz now);
    void start(Oid database, TimestampTz now);
    void check_starting(const View& slot, TimestampTz now);
    void wake_at(TimestampTz at) { next_ = std::min(next_, at); }

    std::unordered_set<Oid> databases_; // those that may have a dispatcher
    std::unordered_map<Oid, TimestampTz> absent_until_;
    std::unordered_map<Oid, BackgroundWorkerHandle*> handles_; // of those that are starting
    bool told_full_ = false, told_no_room_ = false;
    TimestampTz list_at_ = 0, next_ = 0;
    int starting_ = 0;
};

TimestampTz Launcher::work(TimestampTz now) {
    if (shared::take_databases_changed() || now >= list_at_)
        list(now);
    next_ = list_at_;
    want_databases(now);

    starting_ = 0;
    for_slots([&](const View& slot) {
        if (slot.state == State::starting)
            check_starting(slot, now);
    });
    for_slots([&](const View& slot) { starting_ += slot.state == State::starting; });
    for_slots([&](const View& slot) { step(slot, now); });

    bool any_waits = false;
    for_slots([&](const View& slot) { any_waits |= slot.state == State::waiting_for_slot; });
    told_no_room_ &= any_waits;
    return next_;
}

// Gives slots to the databases that may have the extension, as far as it is not known that they
// have not.
void Launcher::want_databases(TimestampTz now) {
    std::unordered_set<Oid> have;
    std::size_t unsettled = 0;
    for_slots([&](const View& slot) {
        have.insert(slot.database);
        unsettled += slot.state == State::wanted || slot.state == State::starting ||
                     slot.state == State::waiting_for_slot;
    });
    for (Oid database : databases_) {
        if (have.contains(database))
            continue;
        auto absent = absent_until_.find(database);
        if (absent != absent_until_.end() && now < absent->second) {
            wake_at(absent->second);
            continue;
        }
        // The end of those there are wakes us.
        if (unsettled >= most_unsettled)
            continue;
        absent_until_.erase(database);
        if (shared::want(database))
            ++unsettled;
        else if (!std::exchange(told_full_, true))
            guarded([] {
                ereport(WARNING,
                        errmsg("jobq does not deliver in more than %zu databases of a server",
                               shared::most_databases));
            });
    }
}

void Launcher::list(TimestampTz now) {
    auto found = list_databases();
    databases_ = {found.begin(), found.end()};
    list_at_ = now + list_interval;

    auto is_gone = [this](const auto& entry) { return !databases_.contains(entry.first); };
    std::erase_if(absent_until_, is_gone);
}

void Launcher::check_starting(const View& slot, TimestampTz now) {
    auto handle = handles_.find(slot.database);
    if (slot.pid != 0)
        return;
    if (handle == handles_.end()) {
        if (now - slot.since > start_limit)
            shared::lost(slot.database, 0);
        else
            wake_at(slot.since + start_limit + second);
        return;
    }
    pid_t pid;
    // Its end wakes us: we are its bgw_notify_pid.
    if (guarded([&] { return GetBackgroundWorkerPid(handle->second, &pid); }) == BGWH_STOPPED)
        shared::lost(slot.database, 0);
}

void Launcher::step(const View& slot, TimestampTz now) {
    if (slot.state != State::starting)
        if (auto handle = handles_.extract(slot.database))
            pfree(handle.mapped());

    // Dropped, or closed to connections, or a template from now on. One that CREATE EXTENSION
    // brought before the list had it comes back with the next list.
    if (!databases_.contains(slot.database)) {
        shared::request_stop(slot.database);
        shared::forget(slot.database, false);
        return;
    }
    if (slot.pid != 0) {
        // A dispatcher detaches whatever way it ends, so this is for what cannot happen.
        if (kill(slot.pid, 0) != 0 && errno == ESRCH)
            shared::lost(slot.database, slot.pid);
        return;
    }
    switch (slot.state) {
    case State::absent:
        if (shared::forget(slot.database, true)) {
            absent_until_[slot.database] = now + absent_interval;
            wake_at(now); // another one's turn
        }
        return;
    case State::wanted:
    case State::stopped:
        break;
    case State::waiting_for_slot:
    case State::backing_off:
    case State::incompatible:
        if (now < slot.retry_at) {
            wake_at(slot.retry_at);
            return;
        }
        break;
    default:
        return;
    }
    // The end of a hold, and of a start, wakes us.
    if (slot.held || starting_ >= most_starting)
        return;
    start(slot.database, now);
}

void Launcher::start(Oid database, TimestampTz now) {
    BackgroundWorker worker{};
    set(worker.bgw_library_name, "jobq");
    set(worker.bgw_function_name, "jobq_dispatcher_main");
    set(worker.bgw_type, "jobq dispatcher");
    pg_snprintf(worker.bgw_name, sizeof(worker.bgw_name), "jobq dispatcher for database %u",
                database);
    worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
    worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
    worker.bgw_restart_time = BGW_NEVER_RESTART;
    worker.bgw_main_arg = ObjectIdGetDatum(database);
    worker.bgw_notify_pid = MyProcPid;

    // Before the registration: the worker may be there before that returns.
    shared::starting(database);
    BackgroundWorkerHandle* handle = nullptr;
    bool registered = guarded([&] {
        MemoryContextSwitchTo(TopMemoryContext);
        return RegisterDynamicBackgroundWorker(&worker, &handle);
    });
    if (registered) {
        ++starting_;
        handles_[database] = handle;
        return;
    }
    shared::no_room(database, now + no_room_interval);
    wake_at(now + no_room_interval);
    // Once for all that wait: status() lists them.
    if (!std::exchange(told_no_room_, true))
        guarded([&] {
            ereport(
                WARNING, errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
                errmsg("no worker slot for the jobq dispatcher of database %u", database),
                errdetail("It is started when a slot gets free; jobq.status() says which wait."),
                errhint("Raise max_worker_processes: jobq takes one, and one for each database "
                        "that has the extension."));
        });
}

void detach_at_exit(int, Datum) {
    shared::launcher_detach();
}

[[noreturn]] void run() {
    Launcher launcher;
    for (;;) {
        guarded([] {
            ResetLatch(MyLatch);
            CHECK_FOR_INTERRUPTS();
            if (ConfigReloadPending) {
                ConfigReloadPending = false;
                ProcessConfigFile(PGC_SIGHUP);
            }
        });
        TimestampTz next = launcher.work(GetCurrentTimestamp());
        guarded([&] {
            pgstat_report_activity(STATE_IDLE, nullptr);
            long timeout = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), next);
            WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, timeout,
                      PG_WAIT_EXTENSION);
        });
    }
}

} // namespace

void register_launcher() {
    BackgroundWorker worker{};
    set(worker.bgw_library_name, "jobq");
    set(worker.bgw_function_name, "jobq_launcher_main");
    set(worker.bgw_name, "jobq launcher");
    set(worker.bgw_type, "jobq launcher");
    worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
    worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
    worker.bgw_restart_time = 1;
    RegisterBackgroundWorker(&worker);
}

} // namespace jobq::worker

extern "C" PGDLLEXPORT void jobq_launcher_main(Datum) {
    using namespace jobq;
    pqsignal(SIGHUP, SignalHandlerForConfigReload);
    // Exits with 1, so that the postmaster starts the launcher again.
    pqsignal(SIGTERM, die);
    BackgroundWorkerUnblockSignals();

    before_shmem_exit(worker::detach_at_exit, 0);
    worker::shared::launcher_attach();
    BackgroundWorkerInitializeConnection(nullptr, nullptr, 0);
    pg::enter([] { worker::run(); });
}
