// The dispatcher's transactions.
#pragma once

#include <utility>

#include "pg/spi.hpp"
#include "pg/table.hpp"
#include "pg/xact.hpp"

extern "C" {
#include "utils/guc.h"
}

namespace jobq::worker {

template <class Function>
void in_transaction(Function&& function) {
    pg::Transaction transaction;
    {
        pg::Spi spi;
        pg::FreshSnapshot snapshot; // for values that are stored apart
        function(spi);
    }
    transaction.commit();
}

// Losing an outcome in a crash means a second delivery, which receivers are told to expect.
inline void commit_without_flush() {
    pg::guarded([] {
        set_config_option("synchronous_commit", "off", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_LOCAL,
                          true, 0, false);
    });
}

} // namespace jobq::worker
