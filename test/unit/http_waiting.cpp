// Requests that wait for a socket or for a name to be looked up.

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include <doctest/doctest.h>

#include "http/lookups.hpp"
#include "node_server.hpp"
#include "requests.hpp"
#include "resolver.hpp"
#include "server.hpp"

using namespace test;

namespace {

// To a host of its own, on the server's port.
std::string url_of(const Server& server, const std::string& name) {
    return "http://" + name + ":" + std::to_string(server.port()) + "/";
}

Request quick(std::string url, std::uint64_t tag, std::chrono::milliseconds connect_timeout = 5s) {
    Request request = post(std::move(url));
    request.tag = tag;
    request.connect_timeout = connect_timeout;
    return request;
}

// How many of these have this outcome.
auto count(const std::vector<Response>& responses, Outcome outcome) {
    return std::count_if(responses.begin(), responses.end(),
                         [&](const Response& r) { return r.outcome == outcome; });
}

// Lets hanging lookups go at the end, and waits for their threads.
struct HangingNames {
    HangingNames() { names.reset(); }
    ~HangingNames() {
        names.let_go();
        const auto limit = Clock::now() + patience;
        while (names.now > 0 && Clock::now() < limit)
            std::this_thread::sleep_for(1ms);
    }
};

} // namespace

TEST_CASE("sockets: never more are open than the option says, and all requests are answered") {
    const Server server(always({.delay = 20ms}));
    Options options;
    options.max_sockets = 16;
    Client client(options);
    for (int i = 0; i < 200; ++i)
        client.start(post(server.url()));
    int most = 0;
    const auto responses = run_until(client, [&](const auto& all) {
        most = std::max(most, server.connections_open());
        return all.size() == 200;
    });
    CHECK(count(responses, Outcome::answered) == 200);
    CHECK(most <= 16);
    CHECK(server.connections_made() == 14); // an eighth is for second addresses
}

TEST_CASE("sockets: a request that waits for one has its whole timeout left") {
    const Server server(always({.delay = 300ms}));
    Options options;
    options.max_sockets = 1;
    Client client(options);
    for (int i = 0; i < 5; ++i) {
        Request request = post(server.url());
        request.timeout = 600ms;
        client.start(std::move(request));
    }
    const auto responses = run(client, 5);
    CHECK(count(responses, Outcome::answered) == 5);
    for (const Response& response : responses)
        CHECK(response.elapsed < 600ms);
}

TEST_CASE("sockets: idle ones make room for other hosts") {
    for (const long most : {1, 2, 8}) {
        CAPTURE(most);
        Options options;
        options.max_sockets = most;
        Client client(options);
        std::vector<std::unique_ptr<Server>> servers;
        for (int i = 0; i < 20; ++i)
            servers.push_back(std::make_unique<Server>());
        int open = 0;
        for (int round = 0; round < 2; ++round)
            for (const auto& server : servers)
                CHECK(send(client, post(server->url())).outcome == Outcome::answered);
        for (const auto& server : servers)
            open += server->connections_open();
        CHECK(open <= most + 1); // the server may not have seen the last one's end
    }
}

TEST_CASE("sockets: those of many thousand are shared out among all") {
    const Server server(always({.delay = 200ms}));
    Options options;
    options.max_sockets = 3000;
    Client client(options);
    for (int i = 0; i < 4000; ++i)
        client.start(post(server.url()));
    int most = 0;
    const auto responses = run_until(client, [&](const auto& all) {
        most = std::max(most, server.connections_open());
        return all.size() == 4000;
    });
    CHECK(count(responses, Outcome::answered) == 4000);
    CHECK(most <= 3000);
    CHECK(most > 2000);
}

TEST_CASE("sockets: requests that share a connection need one") {
    const NodeServer server(tls("h2"));
    Options options;
    options.max_sockets = 4;
    Client client(options);
    for (int i = 0; i < 300; ++i)
        client.start(trusted(server.url("/?delay=1000")));
    const auto began = Clock::now();
    const auto responses = run(client, 300);
    check_all_answered(responses);
    CHECK(connections(responses).size() <= 4);
    CHECK(Clock::now() - began < 20s); // four at a time would take 75 s
}

TEST_CASE("sockets: those that wait can be cancelled") {
    const Server server(always({.then = Answer::Then::hang}));
    Options options;
    options.max_sockets = 2;
    Client client(options);
    for (std::uint64_t tag = 1; tag <= 10; ++tag)
        client.start(quick(server.url(), tag));
    run_until(client, [&](const auto&) { return server.connections_open() > 0; });
    for (std::uint64_t tag = 10; tag >= 1; --tag)
        CHECK(client.cancel(tag));
    CHECK(client.in_flight() == 0);
    run_until(client, [&](const auto&) { return server.connections_open() == 0; });
}

TEST_CASE("lookups: there are only so many at once, whatever the number of hosts") {
    const HangingNames hanging;
    Client client;
    for (int i = 0; i < 2000; ++i)
        client.start(quick("http://h" + std::to_string(i) + ".hang.test/", 1, 60s));
    run_until(client, [](const auto&) { return names.now == Client::most_lookups; });
    for (int i = 0; i < 50; ++i)
        client.step();
    CHECK(names.made == Client::most_lookups);
    CHECK(client.in_flight() == 2000);
    names.let_go();
    CHECK(count(run(client, 2000), Outcome::dns_error) == 2000);
    CHECK(names.peak <= static_cast<int>(Client::most_lookups));
}

