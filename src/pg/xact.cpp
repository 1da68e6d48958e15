#include "pg/xact.hpp"

extern "C" {
#include "pgstat.h"
#include "storage/lwlock.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
}

namespace jobq::pg {

Subtransaction::Subtransaction() : context_(CurrentMemoryContext), owner_(CurrentResourceOwner) {
    guarded([this] {
        BeginInternalSubTransaction(nullptr);
        MemoryContextSwitchTo(context_);
    });
}

void Subtransaction::commit() {
    guarded([] { ReleaseCurrentSubTransaction(); });
    open_ = false;
    MemoryContextSwitchTo(context_);
    CurrentResourceOwner = owner_;
}

Subtransaction::~Subtransaction() {
    if (!open_)
        return;
    // Where even this fails, the abort of the whole transaction cleans up.
    if (!detail::run([](void*) { RollbackAndReleaseCurrentSubTransaction(); }, nullptr))
        FlushErrorState();
    MemoryContextSwitchTo(context_);
    CurrentResourceOwner = owner_;
}

Transaction::Transaction() {
    guarded([] {
        SetCurrentStatementStartTimestamp();
        StartTransactionCommand();
        PushActiveSnapshot(GetTransactionSnapshot());
    });
}

void Transaction::commit() {
    guarded([] {
        PopActiveSnapshot();
        CommitTransactionCommand();
        // Otherwise autovacuum never learns of a worker's churn.
        pgstat_report_stat(true);
    });
    open_ = false;
}

Transaction::~Transaction() {
    if (open_ && !detail::run([](void*) { AbortCurrentTransaction(); }, nullptr))
        FlushErrorState();
}

void recover() {
    guarded([] {
        AbortCurrentTransaction();
        LWLockReleaseAll();
        pgstat_report_wait_end();
    });
}

AsRole::AsRole(Oid role) {
    GetUserIdAndSecContext(&role_, &context_);
    SetUserIdAndSecContext(role, context_ | SECURITY_LOCAL_USERID_CHANGE);
}

AsRole::~AsRole() {
    SetUserIdAndSecContext(role_, context_);
}

} // namespace jobq::pg
