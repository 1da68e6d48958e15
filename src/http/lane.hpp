#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "http/curl.hpp"
#include "http/poller.hpp"

namespace jobq::http {

// A multi handle: the transfers in it share its connections and its cache of names.
struct Lane {
    // connections: it keeps so many open; limited: and never opens more, idle ones make room.
    Lane(Poller& poller, std::uint32_t index, long connections, bool limited);

    // Whether one more request can have a connection: libcurl would let it wait, but its timeout
    // would have begun.
    bool has_room() const noexcept {
        return !limited || claims < static_cast<std::size_t>(connections);
    }

    // Puts a fresh multi in place of one that broke down. Throws std::bad_alloc.
    void renew();

    static int on_socket(CURL*, curl_socket_t socket, int what, void* self, void* known) noexcept;
    static int on_timer(CURLM*, long timeout_ms, void* self) noexcept;

    Poller& poller;
    std::uint32_t index; // in Impl::lanes
    long connections;
    bool limited;
    std::size_t requests = 0; // running in it
    std::size_t claims = 0;   // connections in use, and requests that may open one
    std::optional<Poller::Clock::time_point> deadline; // when libcurl wants to be called
    Multi multi;                                       // goes first: it calls back until it is gone
};

} // namespace jobq::http
