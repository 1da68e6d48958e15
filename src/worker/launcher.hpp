// The launcher: one worker a server, which keeps a dispatcher in each database that has the
// extension.
#pragma once

namespace jobq::worker {

// From _PG_init, while shared_preload_libraries are loaded.
void register_launcher();

} // namespace jobq::worker
