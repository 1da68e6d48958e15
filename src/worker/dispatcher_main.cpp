#include <algorithm>
#include <csignal>
#include <exception>
#include <memory>
#include <optional>
#include <string>

#include <fmt/format.h>
#include <sys/resource.h>

#include "pg/settings.hpp"
#include "pg/spi.hpp"
#include "pg/wait_event.hpp"
#include "pg/xact.hpp"
#include "worker/activity.hpp"
#include "worker/deliveries.hpp"
#include "worker/dispatcher_main.hpp"
#include "worker/shared.hpp"
#include "worker/test_mail.hpp"

extern "C" {
#include "commands/async.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
}

namespace jobq::worker {

namespace {

using pg::guarded;
using shared::Ending;

constexpr TimestampTz first_retry = 100 * 1000; // µs; doubles
constexpr TimestampTz longest_retry = 10 * USECS_PER_SEC;
// For a table that somebody has locked: a new process would do no better, and the lock may go any
// time.
constexpr TimestampTz longest_lock_retry = USECS_PER_SEC;
// Over 20 s of trying; a new process may do better.
constexpr int most_errors = 9;
constexpr rlim_t most_files = 65536;

volatile sig_atomic_t told_to_end;
Ending ending = Ending::failed;

// The first asks to drain; one who asks twice does not want to wait.
void on_sigterm(SIGNAL_ARGS) {
    if (told_to_end)
        die(postgres_signal_arg);
    int saved = errno;
    told_to_end = 1;
    SetLatch(MyLatch);
    errno = saved;
}

void detach_at_exit(int, Datum) {
    shared::detach(ending);
}

// Each delivery in flight is a socket.
void raise_file_limit() {
    rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return;
    rlim_t wanted = std::min(limit.rlim_max, most_files);
    if (limit.rlim_cur < wanted) {
        limit.rlim_cur = wanted;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

// Nothing an ALTER DATABASE or ALTER ROLE SET says may change what the worker's statements mean, or
// let them wait for a client. Triggers on the tables are not run: that would be with the worker's
// rights, and it needs none of jobq's own.
void pin_settings() {
    constexpr std::pair<const char*, const char*> settings[] = {
        {"application_name", "jobq dispatcher"},
        {"search_path", "pg_catalog, pg_temp"},
        {"default_transaction_isolation", "read committed"},
        {"default_transaction_read_only", "off"},
        {"session_replication_role", "replica"},
        {"role", "none"},
        {"lock_timeout", "100ms"},
        {"statement_timeout", "0"},
        {"idle_in_transaction_session_timeout", "0"},
#if PG_VERSION_NUM >= 170000
        {"transaction_timeout", "0"},
#endif
        {"plan_cache_mode", "auto"},
        {"enable_indexscan", "on"},
        {"enable_indexonlyscan", "on"},
        {"enable_nestloop", "on"},
        {"enable_sort", "on"},
        {"enable_seqscan", "off"},
        {"enable_hashjoin", "off"},
        {"enable_mergejoin", "off"},
        {"enable_bitmapscan", "off"},
        {"max_parallel_workers_per_gather", "0"},
        {"jit", "off"},
    };
    for (auto [name, value] : settings)
        SetConfigOption(name, value, PGC_SUSET, PGC_S_OVERRIDE);
}

struct Installed {
    Oid oid;
    std::string version;
};

std::optional<Installed> find_extension() {
    static pg::Statement find("SELECT e.oid::pg_catalog.int8, e.extversion "
                              "FROM pg_catalog.pg_extension e WHERE e.extname = 'jobq'");
    std::optional<Installed> found;
    pg::Transaction transaction;
    {
        pg::Spi spi;
        for (pg::Row row : find.run(spi))
            found = Installed{static_cast<Oid>(row.int8(1)), std::string(row.text(2))};
    }
    transaction.commit();
    return found;
}

bool any_prepared() {
    static pg::Statement find("SELECT 1 FROM pg_catalog.pg_prepared_xact() p "
                              "WHERE p.dbid OPERATOR(pg_catalog.=) $1::pg_catalog.oid LIMIT 1");
    bool found;
    pg::Transaction transaction;
    {
        pg::Spi spi;
        found = !find.run(spi, {pg::param(static_cast<int64>(MyDatabaseId))}).empty();
    }
    transaction.commit();
    return found;
}

void listen() {
    pg::Transaction transaction;
    guarded([] { Async_Listen(queue::wake::dispatcher_channel); });
    transaction.commit();
}

// Any NOTIFY in the database wakes us, our own announcements too. Which were on the channel we
// LISTEN on is only told to the log, as INFO, so the log is asked for that much and hears nothing
// of it.
bool reading_notifications;
int notifications;
emit_log_hook_type previous_log_hook;

void count_notifications(ErrorData* said) {
    if (reading_notifications && said->elevel == INFO) {
        said->output_to_server = false;
        ++notifications;
    } else if (previous_log_hook != nullptr) {
        previous_log_hook(said);
    }
}

// Catches up with the notifications; returns how many were for us. Outside of transactions.
int read_notifications() {
    struct Asking {
        Asking() { reading_notifications = true, log_min_messages = INFO; }
        ~Asking() { reading_notifications = false, log_min_messages = level; }
        int level = log_min_messages;
    } asking;
    notifications = 0;
    guarded([] { ProcessNotifyInterrupt(false); });
    return notifications;
}

// The one place that sleeps: latch, postmaster, and the deliveries' sockets.
class Waiter {
public:
    explicit Waiter(int fd) {
        set_ = guarded([fd] {
#if PG_VERSION_NUM >= 170000
            WaitEventSet* set = CreateWaitEventSet(nullptr, 3);
#else
            WaitEventSet* set = CreateWaitEventSet(TopMemoryContext, 3);
#endif
            AddWaitEventToSet(set, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, nullptr);
            AddWaitEventToSet(set, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, nullptr, nullptr);
            AddWaitEventToSet(set, WL_SOCKET_READABLE, fd, nullptr, nullptr);
            return set;
        });
    }
    ~Waiter() {
        FreeWaitEventSet(set_);
    }
    Waiter(const Waiter&) = delete;
    Waiter& operator=(const Waiter&) = delete;

    void wait_for_latch(TimestampTz until) {
        guarded([&] {
            long timeout = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), until);
            WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, timeout,
                      wait_event_);
        });
    }

