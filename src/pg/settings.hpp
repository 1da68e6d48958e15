// The settings of jobq (GUCs), for everybody to read.
#pragma once

#include <chrono>
#include <memory>
#include <string_view>

#include "core/networks.hpp"

namespace jobq::pg::settings {

// Whether dispatchers deliver at all.
bool deliver() noexcept;
// Deliveries a dispatcher has in flight at once: 1 to 100000.
int max_in_flight() noexcept;
// The longest a dispatcher sleeps without looking for due jobs: 100 ms to 1 h.
std::chrono::milliseconds scan_interval() noexcept;
// How long a dispatcher that is told to end waits for its deliveries: 0 to 1 h.
std::chrono::milliseconds drain_timeout() noexcept;
// The largest payload a push takes, in bytes: 1 to 256 MB.
int max_payload() noexcept;

// Addresses that deliveries may go to although they are not public. The same object until the
// setting changes.
std::shared_ptr<const core::Networks> allowed_networks();
// The trace that the session's pushes belong to, a W3C traceparent; empty: none.
std::string_view traceparent() noexcept;

// Once a process, from _PG_init. May ereport.
void define();

} // namespace jobq::pg::settings
