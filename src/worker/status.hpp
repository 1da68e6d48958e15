#pragma once

#include <string>

namespace jobq::worker {

// What jobq.status() says of this database's dispatcher, in a line: its state, and the message if
// there is one.
std::string dispatcher_status();

} // namespace jobq::worker