    void wait_until(TimestampTz at) {
        guarded([&] {
            WaitEvent event;
            long timeout = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), at);
            WaitEventSetWait(set_, timeout, &event, 1, wait_event_);
        });
    }

private:
    WaitEventSet* set_;
    uint32 wait_event_ = pg::wait_event("JobqDispatcherMain");
};

class Dispatcher {
public:
    explicit Dispatcher(Oid extension) : extension_(extension), waiter_(deliveries_.fd()) {}

    // Until it is to end.
    void run();

private:
    bool done(); // one turn of the loop; true: it is to end
    bool checked(TimestampTz now);
    void failed(int sqlstate, const std::string& what);
    void tell(shared::State state, const std::string& message);
    void give_back();
    void sleep();

    Oid extension_;
    Deliveries deliveries_;
    Waiter waiter_;
    Activity activity_;
    std::size_t in_flight_ = 0; // as told of
    // What is to be passed on, and is kept until work() has returned.
    Deliveries::Woken woken_{.streams = {}, .settings = true, .scan_all = true};
    bool look_at_extension_ = false;
    bool draining_ = false;
    TimestampTz drain_until_ = 0, check_at_ = 0, next_ = 0, resume_at_ = 0;
    shared::State state_ = shared::State::running; // as told of, with this:
    std::string message_;
    int errors_ = 0;          // in a row
    bool locked_out_ = false; // the last one was a lock timeout
};

void Dispatcher::run() {
    for (;;) {
        try {
            if (done())
                return;
        } catch (const pg::Error& error) {
            failed(error.sqlstate, error.message);
        } catch (const std::exception& error) {
            failed(ERRCODE_INTERNAL_ERROR, error.what());
        }
        if (errors_ > most_errors && !locked_out_) {
            give_back();
            return;
        }
        sleep();
    }
}

bool Dispatcher::done() {
    guarded([] {
        ResetLatch(MyLatch);
        CHECK_FOR_INTERRUPTS();
        if (ConfigReloadPending) {
            ConfigReloadPending = false;
            ProcessConfigFile(PGC_SIGHUP);
        }
    });
    // First: the settings that were committed before it came are in the mail then.
    auto test = test_mail::waiting();
    auto mail = shared::take();
    woken_.streams.merge(mail.wakeup.streams);
    woken_.settings |= mail.wakeup.settings;
    woken_.scan_all |= mail.wakeup.scan_all;
    look_at_extension_ |= mail.wakeup.extension;
    if (mail.stop) {
        give_back();
        ending = Ending::stopped;
        return true;
    }
    if (notifyInterruptPending && read_notifications() > 0)
        woken_.scan_all = true;

    TimestampTz now = GetCurrentTimestamp();
    if (told_to_end && !draining_) {
        ending = Ending::terminated;
        draining_ = true;
        drain_until_ = now + pg::settings::drain_timeout() / std::chrono::microseconds(1);
        shared::draining();
        deliveries_.begin_drain();
    }
    if (draining_ && now >= drain_until_) {
        give_back();
        return true;
    }
    if (now < resume_at_)
        return false;
    if ((look_at_extension_ || now >= check_at_) && !checked(now))
        return true;

    next_ = deliveries_.work(woken_);
    woken_ = {};
    shared::expect(deliveries_.expected());
    errors_ = 0;
    locked_out_ = false;
    tell(deliveries_.state(), deliveries_.trouble());
    in_flight_ = deliveries_.in_flight();
    shared::in_flight(in_flight_);
    if (test && !draining_ && test_mail::take(*test))
        deliveries_.send_test(*test);

    if (draining_ && in_flight_ == 0) {
        give_back();
        return true;
    }
    return false;
}

