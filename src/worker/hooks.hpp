// What jobq does beside other people's statements.
//
// A database with a connected dispatcher cannot be dropped, renamed, moved or copied: it is stopped
// for the length of such a command, and started again when the command's transaction ends, whatever
// way.
#pragma once

namespace jobq::worker {

// From _PG_init, while shared_preload_libraries are loaded.
void install_hooks();

} // namespace jobq::worker
