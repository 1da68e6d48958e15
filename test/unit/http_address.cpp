#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "node_server.hpp"
#include "requests.hpp"
#include "resolver.hpp"
#include "server.hpp"

using namespace test;
using jobq::core::Address;

namespace {

bool is_loopback(const Address& address) {
    const auto& b = address.bytes;
    const bool v4 = b[10] == 0xff && b[11] == 0xff;
    return v4 ? b[12] == 127
              : b == std::array<std::uint8_t, 16>{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
}
bool no_loopback(const Address& address) {
    return !is_loopback(address);
}

std::string with_host(const Server& server, const std::string& host) {
    return "http://" + host + ":" + std::to_string(server.port()) + "/";
}

} // namespace

TEST_CASE("addresses: all are allowed at first") {
    const Server server;
    const Response response = send(post(server.url()));
    CHECK(response.outcome == Outcome::answered);
    CHECK(response.address == "127.0.0.1");
}

TEST_CASE("addresses: one that is not allowed is not connected to, however it is written") {
    const Server server;
    Client client;
    client.allow(no_loopback);
    for (const std::string host : {"127.0.0.1", "127.1", "2130706433", "0x7f000001", "127.0.0.2",
                                   "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "localhost",
                                   "a.localhost", "tls.test", "both.test"}) {
        CAPTURE(host);
        const Response response = send(client, post(with_host(server, host)));
        CHECK(response.outcome == Outcome::address_not_allowed);
        CHECK(response.error.find(" is not allowed") != std::string::npos);
        CHECK_FALSE(response.sent);
        CHECK(response.status == 0);
    }
    CHECK(send(client, post(with_host(server, "tls.test"))).error ==
          "address of host \"tls.test\" is not allowed");
    CHECK(send(client, post(with_host(server, "[::1]"))).error ==
          "address of host \"::1\" is not allowed");
    CHECK(server.connections_made() == 0);
}

TEST_CASE("addresses: the mapped form of an address that is allowed is connected to") {
    const Server server;
    Client client;
    client.allow(is_loopback);
    const Response response = send(client, post(with_host(server, "[::ffff:127.0.0.1]")));
    CHECK(response.outcome == Outcome::answered);
    CHECK(response.address == "127.0.0.1");
}

TEST_CASE("addresses: of a name's addresses those that are not allowed are passed over") {
    const Server server;
    Client client;
    client.allow([](const Address& address) { return address.bytes[15] == 1; });
    const Response response = send(client, post(with_host(server, "both.test")));
    CHECK(response.outcome == Outcome::answered);
    CHECK(response.address == "127.0.0.1");
}

TEST_CASE("addresses: where the one that is allowed does not answer, that is the reason given") {
    Client client;
    client.allow([](const Address& address) { return address.bytes[15] == 1; });
    const std::string url = "http://both.test:" + std::to_string(closed_port()) + "/";
    const Response response = send(client, post(url));
    CHECK(response.outcome == Outcome::connection_refused);
    CHECK(response.address == "127.0.0.1");
}

TEST_CASE("addresses: also where one that is not allowed follows") {
    const Server server;
    Client client;
    client.allow([](const Address& address) { return address.bytes[15] == 2; });
    const Response response = send(client, post(with_host(server, "both.test")));
    CHECK(response.outcome == Outcome::connection_refused);
    CHECK(response.address == "127.0.0.2");
    CHECK(server.connections_made() == 0);
}

TEST_CASE("addresses: a connection that is open is not used once its address is not allowed") {
    const Server server;
    Client client;
    client.allow(is_loopback);
    CHECK(send(client, post(server.url("/first"))).outcome == Outcome::answered);
    client.allow(no_loopback);
    const Response response = send(client, post(server.url("/second")));
    CHECK(response.outcome == Outcome::address_not_allowed);
    CHECK_FALSE(response.sent);
    client.allow({});
    CHECK(send(client, post(server.url("/third"))).outcome == Outcome::answered);
    const auto received = server.received();
    REQUIRE(received.size() == 2);
    CHECK(received[1].target == "/third");
}

TEST_CASE("addresses: HTTP/2 connections as well, while others use them") {
    const NodeServer server(tls("h2"));
    Client client;
    client.allow(is_loopback);
    for (int i = 0; i < 250; ++i) // more than one connection takes: some wait for one to open
        client.start(trusted(server.url("/?delay=300")));
    check_all_answered(run(client, 250));
    client.start(trusted(server.url("/?delay=300")));
    run_until(client, [&, steps = 0](const auto&) mutable { return ++steps > 5; });
    client.allow(no_loopback);
    Request request = trusted(server.url());
    request.tag = 1;
    client.start(std::move(request));
    for (const Response& response : run(client, 2)) {
        CHECK(response.outcome ==
              (response.tag ? Outcome::address_not_allowed : Outcome::answered));
        CHECK(response.address == "127.0.0.1");
    }
}

TEST_CASE("addresses: with a proxy, it is the proxy's that must be allowed") {
    const Server server;
    NodeServer proxy(R"("kind": "proxy")");
    Client client;
    client.allow(no_loopback);
    Request request = post("http://192.0.2.1/");
    request.proxy = "http://127.0.0.1:" + std::to_string(proxy.port());
    const Response response = send(client, request);
    CHECK(response.outcome == Outcome::address_not_allowed);
    CHECK(response.error == "address of proxy \"127.0.0.1\" is not allowed");
    CHECK(proxy.lines().empty());
    client.allow(is_loopback);
    request.url = server.url();
    CHECK(send(client, request).address == "127.0.0.1");
}
