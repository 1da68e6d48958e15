#pragma once

#include <cstddef>
#include <deque>
#include <string_view>

namespace jobq::http {

struct Transfer;

// Requests to a host that none has reached: of them so many connect at once, after a first one.
constexpr std::size_t most_to_unreached = 8;

// The requests that are running to one host: scheme, name and port.
struct Host {
    std::size_t requests = 0;   // those that wait included
    std::size_t connecting = 0; // begun, and not connected
    bool reached = false;       // the last to try has connected
    bool failed = false;        // the last to try has not
    std::deque<Transfer*> waiting;

    bool open() const noexcept { return reached || connecting < (failed ? most_to_unreached : 1); }
};

// The URL up to its path.
std::string_view host_part(std::string_view url) noexcept;

} // namespace jobq::http
