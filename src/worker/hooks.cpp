#include <array>
#include <cstring>
#include <utility>

#include "pg/error.hpp"
#include "queue/bounds.hpp"
#include "worker/hooks.hpp"
#include "worker/shared.hpp"

extern "C" {
#include "catalog/pg_database.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "nodes/parsenodes.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "tcop/utility.h"
#include "utils/acl.h"
}

// PostgreSQL's errors jump over the frames of this file: none of them holds anything with a
// destructor, and nothing in it throws.
namespace jobq::worker {

namespace {

constexpr int stop_limit_ms = 5000; // as long as DROP DATABASE itself waits for others to go
constexpr int stop_poll_ms = 10;

ProcessUtility_hook_type previous_hook;

// What this transaction has to put right when it ends.
std::array<Oid, 16> held;
std::size_t held_size;
bool databases_changed;

void on_transaction(XactEvent event, void*) {
    if (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT && event != XACT_EVENT_PREPARE)
        return;
    while (held_size > 0)
        shared::unhold(held[--held_size]);
    if (std::exchange(databases_changed, false))
        shared::wake_launcher(true);
}

bool may_stop(Oid database) {
#if PG_VERSION_NUM >= 160000
    return object_ownercheck(DatabaseRelationId, database, GetUserId());
#else
    return pg_database_ownercheck(database, GetUserId());
#endif
}

// Between its detach() and its end a process still counts as connected. DROP DATABASE waits for
// that, but DROP DATABASE WITH (FORCE) by one who is no superuser is refused.
bool is_connected(int pid, Oid database) {
    const PGPROC* process = pid == 0 ? nullptr : BackendPidGetProc(pid);
    return process != nullptr && process->databaseId == database;
}

// Where the command is going to be refused, nothing is stopped: that error is PostgreSQL's to give.
void stop_dispatcher(const char* name) {
    Oid database = name == nullptr ? InvalidOid : get_database_oid(name, true);
    if (database == InvalidOid || database == MyDatabaseId || !may_stop(database))
        return;
    if (held_size == held.size() || !shared::hold(database))
        return;
    held[held_size++] = database;

    for (int waited = 0; waited < stop_limit_ms; waited += stop_poll_ms) {
        CHECK_FOR_INTERRUPTS();
        auto slot = shared::find(database);
        if (!slot || (slot->pid == 0 && !is_connected(slot->last_pid, database)))
            return;
        int events = WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
                               stop_poll_ms, PG_WAIT_EXTENSION);
        if ((events & WL_LATCH_SET) != 0)
            ResetLatch(MyLatch);
    }
    // It did not go in time: the command says who is connected.
}

DefElem* option(List* options, const char* name) {
    ListCell* cell;
    foreach (cell, options) {
        auto* element = lfirst_node(DefElem, cell);
        if (std::strcmp(element->defname, name) == 0)
            return element;
    }
    return nullptr;
}

bool names_jobq(List* objects) {
    ListCell* cell;
    foreach (cell, objects)
        if (IsA(lfirst(cell), String) && std::strcmp(strVal(lfirst(cell)), "jobq") == 0)
            return true;
    return false;
}

// What the command of a statement is to us.
enum class Kind { other, databases, extension, end_prepared };

Kind before(Node* statement) {
    switch (nodeTag(statement)) {
    case T_DropdbStmt:
        stop_dispatcher(castNode(DropdbStmt, statement)->dbname);
        return Kind::databases;
    case T_CreatedbStmt: {
        DefElem* from = option(castNode(CreatedbStmt, statement)->options, "template");
        if (from != nullptr && from->arg != nullptr)
            stop_dispatcher(defGetString(from));
        return Kind::databases;
    }
    case T_AlterDatabaseStmt: {
        auto* alter = castNode(AlterDatabaseStmt, statement);
        if (option(alter->options, "tablespace") != nullptr)
            stop_dispatcher(alter->dbname);
        return Kind::databases;
    }
    case T_RenameStmt: {
        auto* rename = castNode(RenameStmt, statement);
        if (rename->renameType != OBJECT_DATABASE)
            return Kind::other;
        stop_dispatcher(rename->subname);
        return Kind::databases;
    }
    case T_DropStmt: {
        auto* drop = castNode(DropStmt, statement);
        bool ours = drop->removeType == OBJECT_EXTENSION && names_jobq(drop->objects);
        return ours ? Kind::extension : Kind::other;
    }
    case T_AlterExtensionStmt: {
        const char* name = castNode(AlterExtensionStmt, statement)->extname;
        return std::strcmp(name, "jobq") == 0 ? Kind::extension : Kind::other;
    }
    case T_TransactionStmt: {
        auto kind = castNode(TransactionStmt, statement)->kind;
        bool ends = kind == TRANS_STMT_COMMIT_PREPARED || kind == TRANS_STMT_ROLLBACK_PREPARED;
        return ends ? Kind::end_prepared : Kind::other;
    }
    default:
        return Kind::other;
    }
}

void after(Kind kind) {
    switch (kind) {
    case Kind::databases:
        databases_changed = true;
        break;
    case Kind::extension:
        pg::enter([] { queue::wake::note_extension(); });
        break;
    case Kind::end_prepared:
        // Which queues it pushed to or pulled from is forgotten by now.
        if (shared::has_prepared()) {
            queue::bounds::forget_all();
            shared::Wakeup wakeup;
            wakeup.scan_all = wakeup.settings = true;
            shared::post(wakeup);
        }
        break;
    case Kind::other:
        break;
    }
}

void process_utility(PlannedStmt* planned, const char* query, bool read_only_tree,
                     ProcessUtilityContext context, ParamListInfo params,
                     QueryEnvironment* environment, DestReceiver* dest,
                     QueryCompletion* completion) {
    Kind kind = before(planned->utilityStmt);
    auto next = previous_hook != nullptr ? previous_hook : standard_ProcessUtility;
    next(planned, query, read_only_tree, context, params, environment, dest, completion);
    after(kind);
}

} // namespace

void install_hooks() {
    previous_hook = std::exchange(ProcessUtility_hook, process_utility);
    // In the postmaster, for every process it forks.
    RegisterXactCallback(on_transaction, nullptr);
}

} // namespace jobq::worker
