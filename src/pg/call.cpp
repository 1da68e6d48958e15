#include <array>

#include <fmt/format.h>

#include "pg/call.hpp"

extern "C" {
#include "catalog/namespace.h"
#include "catalog/pg_proc.h"
#include "utils/acl.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/tuplestore.h"
}

namespace jobq::pg {

void Call::require(int i, std::string_view name) const {
    if (null(i))
        throw Error(ERRCODE_NULL_VALUE_NOT_ALLOWED, fmt::format("{} must not be null", name));
}

RowSink::RowSink(const Call& call) {
    guarded([&] { InitMaterializedSRF(call.info(), MAT_SRF_USE_EXPECTED_DESC); });
    result_ = reinterpret_cast<ReturnSetInfo*>(call.info()->resultinfo);
}

void RowSink::put(std::span<const Param> values) {
    constexpr std::size_t max_columns = 32;
    Assert(values.size() <= max_columns);
    std::array<Datum, max_columns> datums;
    std::array<bool, max_columns> nulls;
    for (std::size_t i = 0; i < values.size(); ++i) {
        datums[i] = values[i].value;
        nulls[i] = values[i].null;
    }
    guarded([&] {
        tuplestore_putvalues(result_->setResult, result_->setDesc, datums.data(), nulls.data());
    });
}

Oid owner_of(Oid function) {
    return guarded([&] {
        HeapTuple tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
        if (!HeapTupleIsValid(tuple))
            elog(ERROR, "cache lookup failed for function %u", function);
        Oid owner = reinterpret_cast<Form_pg_proc>(GETSTRUCT(tuple))->proowner;
        ReleaseSysCache(tuple);
        return owner;
    });
}

void require_select(const char* relation) {
    guarded([&] {
        Oid oid = get_relname_relid(relation, get_namespace_oid("jobq", false));
        AclResult result = pg_class_aclcheck(oid, GetUserId(), ACL_SELECT);
        if (result != ACLCHECK_OK)
            aclcheck_error(result, OBJECT_VIEW, relation);
    });
}

std::string role_name(Oid role) {
    return guarded([&] { return GetUserNameFromId(role, false); });
}

} // namespace jobq::pg