// Looks after what happens without a word to us. False: this is not the extension we began with.
bool Dispatcher::checked(TimestampTz now) {
    shared::extension_seen();
    auto installed = find_extension();
    if (!installed || installed->oid != extension_ || installed->version != JOBQ_VERSION) {
        // The next dispatcher finds out what is there instead. The tables are gone, or another
        // version's: nothing can be given back.
        ending = installed ? Ending::stopped : Ending::absent;
        return false;
    }
    look_at_extension_ = false;
    check_at_ = now + pg::settings::scan_interval() / std::chrono::microseconds(1);
    if (uint32 noted = shared::prepared(); noted != 0 && !any_prepared())
        shared::forget_prepared(noted);
    return true;
}

void Dispatcher::failed(int sqlstate, const std::string& what) {
    pg::recover();
    bool locked_out = sqlstate == ERRCODE_LOCK_NOT_AVAILABLE;
    bool logged = std::exchange(locked_out_, locked_out) && locked_out;
    TimestampTz delay = std::min(first_retry << std::min(errors_, 16),
                                 locked_out ? longest_lock_retry : longest_retry);
    ++errors_;
    resume_at_ = GetCurrentTimestamp() + delay;
    check_at_ = 0; // a dropped extension looks like any other error
    woken_.settings = woken_.scan_all = true;
    tell(locked_out ? state_ : shared::State::failing, what);
    if (logged)
        return;
    guarded([&] {
        ereport(
            LOG, errcode(sqlstate),
            errmsg("jobq dispatcher: %s (SQLSTATE %s)", what.c_str(), unpack_sql_state(sqlstate)),
            errdetail("Tried again in %d ms.", static_cast<int>(delay / 1000)));
    });
}

void Dispatcher::tell(shared::State state, const std::string& message) {
    if (state == state_ && message == message_)
        return;
    shared::become(state, message);
    if (state == shared::State::foreign && state_ != state)
        guarded([] {
            ereport(
                LOG,
                errmsg("jobq dispatcher: nothing is delivered in this database, because its jobs "
                       "belong to another one, of which it is a copy"),
                errhint("SELECT jobq.adopt() makes this one their home."));
        });
    state_ = state;
    message_ = message;
}

void Dispatcher::give_back() {
    try {
        deliveries_.give_back();
    } catch (const std::exception& error) {
        // Their leases run out, or the next dispatcher takes them up.
        pg::recover();
        guarded([&] {
            ereport(LOG, errmsg("jobq dispatcher: could not give back its jobs: %s", error.what()));
        });
    }
}

void Dispatcher::sleep() {
    TimestampTz show_at = activity_.show(draining_ ? shared::State::draining : state_, in_flight_);
    // Somewhere below, a wait for a lock may have reset the latch that told of these.
    if (shared::mail_waiting() || ConfigReloadPending || (told_to_end && !draining_))
        return;
    if (errors_ == 0 && (notifyInterruptPending || (test_mail::waiting() && !draining_)))
        return;
    TimestampTz until = errors_ > 0 ? resume_at_ : std::min(next_, check_at_);
    until = std::min(until, show_at);
    if (draining_)
        until = std::min(until, drain_until_);
    if (errors_ > 0) { // the sockets would not let it sleep
        waiter_.wait_for_latch(until);
        return;
    }
    // PostgreSQL's own timeouts are whole milliseconds.
    deliveries_.wake_in(std::chrono::microseconds(until - GetCurrentTimestamp()));
    waiter_.wait_until(until);
}

void run() {
    auto installed = find_extension();
    if (!installed) {
        ending = Ending::absent;
        return;
    }
    if (installed->version != JOBQ_VERSION) {
        shared::message(fmt::format("version {} is installed, the server's library is {}: "
                                    "ALTER EXTENSION jobq UPDATE, or restart the server",
                                    installed->version, JOBQ_VERSION));
        ending = Ending::incompatible;
        return;
    }
    pqsignal(SIGTERM, on_sigterm);
    // LISTEN first, scan second: nothing is missed between them.
    previous_log_hook = std::exchange(emit_log_hook, count_notifications);
    listen();
    // Prepared before this server was started, and so not noted.
    if (shared::prepared() == 0 && any_prepared())
        shared::note_prepared();
    auto dispatcher = std::make_unique<Dispatcher>(installed->oid);
    shared::ready();
    dispatcher->run();
}

} // namespace

} // namespace jobq::worker

void jobq_dispatcher_main(Datum argument) {
    using namespace jobq;
    using namespace jobq::worker;
    Oid database = DatumGetObjectId(argument);

    // Until it has something to drain: the connection may wait for a lock on the database.
    pqsignal(SIGTERM, die);
    pqsignal(SIGHUP, SignalHandlerForConfigReload);
    BackgroundWorkerUnblockSignals();
    raise_file_limit();

    if (!shared::claim(database))
        proc_exit(0);
    before_shmem_exit(detach_at_exit, 0);
    BackgroundWorkerInitializeConnectionByOid(database, InvalidOid, 0);
    pin_settings();

    pg::enter([&] {
        try {
            run();
        } catch (const std::exception& error) {
            shared::message(error.what());
            throw;
        }
    });
    // Never 2 or more: the postmaster would take it for a crash and restart everybody.
    proc_exit(ending == Ending::failed || ending == Ending::terminated ? 1 : 0);
}
