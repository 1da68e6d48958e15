#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/networks.hpp"
#include "http/client.hpp"
#include "http/curl.hpp"
#include "http/gate.hpp"
#include "http/lane.hpp"

namespace jobq::http {

// What the transfers of a client have in common.
struct Common {
    // Throws std::bad_alloc.
    explicit Common(const Options& options);

    const Options options;
    std::string system_ca_file, system_ca_path;        // libcurl's own; may be empty
    std::function<bool(const core::Address&)> allowed; // empty: all are
    Share names;                                       // looked up for one lane, known to all
    Gate gate;
    std::size_t most_sockets = std::numeric_limits<std::size_t>::max();
    std::size_t sockets = 0; // open
    bool starved = false;    // one was asked for in vain, and none was closed since
};

// One request on its way, with the libcurl handle that carries it. Handles are used again for
// later requests: what never changes is set once.
struct Transfer {
    explicit Transfer(Common& common); // which outlives it

    // Gives libcurl the request. Throws Refusal or std::bad_alloc.
    void prepare();
    // Before each time that it is put into a multi: it may be turned away.
    void begin() noexcept;
    // Whether it has ended because libcurl begins a request again five times and no more. A server
    // that takes few requests in a connection refuses those that libcurl sends before it was told
    // how few, and says with that that it has done nothing (RFC 9113, 8.7). Counts; not for long.
    bool may_begin_again(CURLcode code) noexcept;
    // Each lets go of the request: the handle must be out of the multi. end() fills in the
    // response, forget() drops that too.
    void end(CURLcode code) noexcept;
    void end(Outcome outcome, std::string_view error) noexcept;
    void forget() noexcept;

    static std::size_t on_header(char*, std::size_t, std::size_t bytes, void* self) noexcept;
    static std::size_t on_body(char* data, std::size_t, std::size_t bytes, void* self) noexcept;
    static curl_socket_t on_open_socket(void* self, curlsocktype, curl_sockaddr* to) noexcept;
    static int on_close_socket(void* common, curl_socket_t socket) noexcept;
    static int on_lookup(void*, void*, void* self) noexcept;
    static int on_connected(void* self, char* ip, char*, int port, int local_port) noexcept;

    Common& common;
    Easy easy;
    Gate::Place place;
    Lane* lane = nullptr; // while libcurl has it
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
    bool turned_away = false;             // for want of a lookup or a socket
    std::array<char, CURL_ERROR_SIZE> error{};
    std::size_t position = 0; // in Impl::running

private:
    int begun_again_ = 0;
    // A text option that most requests have as the one before: libcurl would copy it each time.
    struct Kept {
        CURLoption option;
        const char* unset;               // libcurl's value for an empty one
        std::optional<std::string> last; // nothing: not known
    };
    void keep(Kept& kept, const std::string& text);
    void prepare_connection();
    void read_headers() noexcept;
    bool refused_certificate(CURLcode code) const noexcept;

    Kept ca_file_, proxy_ca_file_, client_cert_, client_key_, proxy_;
};

} // namespace jobq::http
