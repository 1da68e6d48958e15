// A dispatcher's process: one for each database that has the extension, started by the launcher.
// Its life is told in worker/shared.hpp; what it does meanwhile is worker/deliveries.hpp.
#pragma once

#include "pg/postgres.hpp"

// The worker's entry point; the argument is the database's oid.
extern "C" PGDLLEXPORT void jobq_dispatcher_main(Datum database);