TEST_CASE("lookups: a host that is known keeps its speed while others hang") {
    const HangingNames hanging;
    const Server server;
    Client client;
    CHECK(send(client, post(url_of(server, "a.quick.test"))).outcome == Outcome::answered);
    for (int i = 0; i < 1000; ++i)
        client.start(quick("http://h" + std::to_string(i) + ".hang.test/", 1, 60s));
    run_until(client, [](const auto&) { return names.now == Client::most_lookups; });
    const auto began = Clock::now();
    for (int i = 0; i < 50; ++i)
        client.start(post(url_of(server, "a.quick.test")));
    const auto responses = run(client, 50);
    CHECK(count(responses, Outcome::answered) == 50);
    CHECK(Clock::now() - began < 2s);
    client.cancel_all();
}

TEST_CASE("lookups: a host without a name needs none") {
    const HangingNames hanging;
    const Server server;
    Client client;
    for (int i = 0; i < 1000; ++i)
        client.start(quick("http://h" + std::to_string(i) + ".hang.test/", 1, 60s));
    run_until(client, [](const auto&) { return names.now == Client::most_lookups; });
    client.start(post(server.url()));
    CHECK(run(client, 1).front().outcome == Outcome::answered);
    client.start(post(url_of(server, "localhost")));
    CHECK(run(client, 1).front().outcome == Outcome::answered);
    client.cancel_all();
}

TEST_CASE("lookups: a new host gets through while those that failed before hang") {
    const HangingNames hanging;
    const Server server;
    Client client;
    constexpr int hosts = 600;
    for (int i = 0; i < hosts; ++i)
        client.start(quick("http://h" + std::to_string(i) + ".hang.test/", 1, 200ms));
    CHECK(count(run(client, hosts), Outcome::timeout) == hosts);
    // Now they are known for it, also though nothing was in flight to them.
    for (int i = 0; i < hosts; ++i)
        client.start(quick("http://h" + std::to_string(i) + ".hang.test/", 1, 60s));
    client.step();
    for (int i = 0; i < 20; ++i) {
        const auto began = Clock::now();
        client.start(quick(url_of(server, "n" + std::to_string(i) + ".cold.test"), 2));
        CHECK(run(client, 1).front().outcome == Outcome::answered);
        CHECK(Clock::now() - began < 2s);
    }
    CHECK(names.peak <= static_cast<int>(Lookups::most_threads));
    client.cancel_all();
}

TEST_CASE("lookups: the timeouts of those that wait have not begun") {
    const HangingNames hanging;
    Client client;
    for (int i = 0; i < 300; ++i)
        client.start(quick("http://h" + std::to_string(i) + ".hang.test/", i, 400ms));
    std::set<std::uint64_t> first;
    for (const Response& response :
         run_until(client, [](const auto& all) { return all.size() >= 256; }))
        first.insert(response.tag);
    CHECK(first.size() < 300); // the others began later
    CHECK(names.made > 0);
    client.cancel_all();
}

TEST_CASE("lookups: a host stays reachable over its connections when its name can no longer be "
          "looked up") {
    const HangingNames hanging;
    const Server server(always({.delay = 30ms}));
    Options options;
    options.keep_names = 0s;
    Client client(options);
    for (int i = 0; i < 3; ++i)
        client.start(post(url_of(server, "sometimes.test")));
    CHECK(count(run(client, 3), Outcome::answered) == 3);
    const int connections = server.connections_made();
    CHECK(connections >= 2);
    names.break_down();
    const int before = names.made;
    for (int i = 0; i < 30; ++i)
        client.start(quick(url_of(server, "sometimes.test"), i, 60s));
    // All but the one that wants a further connection.
    CHECK(count(run(client, 29), Outcome::answered) == 29);
    CHECK(names.made == before + 1);
    CHECK(server.connections_made() == connections);
    client.cancel_all();
}

TEST_CASE("lookups: a host with many requests looks its name up once at a time") {
    const HangingNames hanging;
    const Server server(always({.delay = 5ms, .then = Answer::Then::close}));
    Options options;
    options.keep_names = 0s;
    Client client(options);
    for (int i = 0; i < 100; ++i)
        client.start(post(url_of(server, "cold.test")));
    CHECK(count(run(client, 100), Outcome::answered) == 100);
    CHECK(names.peak == 1);
    CHECK(names.made == 100);
}

TEST_CASE("Lookups: those given up count, but not for ever") {
    Lookups lookups;
    const auto now = Clock::now();
    for (std::size_t i = 0; i < Lookups::most; ++i) {
        REQUIRE(lookups.may_begin(false, now));
        lookups.begin(false);
    }
    CHECK_FALSE(lookups.may_begin(false, now));
    CHECK_FALSE(lookups.next_change());
    for (std::size_t i = 0; i < Lookups::most; ++i)
        lookups.give_up(false, now);
    CHECK(lookups.may_begin(false, now));
    CHECK_FALSE(lookups.may_begin(true, now));
    REQUIRE(lookups.next_change());
    CHECK(*lookups.next_change() == now + Lookups::thread_life);
    CHECK(lookups.may_begin(true, *lookups.next_change()));
}

TEST_CASE("Lookups: there are never more threads than that") {
    Lookups lookups;
    const auto now = Clock::now();
    std::size_t begun = 0;
    while (lookups.may_begin(false, now)) {
        lookups.begin(false);
        lookups.give_up(false, now);
        REQUIRE(++begun <= Lookups::most_threads);
    }
    CHECK(begun == Lookups::most_threads);
}

TEST_CASE("Lookups: hosts that failed before take at most half") {
    Lookups lookups;
    const auto now = Clock::now();
    while (lookups.may_begin(true, now))
        lookups.begin(true);
    CHECK(lookups.under_way() == Lookups::most / 2);
    CHECK(lookups.may_begin(false, now));
    lookups.end(true);
    CHECK(lookups.may_begin(true, now));
}
