#pragma once

// How the tests of the client make requests and wait for them.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <poll.h>
#include <unistd.h>

#include "http/client.hpp"
#include "node_server.hpp"
#include "server.hpp"

namespace test {

using namespace jobq::http;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

inline constexpr auto patience = 30s; // far more than anything here takes

inline bool readable(int fd, std::chrono::milliseconds limit) {
    pollfd p{fd, POLLIN, 0};
    return ::poll(&p, 1, static_cast<int>(limit.count())) == 1;
}

// Runs the client until the condition holds, and gives the responses that came meanwhile.
template <class Condition>
std::vector<Response> run_until(Client& client, Condition done) {
    const auto limit = Clock::now() + patience;
    std::vector<Response> all, some;
    for (;;) {
        client.step();
        client.take(some);
        std::move(some.begin(), some.end(), std::back_inserter(all));
        if (done(all))
            return all;
        REQUIRE(Clock::now() < limit);
        readable(client.fd(), 10ms);
    }
}

inline std::vector<Response> run(Client& client, std::size_t count) {
    return run_until(client, [&](const auto& all) { return all.size() >= count; });
}

inline Response send(Client& client, Request request) {
    client.start(std::move(request));
    auto responses = run(client, 1);
    REQUIRE(responses.size() == 1);
    CHECK(client.in_flight() == 0);
    return std::move(responses.front());
}

inline Response send(Request request) {
    Client client;
    return send(client, std::move(request));
}

inline Request post(std::string url, std::string body = "{}") {
    Request request;
    request.url = std::move(url);
    request.body = std::move(body);
    request.headers = {"content-type: application/json"};
    return request;
}

inline Server::Handler always(Answer answer) {
    return [answer](const Received&) { return answer; };
}

// As the address sanitizer does, for a while: OpenSSL allocates for each record.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool keeps_freed_memory = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
inline constexpr bool keeps_freed_memory = true;
#else
inline constexpr bool keeps_freed_memory = false;
#endif
#else
inline constexpr bool keeps_freed_memory = false;
#endif

inline std::size_t resident_bytes() {
    std::size_t total = 0, resident = 0;
    std::ifstream("/proc/self/statm") >> total >> resident;
    return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

// To a server with a certificate of our own authority.
inline Request trusted(std::string url) {
    Request request = post(std::move(url));
    request.ca_file = Certificates::get().ca();
    return request;
}

// A value of the JSON object that node_server.js gives as the content type.
inline std::string said(const Response& response, const std::string& key) {
    const std::string& text = response.content_type;
    const std::string start = "\"" + key + "\":";
    const std::size_t found = text.find(start);
    if (found == std::string::npos)
        return "(none)";
    const std::size_t begin = found + start.size();
    std::string value = text.substr(begin, text.find_first_of(",}", begin) - begin);
    std::erase(value, '"');
    return value;
}

inline std::set<std::string> connections(const std::vector<Response>& responses) {
    std::set<std::string> numbers;
    for (const Response& response : responses)
        numbers.insert(said(response, "connection"));
    return numbers;
}

inline void check_all_answered(const std::vector<Response>& responses) {
    for (const Response& response : responses) {
        CAPTURE(response.error);
        REQUIRE(response.outcome == Outcome::answered);
    }
}

} // namespace test
