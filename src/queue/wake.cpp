#include <algorithm>
#include <array>
#include <cstring>

#include "pg/call.hpp"
#include "queue/wake.hpp"

extern "C" {
#include "commands/async.h"
#include "commands/trigger.h"
}

namespace jobq::queue::wake {

namespace {

constexpr std::size_t most_queues = 32;

// Nest levels are those of GetCurrentTransactionNestLevel(): 1 is the transaction itself, and 0
// here means "not noted". An entry belongs to the outermost level that noted it.
struct Noted {
    int32 id;
    int level;
    char channel[NAMEDATALEN];
};

struct Pending {
    std::array<Noted, most_queues> queues;
    std::size_t size;
    int overflow, settings, extension;

    bool empty() const { return size == 0 && overflow + settings + extension == 0; }
    void clear() { size = 0, overflow = settings = extension = 0; }
};

Pending pending;
const Listener* listener;
bool callbacks_registered;

void set_level(int& level, int now) {
    level = level == 0 ? now : std::min(level, now);
}

void write_channel(char (&channel)[NAMEDATALEN], std::string_view name) {
    std::size_t prefix = channel_prefix.size();
    std::size_t length = std::min(name.size(), sizeof(channel) - prefix - 1);
    std::memcpy(channel, channel_prefix.data(), prefix);
    std::memcpy(channel + prefix, name.data(), length);
    channel[prefix + length] = '\0';
}

bool dispatcher_present() {
    return listener != nullptr && listener->present();
}

// The notice waits until here because an install script shows warnings only.
//
// At the last moment before the commit: a dispatcher that died since the push is known to be gone,
// and a transaction that is prepared has sent none, which would make the PREPARE impossible.
void before_commit() {
    if (pending.extension != 0 && listener == nullptr)
        ereport(NOTICE, errmsg("jobq is installed, but this server does not deliver jobs yet"),
                errdetail(
                    "The library was not loaded at server start. Everything in SQL works; jobs of "
                    "queues with an endpoint wait."),
                errhint("Add jobq to shared_preload_libraries and restart the server."));
    if (dispatcher_present())
        return;
    Async_Notify(dispatcher_channel, "");
    for (std::size_t i = 0; i < pending.size; ++i)
        Async_Notify(pending.queues[i].channel, "");
}

void after_commit() noexcept {
    Wakeup wakeup;
    for (std::size_t i = 0; i < pending.size; ++i)
        wakeup.queues.add(pending.queues[i].id);
    if (pending.overflow != 0)
        wakeup.queues.add_all();
    wakeup.settings = pending.settings != 0;
    wakeup.extension = pending.extension != 0;
    listener->committed(wakeup);
}

// PostgreSQL calls these two; before_commit() may raise over them, so nothing here needs a
// destructor.
void on_transaction(XactEvent event, void*) {
    if (pending.empty())
        return;
    switch (event) {
    case XACT_EVENT_PRE_COMMIT:
        before_commit();
        break;
    case XACT_EVENT_COMMIT:
        if (listener != nullptr)
            after_commit();
        pending.clear();
        break;
    case XACT_EVENT_PREPARE:
        if (listener != nullptr)
            listener->prepared();
        pending.clear();
        break;
    case XACT_EVENT_ABORT:
        pending.clear();
        break;
    default:
        break;
    }
}

void drop_from(int& level, int aborted) {
    if (level >= aborted)
        level = 0;
}

void on_subtransaction(SubXactEvent event, SubTransactionId, SubTransactionId, void*) {
    if (pending.empty())
        return;
    int level = GetCurrentTransactionNestLevel();
    if (event == SUBXACT_EVENT_ABORT_SUB) {
        auto* end = std::remove_if(pending.queues.data(), pending.queues.data() + pending.size,
                                   [level](const Noted& noted) { return noted.level >= level; });
        pending.size = static_cast<std::size_t>(end - pending.queues.data());
        drop_from(pending.overflow, level);
        drop_from(pending.settings, level);
        drop_from(pending.extension, level);
    } else if (event == SUBXACT_EVENT_COMMIT_SUB) {
        for (std::size_t i = 0; i < pending.size; ++i)
            pending.queues[i].level = std::min(pending.queues[i].level, level - 1);
        for (int* noted : {&pending.overflow, &pending.settings, &pending.extension})
            *noted = std::min(*noted, level - 1);
    }
}

void register_callbacks() {
    if (callbacks_registered)
        return;
    pg::guarded([] {
        RegisterXactCallback(on_transaction, nullptr);
        RegisterSubXactCallback(on_subtransaction, nullptr);
    });
    callbacks_registered = true;
}

} // namespace

void note(int32 queue_id, std::string_view name) {
    register_callbacks();
    int level = GetCurrentTransactionNestLevel();
    for (std::size_t i = 0; i < pending.size; ++i) {
        if (pending.queues[i].id != queue_id)
            continue;
        set_level(pending.queues[i].level, level);
        return;
    }
    if (pending.size < most_queues) {
        Noted& noted = pending.queues[pending.size++];
        noted.id = queue_id;
        noted.level = level;
        write_channel(noted.channel, name);
        return;
    }
    set_level(pending.overflow, level);
    if (!dispatcher_present()) {
        char channel[NAMEDATALEN];
        write_channel(channel, name);
        pg::guarded([&] { Async_Notify(channel, ""); });
    }
}

void note_settings() {
    register_callbacks();
    set_level(pending.settings, GetCurrentTransactionNestLevel());
}

void note_extension() {
    register_callbacks();
    set_level(pending.extension, GetCurrentTransactionNestLevel());
}

void deliver_to(const Listener& to) {
    static Listener kept;
    kept = to;
    listener = &kept;
}

} // namespace jobq::queue::wake

namespace {
namespace pg = jobq::pg;
namespace wake = jobq::queue::wake;
} // namespace

JOBQ_FUNCTION(jobq_settings_changed) {
    if (!CALLED_AS_TRIGGER(call.info()))
        throw pg::Error(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED,
                        "function \"settings_changed\" was not called by the trigger manager");
    wake::note_settings();
    return 0;
}

// The end of the install and update scripts.
JOBQ_FUNCTION(jobq_installed) {
    wake::note_extension();
    return 0;
}
