#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

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
};

enum class Outcome : std::uint8_t {
    answered, // a whole response, whatever its status
    timeout,
    dns_error,
    connection_refused,
    unreachable,      // no route, or no port or descriptor left on this side
    connection_reset, // ended by the other side before the response was whole
    tls_error,
    bad_response, // not HTTP
    response_too_large,
    refused_request, // not fit to be sent: its URL, method or a header
    out_of_memory,   // on this side
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
    std::chrono::microseconds elapsed{0}; // from when libcurl took it up
};

struct Options {
    std::string user_agent = "jobq";
    std::string ca_file; // PEM; empty means the system's certificates
    // Connections that are kept open, busy ones included: beyond it, one that becomes idle
    // replaces the oldest idle one. At least twice the requests in flight is a good value; they
    // are used in portions of about a thousand, each filled before the next.
    long connections = 20'000;
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
// It keeps connections open, follows no redirects, uses no proxy, and has no limit of its own: the
// caller keeps in_flight() and Options::connections within its descriptors (one a connection, two
// more while a name is looked up, two for the client itself).
//
// Only to a host that none in flight has reached the others wait: behind one, and once that has
// failed, behind eight at a time, until one has connected. libcurl looks up a name it does not know
// in a thread for each request, and a host that is down would get them all at once. Their timeouts
// begin when they do.
//
// The process must ignore SIGPIPE (OpenSSL writes without MSG_NOSIGNAL). All other signals may
// have handlers: they are blocked inside step(), so that no thread that libcurl makes there
// ever runs one.
class Client {
public:
    // Throws std::bad_alloc, std::system_error where no descriptors are left, or
    // std::runtime_error where this libcurl lacks what is needed (TLS, say).
    explicit Client(const Options& options = {});
    // Drops what is in flight.
    ~Client();
    Client(const Client&) = delete;
    Client& operator=(const Client&) = delete;

    // Takes the request over. One that cannot be sent is no error here: it ends in a Response
    // that says why. Throws std::bad_alloc where there is no memory even for that; then the
    // request is untouched and nothing was started. Nothing moves before the next step().
    void start(Request&& request);

    // Readable when step() has something to do. The same for the life of the client.
    int fd() const noexcept;

    // Does what can be done without waiting, and stops after about a thousand events; fd() stays
    // readable while more is left. Requests just started are all begun in one call: tens of
    // microseconds each. Throws std::bad_alloc if libcurl broke down and could not be made anew;
    // the client is then of no further use.
    void step();

    // Replaces the content of responses by those that have ended since the last call. May throw
    // std::bad_alloc; then nothing is lost and it can be called again.
    void take(std::vector<Response>& responses);

    // Ends the requests with this tag, or all, without a Response, also those that have ended
    // but were not taken. Their connections are closed. Returns whether there were any.
    bool cancel(std::uint64_t tag) noexcept;
    void cancel_all() noexcept;

    // Requests that were started and have not ended.
    std::size_t in_flight() const noexcept;

private:
    struct Impl; // keeps <curl/curl.h> out of what includes this
    std::unique_ptr<Impl> impl_;
};

} // namespace jobq::http
