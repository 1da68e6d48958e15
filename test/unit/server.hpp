#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "http/fd.hpp"

namespace test {

// A request as it arrived.
struct Received {
    std::string method;
    std::string target;
    std::vector<std::pair<std::string, std::string>> headers;
    std::string body;

    // The values of a header joined by "|", or "(none)". Case is ignored.
    std::string header(std::string_view name) const;
};

// What the server does about it.
struct Answer {
    int status = 200;
    std::vector<std::string> headers = {};
    std::string body = {};
    std::uint64_t more_body = 0; // this many bytes of 'x' after the body
    std::chrono::milliseconds delay{0};
    enum class Then {
        keep_open,
        close,
        // Instead of an answer, or after the raw bytes:
        drop, // close
        reset,
        hang,
    } then = Then::keep_open;
    std::string raw = {}; // sent instead of a proper response
};

// An HTTP/1.1 server on a free port of the loopback, in a thread of its own, which also calls
// the handler.
class Server {
public:
    using Handler = std::function<Answer(const Received&)>;
    explicit Server(Handler handler = [](const Received&) { return Answer(); });
    ~Server();
    Server(const Server&) = delete;
    Server& operator=(const Server&) = delete;

    int port() const noexcept { return port_; }
    std::string url(std::string_view path = "/") const;
    std::vector<Received> received() const;
    int connections_made() const noexcept { return connections_made_; }
    int connections_open() const noexcept { return connections_open_; }
    // For measurements: forget the requests instead of keeping them for received().
    void keep_nothing() noexcept { keep_ = false; }

private:
    using Clock = std::chrono::steady_clock;
    struct Connection;

    void serve();
    void accept_all();
    void read_from(Connection& c);
    void handle_requests(Connection& c);
    void answer(Connection& c, const Answer& a);
    void write_to(Connection& c);
    void listen_for(Connection& c, std::uint32_t events);
    void close(Connection& c, bool reset);

    Handler handler_;
    jobq::http::Fd listener_, epoll_, stop_;
    int port_ = 0;
    std::atomic<int> connections_made_ = 0, connections_open_ = 0;
    std::atomic<bool> keep_ = true;
    std::unordered_map<int, std::unique_ptr<Connection>> connections_;
    std::multimap<Clock::time_point, std::pair<std::uint64_t, Answer>> delayed_; // by Connection id
    std::uint64_t last_id_ = 0;
    mutable std::mutex mutex_;
    std::vector<Received> received_;
    std::thread thread_; // last: it uses all of the above
};

// As many descriptors as the process may have: the usual 1,024 are few for both ends of a
// thousand connections.
void raise_descriptor_limit();

// A port of the loopback on which nobody listens.
int closed_port();

} // namespace test
