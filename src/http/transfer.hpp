#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/networks.hpp"
#include "http/client.hpp"
#include "http/curl.hpp"
#include "http/host.hpp"
#include "http/lane.hpp"

namespace jobq::http {

// What the transfers of a client have in common.
struct Common {
    Options options;
    std::function<bool(const core::Address&)> allowed; // empty: all are
    Share names;                                       // looked up for one lane, known to all
};

// One request on its way, with the libcurl handle that carries it. Handles are used again for
// later requests: what never changes is set once.
struct Transfer {
    explicit Transfer(Common& common); // which outlives it

    // Gives libcurl the request. Throws Refusal or std::bad_alloc.
    void prepare();
    // Each lets go of the request: the handle must be out of the multi. end() fills in the
    // response, forget() drops that too.
    void end(CURLcode code) noexcept;
    void end(Outcome outcome, std::string_view error) noexcept;
    void forget() noexcept;

    static std::size_t on_header(char*, std::size_t, std::size_t bytes, void* self) noexcept;
    static std::size_t on_body(char* data, std::size_t, std::size_t bytes, void* self) noexcept;
    static curl_socket_t on_open_socket(void* self, curlsocktype, curl_sockaddr* to) noexcept;
    static int on_connected(void* self, char* ip, char*, int, int) noexcept;

    Common& common;
    Easy easy;
    Host* host = nullptr;    // while it is running
    Lane* lane = nullptr;    // while libcurl has it
    bool connecting = false; // counted by the host
    Request request;
    Response response;
    std::vector<curl_slist> headers; // nodes that point into the request: nothing is copied
    std::size_t header_bytes = 0;
    std::size_t body_bytes = 0;
    std::optional<Outcome> broken_off;    // why a callback stopped libcurl
    std::optional<core::Address> address; // the last that it connected to, or tried to
    bool address_refused = false;         // by common.allowed, and no other was tried
    bool tried_address = false;           // one that was allowed
    bool connected = false;               // and allowed to send
    std::array<char, CURL_ERROR_SIZE> error{};
    std::size_t position = 0; // in Impl::running

private:
    // A text option that most requests have as the one before: libcurl would copy it each time.
    struct Kept {
        CURLoption option;
        const char* unset;               // libcurl's value for an empty one
        std::optional<std::string> last; // nothing: not known
    };
    void keep(Kept& kept, const std::string& text);
    void prepare_connection();
    void read_headers() noexcept;

    std::string default_ca_file_, default_ca_path_;
    Kept ca_file_, proxy_ca_file_, client_cert_, client_key_, proxy_;
};

} // namespace jobq::http
