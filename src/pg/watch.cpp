#include <utility>

#include "pg/watch.hpp"

extern "C" {
#include "utils/inval.h"
}

namespace jobq::pg {

void announce_change(Relation table) {
    guarded([&] { CacheInvalidateRelcache(table); });
}

void Watch::begin(const Table& table) {
    Oid oid = RelationGetRelid(table.relation());
    if (std::exchange(table_, oid) != oid)
        ++changes_;
    if (!std::exchange(registered_, true))
        guarded([&] { CacheRegisterRelcacheCallback(changed, PointerGetDatum(this)); });
}

std::uint64_t Watch::changes() {
    guarded([] { AcceptInvalidationMessages(); });
    return changes_;
}

// InvalidOid: any table.
void Watch::changed(Datum watch, Oid table) {
    auto* self = reinterpret_cast<Watch*>(DatumGetPointer(watch));
    if (table == InvalidOid || table == self->table_)
        ++self->changes_;
}

} // namespace jobq::pg
