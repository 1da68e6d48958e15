#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/networks.hpp"

namespace jobq::http {

// libcurl's global state. One object in the process, made before the first Client while there
// is one thread, and outliving the last. Throws std::runtime_error where libcurl cannot start.
class Library {
public:
    Library();
    ~Library();
    Library(const Library&) = delete;
    Library& operator=(const Library&) = delete;
};

enum class Version : std::uint8_t {
    automatic, // HTTP/2 where the server offers it in TLS (ALPN), or else 1.1
    http_1_1,
    http_2, // as automatic, and over plain http without asking ("prior knowledge", RFC 9113, 3.3)
};

// Requests that differ in a TLS setting or the proxy share no connection. (Not by the key's file
// alone: it belongs to its certificate.) A file that changes is seen by new connections.
struct Request {
    std::uint64_t tag = 0; // the caller's; comes back in the Response
    std::string url;
    std::string method = "POST";
    // "Name: value". Sent as they are, after those libcurl makes (Host, Content-Length...): who
    // lets users choose names checks them with core::check_header first.
    std::vector<std::string> headers;
    std::string body;
    std::chrono::milliseconds connect_timeout{5'000}; // name lookup and TLS included; >= 1 ms
    std::chrono::milliseconds timeout{30'000};        // for all of it; >= 1 ms
    std::size_t keep_response = 16'384;               // bytes of the answer's body to hand back
    Version version = Version::automatic;
    // PEM, and no other is trusted; empty: the system's. Read for each connection; one of more than
    // 16 kB every 10 s at most, and of more than 4 MB never.
    std::string ca_file;
    std::string client_cert_file; // PEM, with the chain; empty: none
    std::string client_key_file;  // PEM, not encrypted; empty: in client_cert_file
    // As check_proxy (url.hpp) wants it. Empty: none, whatever the environment says.
    std::string proxy;
};

enum class Outcome : std::uint8_t {
    answered, // a whole response, whatever its status
    timeout,
    dns_error,
    connection_refused,
    unreachable,      // no route, or no port or descriptor left on this side
    connection_reset, // ended by the other side before the response was whole
    tls_error,
    proxy_error,  // the proxy would not connect
    bad_response, // not HTTP
    response_too_large,
    refused_request,     // not fit to be sent: its URL, method, proxy or a header
    address_not_allowed, // by Client::allow
    out_of_memory,       // on this side
    other_error,
};

// "answered", "dns_error" and so on: fit to be stored.
std::string_view name(Outcome outcome) noexcept;

// Text in it is what the receiver sent: any bytes.
struct Response {
    std::uint64_t tag = 0;
    Outcome outcome = Outcome::other_error;
    int status = 0; // also where the answer was not whole; 0 where none began
    std::string content_type;
    std::string body;                     // its first keep_response bytes
    bool truncated = false;               // the body was longer than that
    std::string error;                    // for people; empty if answered
    std::chrono::microseconds elapsed{0}; // since it began, waiting for its turn not included
    // False: surely nothing of the request left, so that nobody can have acted on it.
    bool sent = false;
    int http_version = 0; // of the answer: 10, 11 or 20; 0 where none began
    // The IP address it was connected to, the proxy's if there is one; or else the last one it
    // tried. Empty where there was none.
    std::string address;
    // The answer's header Retry-After (RFC 9110, 10.2.3), seconds or a date; never negative, and
    // at most a year.
    std::optional<std::chrono::seconds> retry_after;
    bool no_retry = false; // the answer has the header "jobq-no-retry: true" (or 1)
};

struct Options {
    std::string user_agent = "jobq";
    // Connections that are kept open, busy ones included: beyond it, one that becomes idle
    // replaces the oldest idle one. At least twice the requests in flight is a good value; they
    // are used in portions of about a thousand, each filled before the next.
    long connections = 20'000;
    // Never more sockets than this are open, 0: no limit. An eighth of them is kept for hosts with
    // IPv4 and IPv6 addresses, to both of which libcurl connects when the first takes long. Idle
    // ones are closed to make room, and a request that finds none waits. Other descriptors come on
    // top: two for the client and two for each thousand connections, and some four for each name
    // that is being looked up (Client::most_lookups).
    long max_sockets = 0;
    // How long the address of a name is used for new connections before it is looked up again.
    std::chrono::seconds keep_names{60};
    // A longer body ends the transfer. Up to it, what is over keep_response is read and dropped
    // so that the connection can be used again.
    std::size_t max_response = std::size_t{64} << 20;
};

// Sends many requests at once from one thread, without ever blocking it:
//
//     start(), start()...     requests are handed in
//     wait until fd() is readable, beside whatever else the caller waits for
//     step()                  moves everything that can move
//     take()                  what has ended, each request exactly once
//
// It keeps connections open, sends many requests at once over one where the server speaks HTTP/2,
// and follows no redirects. A request that has to wait for its turn begins later, and so do its
// timeouts; a caller who does not want to wait cancels it. It waits
//
// - where all Options::max_sockets are in use;
// - to a host that none in flight has reached: behind one, and once that has failed, behind eight
// at
//   a time, until one has connected. A host that is down would get them all at once;
// - for a name to be looked up. libcurl does that in a thread for each request, which stays until
//   getaddrinfo returns, also when the request has timed out: so only one looks up the name of a
//   host at a time (eight once that failed), most_lookups do in all, and hosts whose last lookup
//   failed take at most half of these. A DNS server that never answers stalls neither hosts that
//   are known nor those whose names others know.
//
// The process must ignore SIGPIPE (OpenSSL writes without MSG_NOSIGNAL). All other signals may
// have handlers: they are blocked inside step(), so that no thread that libcurl makes there
// ever runs one.
class Client {
public:
    static constexpr std::size_t most_lookups = 256;

    // Throws std::bad_alloc, std::system_error where no descriptors are left, or
    // std::runtime_error where this libcurl lacks what is needed (TLS, say).
    explicit Client(const Options& options = {});
    // Drops what is in flight.
    ~Client();
    Client(const Client&) = delete;
    Client& operator=(const Client&) = delete;

    // From now on only addresses for which this is true are connected to, or sent to over
    // connections that are open already; of a name's addresses the others are passed over. Empty,
    // as at first: all are allowed. What is being sent is not stopped. It must not throw, nor call
    // the client. With a proxy, the proxy's address is what is asked for: where the proxy connects
    // to is its own affair.
    void allow(std::function<bool(const core::Address&)> allowed) noexcept;

    // Takes the request over. One that cannot be sent is no error here: it ends in a Response
    // that says why. Throws std::bad_alloc where there is no memory even for that; then the
    // request is untouched and nothing was started. Nothing moves before the next step().
    void start(Request&& request);

    // Readable when step() has something to do. The same for the life of the client.
    int fd() const noexcept;

    // Makes fd() readable at that time or earlier, once, for the caller's own timers.
    void wake_by(std::chrono::steady_clock::time_point when) noexcept;

    // Does what can be done without waiting, and stops after about a thousand events; fd() stays
    // readable while more is left. Requests just started are all begun in one call: tens of
    // microseconds each. Throws std::bad_alloc if libcurl broke down and could not be made anew;
    // the client is then of no further use.
    void step();

    // Replaces the content of responses by those that have ended since the last call. May throw
    // std::bad_alloc; then nothing is lost and it can be called again.
    void take(std::vector<Response>& responses);

    // Ends the requests with this tag, or all, without a Response, also those that have ended
    // but were not taken. Their connections are closed, unless others use them too (HTTP/2).
    // Returns whether there were any.
    bool cancel(std::uint64_t tag) noexcept;
    void cancel_all() noexcept;
    // As cancel(), of those that wait for their turn: nothing of them has left. Adds the tags of
    // those that it ended. Throws std::bad_alloc.
    void cancel_waiting(const std::function<bool(std::uint64_t tag)>& which,
                        std::vector<std::uint64_t>& ended);

    // Requests that were started and have not ended.
    std::size_t in_flight() const noexcept;

private:
    struct Impl; // keeps <curl/curl.h> out of what includes this
    std::unique_ptr<Impl> impl_;
};

} // namespace jobq::http
