#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "core/text.hpp"
#include "pg/spin.hpp"
#include "queue/bounds.hpp"
#include "worker/endpoint_states.hpp"
#include "worker/shared.hpp"
#include "worker/test_mail.hpp"

extern "C" {
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/shmem.h"
}

namespace jobq::worker::shared {

namespace {

using pg::Spin;

constexpr TimestampTz second = USECS_PER_SEC;
// Who has slept so long is worth rousing.
constexpr TimestampTz cold_after = 1000;
constexpr TimestampTz longest_backoff = 60 * second;
// A dispatcher that lived for this long did not die young.
constexpr TimestampTz grown_up = 60 * second;
constexpr TimestampTz incompatible_retry = 60 * second;

struct Slot {
    slock_t lock;
    Oid database;
    State state;
    TimestampTz since, retry_at;
    int holds;
    int failures; // early deaths in a row
    int pid;      // from claim() to detach()
    int last_pid;
    Latch* latch;
    TimestampTz claimed_at;
    bool extension_changed; // and not seen by the dispatcher yet
    bool stop;
    bool signalled;       // there is mail, and the latch was set for it
    TimestampTz taken_at; // when there was mail last, or it was looked for
    Wakeup mail;
    Expected expected;
    uint32 prepared;
    int32 in_flight;
    int64 delivered, failed;
    char message[message_size];

