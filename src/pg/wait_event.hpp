// What pg_stat_activity calls a wait.
#pragma once

#include "pg/error.hpp"

extern "C" {
#include "utils/wait_event.h"
}

namespace jobq::pg {

// The wait event of this name, to be kept. Up to 16 all extensions share one.
inline uint32 wait_event([[maybe_unused]] const char* name) {
#if PG_VERSION_NUM >= 170000
    return guarded([&] { return WaitEventExtensionNew(name); });
#else
    return PG_WAIT_EXTENSION;
#endif
}

} // namespace jobq::pg
