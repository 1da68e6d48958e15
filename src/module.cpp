// What PostgreSQL loads.
#include "pg/postgres.hpp"
#include "pg/settings.hpp"
#include "queue/wake.hpp"
#include "worker/hooks.hpp"
#include "worker/launcher.hpp"
#include "worker/shared.hpp"

extern "C" {
PG_MODULE_MAGIC;
PGDLLEXPORT void _PG_init();
}

void _PG_init() {
    using namespace jobq;
    pg::settings::define();
    // pg_upgrade's server works on the catalogs; deliveries would change what it copies.
    if (!process_shared_preload_libraries_in_progress || IsBinaryUpgrade)
        return;
    worker::shared::request();
    worker::install_hooks();
    worker::register_launcher();
    queue::wake::deliver_to({.present = worker::shared::dispatcher_runs,
                             .committing = worker::shared::rouse,
                             .committed = worker::shared::post,
                             .prepared = worker::shared::note_prepared});
}