    void become(State next, TimestampTz now) {
        state = next;
        since = now;
    }
};

struct Shared {
    LWLock* directory;
    struct {
        slock_t lock;
        int pid;
        Latch* latch;
        TimestampTz since;
        bool databases_changed;
    } launcher;
    Slot slots[most_databases];
};

Shared* memory;
// Where this database's slot was found the last time.
Slot* last_found;
// The dispatcher of this process.
Slot* mine;

shmem_request_hook_type previous_request_hook;
shmem_startup_hook_type previous_startup_hook;

// Few instructions and no calls that could fail: a spinlock may be held around it.
void set_text(char (&to)[message_size], std::string_view text) {
    std::size_t length = std::min(text.size(), message_size - 1);
    std::memcpy(to, text.data(), length);
    to[length] = '\0';
}

void request_shared_memory() {
    if (previous_request_hook != nullptr)
        previous_request_hook();
    RequestAddinShmemSpace(MAXALIGN(sizeof(Shared)));
    RequestAddinShmemSpace(MAXALIGN(queue::bounds::memory_size()));
    RequestAddinShmemSpace(MAXALIGN(endpoint_states::memory_size()));
    RequestAddinShmemSpace(MAXALIGN(test_mail::memory_size()));
    RequestNamedLWLockTranche("jobq", 1);
}

void attach(const char* name, std::size_t size, void (*initialize)(void*) noexcept,
            void (*use)(void*) noexcept) {
    bool found;
    void* place = ShmemInitStruct(name, size, &found);
    if (!found)
        initialize(place);
    use(place);
}

void attach_shared_memory() {
    if (previous_startup_hook != nullptr)
        previous_startup_hook();
    LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
    bool found;
    void* place = ShmemInitStruct("jobq", sizeof(Shared), &found);
    if (!found) {
        memory = new (place) Shared();
        memory->directory = &GetNamedLWLockTranche("jobq")->lock;
        SpinLockInit(&memory->launcher.lock);
        for (Slot& slot : memory->slots)
            SpinLockInit(&slot.lock);
    }
    memory = static_cast<Shared*>(place);
    attach("jobq bounds", queue::bounds::memory_size(), queue::bounds::initialize,
           queue::bounds::use);
    attach("jobq endpoints", endpoint_states::memory_size(), endpoint_states::initialize,
           endpoint_states::use);
    attach("jobq tests", test_mail::memory_size(), test_mail::initialize, test_mail::use);
    LWLockRelease(AddinShmemInitLock);
}

Slot* slot_of(Oid database) noexcept {
    if (memory == nullptr || database == InvalidOid)
        return nullptr;
    if (last_found != nullptr && last_found->database == database)
        return last_found;
    for (Slot& slot : memory->slots)
        if (slot.database == database)
            return last_found = &slot;
    return nullptr;
}

// f on the database's slot, under its lock. False: there is none (any more).
template <class F>
bool with(Oid database, F&& f) noexcept {
    Slot* slot = slot_of(database);
    if (slot == nullptr)
        return false;
    Spin spin(slot->lock);
    if (slot->database != database)
        return false;
    f(*slot);
    return true;
}

Slot* slot_for(Oid database) noexcept {
    if (Slot* slot = slot_of(database))
        return slot;
    LWLockAcquire(memory->directory, LW_EXCLUSIVE);
    Slot* slot = slot_of(database);
    for (std::size_t i = 0; slot == nullptr && i < most_databases; ++i) {
        Slot& candidate = memory->slots[i];
        if (candidate.database != InvalidOid)
            continue;
        TimestampTz now = GetCurrentTimestamp();
        Spin spin(candidate.lock);
        candidate.become(State::wanted, now);
        candidate.retry_at = candidate.claimed_at = 0;
        candidate.holds = candidate.failures = candidate.pid = candidate.last_pid = 0;
        candidate.latch = nullptr;
        candidate.extension_changed = candidate.stop = candidate.signalled = false;
        candidate.mail = Wakeup();
        candidate.prepared = 0;
        candidate.in_flight = 0;
        candidate.delivered = candidate.failed = 0;
        candidate.message[0] = '\0';
        candidate.database = database;
        slot = &candidate;
    }
    LWLockRelease(memory->directory);
    return slot;
}

void set(Latch* latch) noexcept {
    if (latch != nullptr)
        SetLatch(latch);
}

// To be called with the slot's lock held: the latch to set once it is not.
Latch* signal(Slot& slot) noexcept {
    if (slot.signalled)
        return nullptr;
    slot.signalled = slot.latch != nullptr;
    return slot.latch;
}

void extension_changed(Oid database) noexcept {
    TimestampTz now = GetCurrentTimestamp();
    Latch* latch = nullptr;
    if (slot_for(database) == nullptr)
        return;
    with(database, [&](Slot& slot) {
        slot.failures = 0;
        slot.retry_at = 0;
        slot.extension_changed = true;
        if (slot.pid != 0) {
            slot.mail.extension = true;
            latch = signal(slot);
        } else if (slot.state != State::starting) {
            slot.become(State::wanted, now);
        }
    });
    set(latch);
    wake_launcher(false);
}

} // namespace

const char* name_of(State state) {
    switch (state) {
    case State::wanted:
        return "wanted";
    case State::starting:
        return "starting";
    case State::waiting_for_slot:
        return "waiting_for_slot";
    case State::running:
        return "running";
    case State::foreign:
        return "foreign";
    case State::off:
        return "off";
    case State::failing:
        return "failing";
    case State::draining:
        return "draining";
    case State::backing_off:
        return "backing_off";
    case State::stopped:
        return "stopped";
    case State::incompatible:
        return "incompatible";
    case State::absent:
        return "absent";
    }
    return "unknown";
}

void request() {
    previous_request_hook = std::exchange(shmem_request_hook, request_shared_memory);
    previous_startup_hook = std::exchange(shmem_startup_hook, attach_shared_memory);
}

bool preloaded() noexcept {
    return memory != nullptr;
}

View view(std::size_t i) {
    Slot& slot = memory->slots[i];
    View out;
    Spin spin(slot.lock);
    out.database = slot.database;
    out.state = slot.state;
    out.pid = slot.pid;
    out.last_pid = slot.last_pid;
    out.since = slot.since;
    out.retry_at = slot.retry_at;
    out.held = slot.holds > 0;
    out.in_flight = slot.in_flight;
    out.delivered = slot.delivered;
    out.failed = slot.failed;
    std::memcpy(out.message.data(), slot.message, message_size);
    return out;
}

std::optional<View> find(Oid database) {
    Slot* slot = slot_of(database);
    if (slot == nullptr)
        return std::nullopt;
    View out = view(static_cast<std::size_t>(slot - memory->slots));
    return out.database == database ? std::optional(out) : std::nullopt;
}

LauncherView launcher() {
    Spin spin(memory->launcher.lock);
    return {memory->launcher.pid, memory->launcher.since};
}

bool dispatcher_runs() noexcept {
    bool runs = false;
    with(MyDatabaseId, [&](Slot& slot) { runs = slot.state == State::running; });
    return runs;
}

namespace {
bool expected(const Slot& slot, const Wakeup& wakeup) noexcept {
    auto streams = wakeup.streams.streams();
    return !wakeup.settings && !wakeup.scan_all && !wakeup.extension &&
           !wakeup.streams.overflowed() &&
           std::all_of(streams.begin(), streams.end(),
                       [&](const core::Stream& stream) { return slot.expected.contains(stream); });
}
} // namespace

void post(const Wakeup& wakeup) noexcept {
    if (wakeup.extension)
        extension_changed(MyDatabaseId);
    Latch* latch = nullptr;
    with(MyDatabaseId, [&](Slot& slot) {
        slot.mail.merge(wakeup);
        if (!expected(slot, wakeup))
            latch = signal(slot);
    });
    set(latch);
}

void rouse(const Wakeup& wakeup) noexcept {
    TimestampTz now = GetCurrentTimestamp();
    Latch* latch = nullptr;
    with(MyDatabaseId, [&](Slot& slot) {
        if (slot.signalled || now - slot.taken_at < cold_after || expected(slot, wakeup))
            return;
        slot.mail.merge(wakeup);
        latch = signal(slot);
    });
    set(latch);
}

void wake_dispatcher() noexcept {
    Latch* latch = nullptr;
    with(MyDatabaseId, [&](Slot& slot) { latch = slot.latch; });
    set(latch);
}

std::optional<std::size_t> slot_number() noexcept {
    Slot* slot = slot_of(MyDatabaseId);
    return slot == nullptr ? std::nullopt
                           : std::optional(static_cast<std::size_t>(slot - memory->slots));
}

void note_prepared() noexcept {
    with(MyDatabaseId, [](Slot& slot) {
        if (++slot.prepared == 0)
            slot.prepared = 1;
    });
}

bool has_prepared() noexcept {
    bool any = false;
    with(MyDatabaseId, [&](Slot& slot) { any = slot.prepared != 0; });
    return any;
}

void wake_launcher(bool databases_changed) noexcept {
    Latch* latch;
    {
        Spin spin(memory->launcher.lock);
        memory->launcher.databases_changed |= databases_changed;
        latch = memory->launcher.latch;
    }
    set(latch);
}

bool hold(Oid database) noexcept {
    Latch* latch = nullptr;
    bool found = with(database, [&](Slot& slot) {
        ++slot.holds;
        slot.stop = true;
        latch = signal(slot);
    });
    set(latch);
    return found;
}

void unhold(Oid database) noexcept {
    with(database, [](Slot& slot) {
        if (slot.holds > 0)
            --slot.holds;
    });
    wake_launcher(true);
}

void launcher_attach() {
    TimestampTz now = GetCurrentTimestamp();
    Spin spin(memory->launcher.lock);
    memory->launcher.pid = MyProcPid;
    memory->launcher.latch = &MyProc->procLatch;
    memory->launcher.since = now;
    memory->launcher.databases_changed = true;
}

void launcher_detach() noexcept {
    TimestampTz now = GetCurrentTimestamp();
    Spin spin(memory->launcher.lock);
    memory->launcher.pid = 0;
    memory->launcher.latch = nullptr;
    memory->launcher.since = now;
}

bool take_databases_changed() noexcept {
    Spin spin(memory->launcher.lock);
    return std::exchange(memory->launcher.databases_changed, false);
}

bool want(Oid database) {
    return slot_for(database) != nullptr;
}

void starting(Oid database) {
    TimestampTz now = GetCurrentTimestamp();
    with(database, [&](Slot& slot) { slot.become(State::starting, now); });
}

void no_room(Oid database, TimestampTz retry_at) {
    TimestampTz now = GetCurrentTimestamp();
    with(database, [&](Slot& slot) {
        slot.become(State::waiting_for_slot, now);
        slot.retry_at = retry_at;
    });
}

namespace {
// Who was told to end, and did, has not died: it comes back without a growing delay.
void back_off(Slot& slot, TimestampTz now, bool told = false) {
    bool young = !told && (slot.claimed_at == 0 || now - slot.claimed_at < grown_up);
    slot.failures = young ? std::min(slot.failures + 1, 16) : 1;
    TimestampTz delay = std::min(second << (slot.failures - 1), longest_backoff);
    slot.become(State::backing_off, now);
    slot.retry_at = now + delay;
}

void let_go(Slot& slot) {
    slot.last_pid = std::exchange(slot.pid, 0);
    slot.latch = nullptr;
    slot.stop = slot.signalled = false;
    slot.in_flight = 0;
}
} // namespace

void lost(Oid database, int pid) {
    TimestampTz now = GetCurrentTimestamp();
    with(database, [&](Slot& slot) {
        if (slot.pid != pid || (pid == 0 && slot.state != State::starting))
            return;
        let_go(slot);
        back_off(slot, now);
        set_text(slot.message, "the dispatcher ended before it could say why: see the server log");
    });
}

void request_stop(Oid database) {
    Latch* latch = nullptr;
    with(database, [&](Slot& slot) {
        if (slot.pid == 0)
            return;
        slot.stop = true;
        latch = signal(slot);
    });
    set(latch);
}

bool forget(Oid database, bool only_absent) {
    bool freed = false;
    LWLockAcquire(memory->directory, LW_EXCLUSIVE);
    with(database, [&](Slot& slot) {
        if (slot.pid != 0 || slot.holds > 0 || slot.state == State::starting)
            return;
        if (only_absent && slot.state != State::absent)
            return;
        slot.database = InvalidOid;
        freed = true;
    });
    LWLockRelease(memory->directory);
    return freed;
}

bool claim(Oid database) {
    TimestampTz now = GetCurrentTimestamp();
    if (slot_for(database) == nullptr)
        return false;
    bool claimed = false;
    with(database, [&](Slot& slot) {
        if (slot.pid != 0)
            return;
        if (slot.holds > 0) {
            slot.become(State::stopped, now);
            return;
        }
        slot.pid = MyProcPid;
        slot.latch = &MyProc->procLatch;
        slot.claimed_at = now;
        slot.stop = slot.signalled = slot.extension_changed = false;
        // Whatever was posted, the scan at the start finds it.
        slot.mail = Wakeup();
        slot.become(State::starting, now);
        claimed = true;
    });
    if (claimed)
        mine = slot_of(database);
    return claimed;
}

void ready() {
    TimestampTz now = GetCurrentTimestamp();
    endpoint_states::forget_all();
    {
        Spin spin(mine->lock);
        mine->become(State::running, now);
        mine->message[0] = '\0';
    }
    wake_launcher(false); // it starts few at a time
}

void become(State state, std::string_view message) {
    std::string fits = core::clip(message, message_size - 1);
    TimestampTz now = GetCurrentTimestamp();
    Spin spin(mine->lock);
    set_text(mine->message, fits);
    if (mine->state != State::draining && mine->state != state)
        mine->become(state, now);
}

void draining() {
    TimestampTz now = GetCurrentTimestamp();
    Spin spin(mine->lock);
    mine->become(State::draining, now);
}

void detach(Ending ending) noexcept {
    if (mine == nullptr)
        return;
    TimestampTz now = GetCurrentTimestamp();
    Slot& slot = *std::exchange(mine, nullptr);
    endpoint_states::forget_all();
    {
        Spin spin(slot.lock);
        let_go(slot);
        if (slot.extension_changed) {
            slot.become(State::wanted, now);
            slot.failures = 0;
        } else if (ending == Ending::absent) {
            slot.become(State::absent, now);
        } else if (ending == Ending::stopped) {
            slot.become(State::stopped, now);
        } else if (ending == Ending::incompatible) {
            slot.become(State::incompatible, now);
            slot.retry_at = now + incompatible_retry;
        } else {
            back_off(slot, now, ending == Ending::terminated);
        }
    }
    wake_launcher(false);
}

Mail take() {
    TimestampTz now = GetCurrentTimestamp();
    Spin spin(mine->lock);
    mine->taken_at = now;
    mine->signalled = false;
    mine->expected.clear();
    return {std::exchange(mine->mail, Wakeup()), mine->stop};
}

void expect(const Expected& streams) {
    Spin spin(mine->lock);
    mine->expected = streams;
}

bool mail_waiting() {
    Spin spin(mine->lock);
    return mine->signalled;
}

void extension_seen() {
    Spin spin(mine->lock);
    mine->extension_changed = mine->mail.extension;
}

void count(int64 delivered, int64 failed) {
    Spin spin(mine->lock);
    mine->delivered += delivered;
    mine->failed += failed;
}

void in_flight(std::size_t deliveries) {
    Spin spin(mine->lock);
    mine->in_flight = static_cast<int32>(deliveries);
}

void message(std::string_view text) {
    std::string fits = core::clip(text, message_size - 1);
    Spin spin(mine->lock);
    set_text(mine->message, fits);
}

uint32 prepared() {
    Spin spin(mine->lock);
    return mine->prepared;
}

void forget_prepared(uint32 noted) {
    Spin spin(mine->lock);
    if (mine->prepared == noted)
        mine->prepared = 0;
}

} // namespace jobq::worker::shared
