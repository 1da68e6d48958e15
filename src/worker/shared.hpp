// What launcher, dispatchers and backends know of each other: shared memory with an entry for the
// launcher and a slot for each database that has jobq, or may have.
//
// A slot's states and who moves it between them. Each transition is one function below.
//
//    want(), CREATE EXTENSION
//          │
//          ▼                no_room()
//       wanted ──▶ starting() ─────────▶ waiting_for_slot ──┐
//                  │   ▲  ▲                                 │ after a second
//                  │   │  └─────────────────────────────────┘
//          ready() │   └────────────────────────────────────┐
//                  ▼                                        │ after a delay, or a hold
//    others ◀──▶ running                                    │
//     become()     ├──▶ draining ──▶ backing_off ───────────┤
//       draining() ├── failed, lost() ──▶ backing_off ──────┤
//                  ├── asked to stop ──▶ stopped ───────────┤
//                  ├── another version ──▶ incompatible ────┘
//                  └── no extension ──▶ absent ── forget() ──▶ no slot
//
// - wanted: a dispatcher is to be started. New databases begin here: only a worker that connects
//   can tell whether the extension is there.
// - starting: its worker is registered. The dispatcher then claims the slot (claim()), before it
//   connects, so that whoever wants it gone knows its process. It may end here in the ways it ends
//   when it runs.
// - waiting_for_slot: no background worker slot was free (max_worker_processes). Tried each second.
// - running: it delivers. foreign: it is connected, but the jobs are those of another database, of
//   which this one is a copy, and wait for jobq.adopt(). off: jobq.deliver is. failing: it does not
//   get on, and tries again; the message says why.
// - draining: told to end by SIGTERM, it finishes what is in flight.
// - backing_off: it ended. Started again after a second, and after up to a minute where it keeps
//   dying young.
// - stopped: ended for a DROP DATABASE or the like. Started again once no command holds it (hold(),
//   until the command's transaction ends).
// - incompatible: the installed version is not the library's. Looked at again each minute, and at
//   once after ALTER EXTENSION.
// - absent: no extension. The launcher frees the slot and remembers the database itself.
//
// CREATE, ALTER and DROP EXTENSION, once committed, make a slot without a dispatcher wanted, and a
// dispatcher look; if it ends meanwhile, its slot becomes wanted instead of what it would have.
//
// Whatever way a dispatcher ends, detach() decides the next state, out of before_shmem_exit. Only
// the launcher starts dispatchers and frees slots.
//
// Locks, in this order: the directory lock (an LWLock: which slot is whose), then one slot's or the
// launcher's spinlock, never two of them. Latches are set with no spinlock held: they belong to
// PGPROC entries, which outlive their processes, so that a late one is a spurious wake-up of
// somebody.
#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "queue/wake.hpp"

namespace jobq::worker::shared {

using queue::wake::Wakeup;

// Databases with jobq on one server; beyond that the launcher says so in the log.
constexpr std::size_t most_databases = 256;
constexpr std::size_t message_size = 256;

enum class State : int {
    wanted,
    starting,
    waiting_for_slot,
    running,
    foreign,
    off,
    failing,
    draining,
    backing_off,
    stopped,
    incompatible,
    absent,
};
const char* name_of(State state);

// A slot as it was a moment ago.
struct View {
    Oid database = InvalidOid; // InvalidOid: the slot is free
    State state = State::wanted;
    int pid = 0;      // 0: no dispatcher
    int last_pid = 0; // the last one that detached: it may still be on its way out
    TimestampTz since = 0, retry_at = 0;
    bool held = false;
    int32 in_flight = 0;
    int64 delivered = 0, failed = 0;
    std::array<char, message_size> message{};
};

struct LauncherView {
    int pid = 0;
    TimestampTz since = 0;
};

// From _PG_init, while shared_preload_libraries are loaded.
void request();
// Whether this process has the shared memory: the library was preloaded.
bool preloaded() noexcept;

std::optional<View> find(Oid database);
View view(std::size_t slot); // 0 to most_databases - 1
LauncherView launcher();

// -- Backends. Those marked * are for commit callbacks: they neither fail nor allocate.

bool dispatcher_runs() noexcept;          // * in this database, and delivers
void post(const Wakeup& wakeup) noexcept; // * to this database's dispatcher, if there is one
// Before the commit: wakes a dispatcher that has slept for a while. It looks, in vain, while the
// commit is being flushed, and has what it needs in the caches when post() follows.
void rouse(const Wakeup& wakeup) noexcept;
void wake_dispatcher() noexcept; // of this database, without mail
// Which of the slots is this database's, for what stands beside them.
std::optional<std::size_t> slot_number() noexcept;
void note_prepared() noexcept; // * a transaction of this database with notes was prepared
bool has_prepared() noexcept;  // whether one may still be waiting
void wake_launcher(bool databases_changed) noexcept; // *
// Asks a database's dispatcher to end at once and keeps it from being started until unhold().
// False: no slot, so no dispatcher.
bool hold(Oid database) noexcept;
void unhold(Oid database) noexcept; // *

// -- The launcher.

void launcher_attach();
void launcher_detach() noexcept;
bool take_databases_changed() noexcept;
// False: all slots are taken.
bool want(Oid database);
void starting(Oid database);
void no_room(Oid database, TimestampTz retry_at);
void lost(Oid database, int pid); // pid: the process that is not there any more, or 0
void request_stop(Oid database);
// Frees the slot if it has no dispatcher. With only_absent: if its state is absent.
bool forget(Oid database, bool only_absent);

// -- The dispatcher of this process.

enum class Ending { failed, terminated, stopped, absent, incompatible };

// Takes the slot for this process. False: it is held, or has a dispatcher already.
bool claim(Oid database);
void ready();
// Running, foreign, off or failing, with what jobq.status() is to say of it; cut to what fits. Not
// while it drains.
void become(State state, std::string_view message);
void draining();
void detach(Ending ending) noexcept;

struct Mail {
    Wakeup wakeup;
    bool stop = false; // give back and end
};
Mail take(); // and expects nothing from then on
// Streams that are looked at soon in any case: what is posted about these alone waits in the mail
// without a wake-up. Not more than it holds.
using Expected = core::StreamSet<128>;
void expect(const Expected& streams);
bool mail_waiting();
// What CREATE EXTENSION, ALTER EXTENSION and DROP EXTENSION changed was looked at.
void extension_seen();
// Deliveries that ended since the last call, for status().
void count(int64 delivered, int64 failed); // for Deliveries
void in_flight(std::size_t deliveries);
void message(std::string_view text); // of one that ends; cut to what fits
// The number of prepared transactions noted, for forget_prepared() once none was found.
uint32 prepared();
void forget_prepared(uint32 noted);

} // namespace jobq::worker::shared
