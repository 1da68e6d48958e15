#include <cstdlib>

#include <doctest/doctest.h>

#include "node_server.hpp"
#include "requests.hpp"
#include "resolver.hpp"
#include "server.hpp"

using namespace test;

namespace {

std::string of_host(int port) {
    return "http://127.0.0.1:" + std::to_string(port);
}

} // namespace

TEST_CASE("proxy: a plain request goes through it only where the request says so") {
    const Server server;
    NodeServer proxy(R"("kind": "proxy")");
    Client client;
    Request request = post(server.url("/hook"));
    CHECK(send(client, request).outcome == Outcome::answered);
    CHECK(proxy.lines().empty());
    request.proxy = of_host(proxy.port());
    CHECK(send(client, request).outcome == Outcome::answered);
    CHECK(proxy.lines() == std::vector<std::string>{"POST " + server.url("/hook")});
    request.proxy = "";
    CHECK(send(client, request).outcome == Outcome::answered);
    CHECK(proxy.lines().size() == 1);
    CHECK(server.received().size() == 3);
}

TEST_CASE("proxy: TLS goes through a tunnel, and the proxy sees none of the headers") {
    const NodeServer server(tls("h2"));
    NodeServer proxy(R"("kind": "proxy")");
    Client client;
    Request request = trusted(server.url());
    request.headers.push_back("webhook-signature: v1,secret");
    CHECK(said(send(client, request), "connection") == "1");
    request.proxy = of_host(proxy.port());
    const Response response = send(client, request);
    CHECK(response.error == "");
    CHECK(response.http_version == 20);
    CHECK(said(response, "connection") == "2");
    CHECK(proxy.lines() ==
          std::vector<std::string>{"CONNECT 127.0.0.1:" + std::to_string(server.port()) +
                                   " host,proxy-connection,user-agent"});
    CHECK(said(send(client, request), "connection") == "2");
    request.proxy = "";
    CHECK(said(send(client, request), "connection") == "1");
    CHECK(proxy.lines().size() == 1);
}

TEST_CASE("proxy: the proxy looks up the server's name") {
    const NodeServer server(tls("h1", "elsewhere"));
    NodeServer proxy(R"("kind": "proxy", "to": "127.0.0.1")");
    names.reset();
    Request request = trusted(server.url("/", "elsewhere.test"));
    request.proxy = of_host(proxy.port()) + "/";
    CHECK(send(request).outcome == Outcome::answered);
    CHECK(names.made == 0);
}

TEST_CASE("proxy: exceptions of the environment are ignored") {
    const Server server;
    NodeServer proxy(R"("kind": "proxy")");
    Request request = post(server.url());
    request.proxy = of_host(proxy.port());
    ::setenv("no_proxy", "*", 1);
    const Outcome outcome = send(request).outcome;
    ::unsetenv("no_proxy");
    CHECK(outcome == Outcome::answered);
    CHECK(proxy.lines().size() == 1);
}

TEST_CASE("proxy: one that refuses is told apart from the server") {
    const NodeServer server(tls("h1"));
    const NodeServer proxy(R"("kind": "proxy", "refuse": true)");
    Request request = trusted(server.url());
    request.proxy = of_host(proxy.port());
    const Response response = send(request);
    CHECK(response.outcome == Outcome::proxy_error);
    CHECK(response.status == 0);
    CHECK_FALSE(response.retry_after);
    CHECK_FALSE(response.sent);
}

TEST_CASE("proxy: one that is not there is no reason to go without") {
    const Server server;
    Request request = post(server.url());
    SUBCASE("refused") {
        request.proxy = of_host(closed_port());
        CHECK(send(request).outcome == Outcome::connection_refused);
    }
    SUBCASE("not found") {
        request.proxy = "http://dead.test:8080";
        CHECK(send(request).outcome == Outcome::dns_error);
    }
    SUBCASE("with a password in its URL") {
        request.proxy = "http://user:secret@127.0.0.1:8080";
        const Response response = send(request);
        CHECK(response.outcome == Outcome::refused_request);
        CHECK(response.error == "proxy URL must not contain a user name or password");
    }
    CHECK(server.received().empty());
}
