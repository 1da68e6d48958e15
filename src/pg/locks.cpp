#include "pg/locks.hpp"
#include "pg/error.hpp"

extern "C" {
#include "catalog/namespace.h"
#include "common/hashfn.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "utils/lsyscache.h"
}

namespace jobq::pg {

namespace {

LOCKTAG tag_of(LockKind kind, std::uint64_t key) {
    LOCKTAG tag;
    SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, static_cast<uint32>(key >> 32),
                         static_cast<uint32>(key), static_cast<uint16>(kind));
    return tag;
}

} // namespace

bool try_lock(LockKind kind, std::uint64_t key) {
    LOCKTAG tag = tag_of(kind, key);
    return guarded(
        [&] { return LockAcquire(&tag, ExclusiveLock, false, true) != LOCKACQUIRE_NOT_AVAIL; });
}

void unlock(LockKind kind, std::uint64_t key) {
    LOCKTAG tag = tag_of(kind, key);
    guarded([&] { LockRelease(&tag, ExclusiveLock, false); });
}

void lock_name(LockKind kind, std::string_view name, LockMode mode) {
    LOCKTAG tag =
        tag_of(kind, hash_bytes_extended(reinterpret_cast<const unsigned char*>(name.data()),
                                         static_cast<int>(name.size()), 0));
    guarded([&] {
        LockAcquire(&tag, mode == LockMode::shared ? ShareLock : ExclusiveLock, false, false);
    });
}

std::uint64_t group_hash(int queue_id, std::string_view group) {
    return hash_bytes_extended(reinterpret_cast<const unsigned char*>(group.data()),
                               static_cast<int>(group.size()), static_cast<uint64>(queue_id));
}

void lock_for_writing(const char* table) {
    guarded([&] {
        Oid relation = get_relname_relid(table, get_namespace_oid("jobq", false));
        if (!OidIsValid(relation))
            ereport(ERROR, errcode(ERRCODE_UNDEFINED_TABLE),
                    errmsg("relation \"jobq.%s\" does not exist", table));
        LockRelationOid(relation, RowExclusiveLock);
    });
}

void check_for_interrupts() {
    guarded([] { CHECK_FOR_INTERRUPTS(); });
}

} // namespace jobq::pg
