#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "http/client.hpp"
#include "http/curl.hpp"
#include "http/host.hpp"
#include "http/lane.hpp"

namespace jobq::http {

// One request on its way, with the libcurl handle that carries it. Handles are used again for
// later requests: what never changes is set once.
struct Transfer {
    Transfer(const Options& options, CURLSH* share);

    // Gives libcurl the request. Throws Refusal or std::bad_alloc.
    void prepare();
    // Each lets go of the request: the handle must be out of the multi. end() fills in the
    // response, forget() drops that too.
    void end(CURLcode code) noexcept;
    void end(Outcome outcome, std::string_view error) noexcept;
    void forget() noexcept;

    static std::size_t on_header(char*, std::size_t, std::size_t bytes, void* self) noexcept;
    static std::size_t on_body(char* data, std::size_t, std::size_t bytes, void* self) noexcept;
    static int on_connected(void* self, char*, char*, int, int) noexcept;

    Easy easy;
    Host* host = nullptr;    // while it is running
    Lane* lane = nullptr;    // while libcurl has it
    bool connecting = false; // counted by the host
    Request request;
    Response response;
    std::vector<curl_slist> headers; // nodes that point into the request: nothing is copied
    std::size_t max_response;
    std::size_t header_bytes = 0;
    std::size_t body_bytes = 0;
    std::optional<Outcome> broken_off; // why a callback stopped libcurl
    std::array<char, CURL_ERROR_SIZE> error{};
    std::size_t position = 0; // in Impl::running
};

} // namespace jobq::http
