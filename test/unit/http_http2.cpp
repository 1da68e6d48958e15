#include <map>

#include <doctest/doctest.h>

#include "node_server.hpp"
#include "requests.hpp"

using namespace test;

TEST_CASE("http2: spoken where the server offers it, unless the request says otherwise") {
    const NodeServer two(tls("h2")), one(tls("h1"));
    Client client;
    CHECK(send(client, trusted(two.url())).http_version == 20);
    CHECK(send(client, trusted(one.url())).http_version == 11);
    Request request = trusted(two.url());
    request.version = Version::http_1_1;
    CHECK(send(client, request).http_version == 11);
    request.version = Version::http_2;
    CHECK(send(client, request).http_version == 20);
    request.url = one.url();
    CHECK(send(client, request).http_version == 11);
}

TEST_CASE("http2: without TLS only where the request says so") {
    const NodeServer server(R"("kind": "h2c")");
    const std::string url = "http" + server.url().substr(5);
    Request request = post(url);
    CHECK(send(request).outcome != Outcome::answered);
    request.version = Version::http_2;
    const Response response = send(request);
    CHECK(response.error == "");
    CHECK(response.http_version == 20);
}

TEST_CASE("http2: a server without it is not taken for one with it") {
    const Server server;
    Request request = post(server.url());
    request.version = Version::http_2;
    request.timeout = 5s;
    CHECK(send(request).outcome != Outcome::answered);
    CHECK(send(post(server.url())).http_version == 11);
}

TEST_CASE("http2: 200 slow requests need few connections") {
    const NodeServer server(tls("h2"));
    Client client;
    for (int i = 0; i < 200; ++i)
        client.start(trusted(server.url("/?until=200")));
    const auto responses = run(client, 200);
    check_all_answered(responses);
    CHECK(connections(responses).size() <= 2);
}

TEST_CASE("http2: 3,000 slow requests need few connections, also when they come at once again") {
    const NodeServer server(tls("h2"));
    Client client;
    for (int burst = 0; burst < 2; ++burst) {
        for (int i = 0; i < 3000; ++i)
            client.start(trusted(server.url("/?until=3000")));
        const auto responses = run(client, 3000);
        check_all_answered(responses);
        CHECK(connections(responses).size() <= 40);
    }
}

TEST_CASE("http2: a server that takes few requests in a connection gets more connections") {
    for (const int streams : {3, 10}) {
        CAPTURE(streams);
        const NodeServer server(tls("h2") + R"(, "streams": )" + std::to_string(streams));
        Client client;
        for (int burst = 0; burst < 2; ++burst) {
            for (int i = 0; i < 100; ++i)
                client.start(trusted(server.url("/?delay=300")));
            const auto responses = run(client, 100);
            check_all_answered(responses);
            CHECK(connections(responses).size() >= 100U / streams);
        }
    }
}

TEST_CASE("http2: large bodies both ways, many at once, arrive whole") {
    const NodeServer server(tls("h2"));
    Client client;
    constexpr std::size_t size = 300'000;
    for (int i = 0; i < 200; ++i) {
        Request request = trusted(server.url("/?bytes=" + std::to_string(size)));
        request.body.assign(size, 'x');
        request.keep_response = size;
        client.start(std::move(request));
    }
    const auto responses = run(client, 200);
    check_all_answered(responses);
    for (const Response& response : responses) {
        REQUIRE(response.body.size() == size);
        REQUIRE(said(response, "received") == std::to_string(size));
    }
}

TEST_CASE("http2: a request that is cancelled or times out takes no other with it") {
    const NodeServer server(tls("h2"));
    Client client;
    send(client, trusted(server.url()));
    for (std::uint64_t tag = 0; tag < 30; ++tag) {
        Request request = trusted(server.url(tag % 3 ? "/?delay=60000" : "/?delay=500"));
        request.tag = tag;
        request.timeout = tag % 3 == 1 ? 200ms : 30'000ms;
        client.start(std::move(request));
    }
    run_until(client, [&, steps = 0](const auto&) mutable { return ++steps > 5; });
    for (std::uint64_t tag = 2; tag < 30; tag += 3)
        CHECK(client.cancel(tag));
    const auto responses = run(client, 20);
    for (const Response& response : responses)
        CHECK(response.outcome == (response.tag % 3 ? Outcome::timeout : Outcome::answered));
    CHECK(said(send(client, trusted(server.url())), "connection") == "1");
}

TEST_CASE("http2: a stream that the server resets is told apart") {
    const NodeServer server(tls("h2"));
    const Response response = send(trusted(server.url("/?reset")));
    CHECK(response.outcome == Outcome::connection_reset);
    CHECK(response.sent);
}

TEST_CASE("http2: a server that only speaks 1.1 gets all its requests at the same time") {
    const NodeServer server(tls("h1"));
    Client client;
    for (int burst = 0; burst < 2; ++burst) {
        for (int i = 0; i < 200; ++i)
            client.start(trusted(server.url("/?until=200")));
        const auto responses = run(client, 200);
        check_all_answered(responses);
        CHECK(connections(responses).size() == 200);
        CHECK(std::stoi(said(responses.back(), "handshakes")) > 50); // and not one after another
    }
}
