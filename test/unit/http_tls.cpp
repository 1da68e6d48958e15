#include <doctest/doctest.h>

#include "node_server.hpp"
#include "requests.hpp"

using namespace test;

TEST_CASE("tls: a server is verified by the request's CA file") {
    const NodeServer server(tls("h1"));
    const Response response = send(trusted(server.url()));
    CHECK(response.error == "");
    CHECK(response.outcome == Outcome::answered);
    CHECK(response.sent);
}

TEST_CASE("tls: a server is refused, and nothing sent,") {
    std::string certificate = "server";
    Request request = trusted("");
    SUBCASE("if its authority is not one of the system's") {
        request.ca_file = "";
    }
    SUBCASE("if its authority is not that of the CA file") {
        request.ca_file = Certificates::get().other_ca();
    }
    SUBCASE("if its certificate is for another name") {
        certificate = "elsewhere";
    }
    SUBCASE("if its certificate has expired") {
        certificate = "expired";
    }
    const NodeServer server(tls("h1", certificate));
    request.url = server.url();
    const Response response = send(std::move(request));
    CHECK(response.outcome == Outcome::tls_error);
    CHECK(response.error != "");
    CHECK(response.address == "127.0.0.1");
    CHECK_FALSE(response.sent);
}

TEST_CASE("tls: where the CA file does not exist nothing is connected to") {
    const NodeServer server(tls("h1"));
    Request request = post(server.url());
    request.ca_file = Certificates::get().file("nothing.pem");
    const Response response = send(std::move(request));
    CHECK(response.outcome == Outcome::tls_error);
    CHECK(response.error.find("nothing.pem") != std::string::npos);
    CHECK(response.address == "");
    CHECK_FALSE(response.sent);
}

TEST_CASE("tls: the certificate's name is compared with the URL's") {
    const NodeServer server(tls("h1", "elsewhere"));
    Client client;
    CHECK(send(client, trusted(server.url("/", "elsewhere.test"))).outcome == Outcome::answered);
    CHECK(send(client, trusted(server.url("/", "tls.test"))).outcome == Outcome::tls_error);
}

TEST_CASE("tls: a connection is used again only by requests with the same CA file") {
    const NodeServer server(tls("h1"));
    Client client;
    CHECK(send(client, trusted(server.url())).outcome == Outcome::answered);
    Request request = post(server.url());
    CHECK(send(client, request).outcome == Outcome::tls_error);
    request.ca_file = Certificates::get().other_ca();
    CHECK(send(client, request).outcome == Outcome::tls_error);
    const Response response = send(client, trusted(server.url()));
    CHECK(response.outcome == Outcome::answered);
    CHECK(said(response, "connection") == "1");
}

TEST_CASE("tls: a client certificate is given where it is asked for") {
    const Certificates& certificates = Certificates::get();
    for (const std::string kind : {"h1", "h2"}) {
        const NodeServer server(tls(kind) + R"(, "client_ca": ")" + certificates.ca() + "\"");
        Client client;
        CHECK(send(client, trusted(server.url())).outcome != Outcome::answered);
        Request alice = trusted(server.url());
        alice.client_cert_file = certificates.certificate("alice");
        alice.client_key_file = certificates.key("alice");
        Request bob = trusted(server.url());
        bob.client_cert_file = certificates.file("bob-both.pem");
        for (int i = 0; i < 2; ++i) {
            CHECK(said(send(client, alice), "client") == "alice");
            CHECK(said(send(client, bob), "client") == "bob");
        }
        CHECK(send(client, trusted(server.url())).outcome != Outcome::answered);
    }
}

TEST_CASE("tls: client certificates share no connection, many at the same time") {
    const Certificates& certificates = Certificates::get();
    const NodeServer server(tls("h2") + R"(, "client_ca": ")" + certificates.ca() + "\"");
    Client client;
    for (std::uint64_t tag = 0; tag < 100; ++tag) {
        Request request = trusted(server.url("/?delay=5"));
        const std::string who = tag % 2 ? "alice" : "bob";
        request.tag = tag;
        request.client_cert_file = certificates.certificate(who);
        request.client_key_file = certificates.key(who);
        client.start(std::move(request));
    }
    const auto responses = run(client, 100);
    check_all_answered(responses);
    for (const Response& response : responses)
        REQUIRE(said(response, "client") == (response.tag % 2 ? "alice" : "bob"));
}

TEST_CASE(
    "tls: a client key that is of no use is a TLS error, and nobody is asked for a password") {
    const Certificates& certificates = Certificates::get();
    const NodeServer server(tls("h1") + R"(, "client_ca": ")" + certificates.ca() + "\"");
    Request request = trusted(server.url());
    request.client_cert_file = certificates.certificate("alice");
    SUBCASE("encrypted") {
        request.client_key_file = certificates.file("alice-encrypted.key");
    }
    SUBCASE("of another certificate") {
        request.client_key_file = certificates.key("bob");
    }
    SUBCASE("missing") {
        request.client_key_file = certificates.key("nobody");
    }
    const Response response = send(std::move(request));
    CHECK(response.outcome == Outcome::tls_error);
    CHECK_FALSE(response.sent);
}

TEST_CASE("tls: a response of 300 MB costs little memory") {
    const NodeServer server(tls("h2"));
    Request request = trusted(server.url("/?bytes=314572800"));
    Options options;
    options.max_response = std::size_t{1} << 30;
    SUBCASE("over HTTP/1.1") {
        request.version = Version::http_1_1;
    }
    SUBCASE("over HTTP/2") {}
    Client client(options);
    CHECK(send(client, trusted(server.url())).outcome == Outcome::answered);
    const std::size_t before = resident_bytes();
    const Response response = send(client, request);
    CHECK(response.error == "");
    CHECK(response.outcome == Outcome::answered);
    CHECK(response.http_version == (request.version == Version::http_1_1 ? 11 : 20));
    CHECK(response.body.size() == 16'384);
    CHECK(response.truncated);
    if (!keeps_freed_memory)
        CHECK(resident_bytes() < before + (4U << 20));
}
