#include <algorithm>
#include <array>
#include <cstdlib>
#include <ctime>
#include <set>

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "requests.hpp"
#include "resolver.hpp"
#include "server.hpp"

using namespace test;

TEST_CASE("client: method, target, headers and body arrive as sent") {
    const Server server;
    Request request = post(server.url("/hook?a=b"), "{\"n\": 1}");
    request.headers.push_back("webhook-id: 018f3c2e");
    request.headers.push_back("x-empty:");
    request.headers.push_back("x-spaces: a  b");
    CHECK(send(std::move(request)).outcome == Outcome::answered);

    const auto received = server.received();
    REQUIRE(received.size() == 1);
    const Received& r = received.front();
    CHECK(r.method == "POST");
    CHECK(r.target == "/hook?a=b");
    CHECK(r.body == "{\"n\": 1}");
    CHECK(r.header("content-type") == "application/json");
    CHECK(r.header("content-length") == "8");
    CHECK(r.header("host") == "127.0.0.1:" + std::to_string(server.port()));
    CHECK(r.header("webhook-id") == "018f3c2e");
    CHECK(r.header("x-empty") == "");
    CHECK(r.header("x-spaces") == "a  b");
    CHECK(r.header("user-agent") == "jobq");
    CHECK(r.header("expect") == "(none)");
}

TEST_CASE("client: no content type is made up") {
    const Server server;
    Request request = post(server.url());
    request.headers.clear();
    send(std::move(request));
    CHECK(server.received().at(0).header("content-type") == "(none)");
}

TEST_CASE("client: the user agent is an option") {
    const Server server;
    Options options;
    options.user_agent = "jobq/1.2";
    Client client(options);
    send(client, post(server.url()));
    CHECK(server.received().at(0).header("user-agent") == "jobq/1.2");
}

TEST_CASE("client: an empty body is sent with its length") {
    const Server server;
    CHECK(send(post(server.url(), "")).outcome == Outcome::answered);
    CHECK(server.received().at(0).header("content-length") == "0");
}

TEST_CASE("client: a body of 4 MB with every byte value arrives whole, without Expect") {
    const Server server;
    std::string body(4 << 20, '\0');
    for (std::size_t i = 0; i < body.size(); ++i)
        body[i] = static_cast<char>(i);
    CHECK(send(post(server.url(), body)).outcome == Outcome::answered);
    CHECK(server.received().at(0).body == body);
    CHECK(server.received().at(0).header("expect") == "(none)");
}

TEST_CASE("client: one handle sends different methods one after another") {
    const Server server;
    Client client;
    for (const std::string method : {"GET", "PUT", "HEAD", "POST", "DELETE", "PATCH"}) {
        Request request = post(server.url("/" + method), method == "PUT" ? "content" : "");
        request.method = method;
        CHECK(send(client, std::move(request)).outcome == Outcome::answered);
        const Received last = server.received().back();
        CHECK(last.method == method);
        CHECK(last.body == (method == "PUT" ? "content" : ""));
    }
}

TEST_CASE("client: status, content type and body come back") {
    const Server server(always(
        {.status = 503, .headers = {"Content-Type: text/plain"}, .body = std::string("a\0b", 3)}));
    Request request = post(server.url());
    request.tag = 42;
    const Response response = send(std::move(request));
    CHECK(response.tag == 42);
    CHECK(response.outcome == Outcome::answered);
    CHECK(response.status == 503);
    CHECK(response.content_type == "text/plain");
    CHECK(response.body == std::string("a\0b", 3));
    CHECK_FALSE(response.truncated);
    CHECK(response.error == "");
    CHECK(response.elapsed > 0us);
    CHECK(response.elapsed < patience);
}

TEST_CASE("client: what was connected to and spoken comes back") {
    const Server server;
    const Response response = send(post(server.url()));
    CHECK(response.address == "127.0.0.1");
    CHECK(response.http_version == 11);
    CHECK(response.sent);
    const Response refused = send(post("http://127.0.0.1:" + std::to_string(closed_port()) + "/"));
    CHECK(refused.address == "127.0.0.1");
    CHECK(refused.http_version == 0);
    CHECK_FALSE(refused.sent);
    const Response nowhere = send(post("http://dead.test/"));
    CHECK(nowhere.address == "");
    CHECK_FALSE(nowhere.sent);
}

TEST_CASE("client: a request that was not answered was sent nevertheless") {
    const Server server([](const Received& r) {
        return Answer{.then = r.target == "/hang" ? Answer::Then::hang : Answer::Then::drop};
    });
    Request request = post(server.url("/hang"));
    request.timeout = 200ms;
    CHECK(send(request).sent);
    CHECK(send(post(server.url("/drop"))).sent);
}

TEST_CASE("client: Retry-After comes back as seconds") {
    const auto retry_after = [](const std::string& value) {
        const Server server(always({.status = 503, .headers = {"retry-after: " + value}}));
        return send(post(server.url())).retry_after;
    };
    const auto date = [](std::chrono::seconds from_now) {
        const std::time_t at = std::time(nullptr) + from_now.count();
        std::array<char, 64> text;
        std::strftime(text.data(), text.size(), "%a, %d %b %Y %H:%M:%S GMT", std::gmtime(&at));
        return std::string(text.data());
    };
    CHECK(retry_after("120") == 120s);
    CHECK(retry_after("0") == 0s);
    CHECK(retry_after("99999999999999999999") == 365 * 24h);
    CHECK(retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0s);
    const auto in_an_hour = retry_after(date(1h));
    REQUIRE(in_an_hour);
    CHECK(*in_an_hour <= 1h);
    CHECK(*in_an_hour > 59min);
    CHECK(retry_after(date(24h * 400)) == 365 * 24h);
    CHECK_FALSE(retry_after("soon"));
    CHECK_FALSE(retry_after("-5"));
    CHECK_FALSE(retry_after(""));
    const Server server(always({.status = 503}));
    CHECK_FALSE(send(post(server.url())).retry_after);
}

TEST_CASE("client: the receiver can say that it wants no further try") {
    const auto no_retry = [](const std::string& header) {
        const Server server(always({.status = 500, .headers = {header}}));
        return send(post(server.url())).no_retry;
    };
    CHECK(no_retry("jobq-no-retry: true"));
    CHECK(no_retry("JOBQ-No-Retry: TRUE"));
    CHECK(no_retry("jobq-no-retry: 1"));
    CHECK_FALSE(no_retry("jobq-no-retry: false"));
    CHECK_FALSE(no_retry("jobq-no-retry: 10"));
    CHECK_FALSE(no_retry("jobq-no-retry:"));
    CHECK_FALSE(no_retry("x-jobq-no-retry: true"));
}

TEST_CASE("client: what an answer says about trying again is not taken from the one before") {
    const Server server([](const Received& r) {
        Answer answer{.status = 503};
        if (r.target == "/first")
            answer.headers = {"retry-after: 5", "jobq-no-retry: true"};
        return answer;
    });
    Client client;
    CHECK(send(client, post(server.url("/first"))).no_retry);
    const Response response = send(client, post(server.url("/second")));
    CHECK_FALSE(response.no_retry);
    CHECK_FALSE(response.retry_after);
}

TEST_CASE("client: a redirect is an answer and is not followed") {
    const Server elsewhere;
    const Server server(always({.status = 302, .headers = {"Location: " + elsewhere.url()}}));
    CHECK(send(post(server.url())).status == 302);
    CHECK(elsewhere.received().empty());
}

TEST_CASE("client: proxies of the environment are ignored") {
    const Server server;
    const auto proxy = "http://127.0.0.1:" + std::to_string(test::closed_port());
    ::setenv("http_proxy", proxy.c_str(), 1);
    const Outcome outcome = send(post(server.url())).outcome;
    ::unsetenv("http_proxy");
    CHECK(outcome == Outcome::answered);
}

TEST_CASE("client: only the asked part of the body is kept, and the connection still used") {
    const Server server(always({.body = "0123456789", .more_body = 1 << 20}));
    Client client;
    for (const std::size_t keep : {0U, 5U, 10U}) {
        Request request = post(server.url());
        request.keep_response = keep;
        const Response response = send(client, std::move(request));
        CHECK(response.outcome == Outcome::answered);
        CHECK(response.body == std::string("0123456789").substr(0, keep));
        CHECK(response.truncated);
    }
    CHECK(server.connections_made() == 1);
}

TEST_CASE("client: a body of exactly the kept size is not truncated") {
    const Server server(always({.body = "01234"}));
    Request request = post(server.url());
    request.keep_response = 5;
    const Response response = send(std::move(request));
    CHECK(response.body == "01234");
    CHECK_FALSE(response.truncated);
}

TEST_CASE("client: a body of 300 MB costs little memory") {
    const Server server(always({.more_body = 300U << 20}));
    Options options;
    options.max_response = std::size_t{1} << 30;
    Client client(options);
    const std::size_t before = resident_bytes();
    const Response response = send(client, post(server.url()));
    CHECK(response.outcome == Outcome::answered);
    CHECK(response.body.size() == 16'384);
    CHECK(response.truncated);
    CHECK(resident_bytes() < before + (16U << 20));
}

TEST_CASE("client: a body that is announced as too large ends the transfer") {
    const Server server(always({.status = 201, .more_body = 65U << 20}));
    const Response response = send(post(server.url()));
    CHECK(response.outcome == Outcome::response_too_large);
    CHECK(response.status == 201);
    CHECK(response.error != "");
}

TEST_CASE("client: a body that turns out too large ends the transfer") {
    const Server server(always({.more_body = 100'000, .raw = "HTTP/1.1 200 OK\r\n\r\n"}));
    Options options;
    options.max_response = 50'000;
    Client client(options);
    const Response response = send(client, post(server.url()));
    CHECK(response.outcome == Outcome::response_too_large);
    CHECK(response.status == 200);
    CHECK(response.error == "response is too large");
}

TEST_CASE("client: headers without end are ended") {
    std::string raw = "HTTP/1.1 200 OK\r\n";
    for (int i = 0; i < 5000; ++i)
        raw += "x-header-" + std::to_string(i) + ": " + std::string(100, 'x') + "\r\n";
    const Server server(always({.then = Answer::Then::hang, .raw = raw}));
    CHECK(send(post(server.url())).outcome == Outcome::response_too_large);
}

TEST_CASE("client: connections are kept and used again") {
    const Server server;
    Client client;
    for (int i = 0; i < 20; ++i)
        send(client, post(server.url()));
    CHECK(server.connections_made() == 1);
}

TEST_CASE("client: a connection that the server closed meanwhile costs no failure") {
    const Server server(always({.then = Answer::Then::close}));
    Client client;
    for (int i = 0; i < 20; ++i)
        CHECK(send(client, post(server.url())).outcome == Outcome::answered);
    CHECK(server.connections_made() == 20);
}

TEST_CASE("client: a refused connection is told apart") {
    const auto url = "http://127.0.0.1:" + std::to_string(test::closed_port()) + "/";
    const Response response = send(post(url));
    CHECK(response.outcome == Outcome::connection_refused);
    CHECK(response.status == 0);
    CHECK(response.error != "");
}

TEST_CASE("client: an address without a route is unreachable") {
    CHECK(send(post("http://255.255.255.255/")).outcome == Outcome::unreachable);
}

TEST_CASE("client: a reset instead of an answer is told apart") {
    const Server server(always({.then = Answer::Then::reset}));
    const Response response = send(post(server.url()));
    CHECK(response.outcome == Outcome::connection_reset);
    CHECK(response.status == 0);
}

TEST_CASE("client: a connection closed without an answer counts as reset") {
    const Server server(always({.then = Answer::Then::drop}));
    CHECK(send(post(server.url())).outcome == Outcome::connection_reset);
}

TEST_CASE("client: a reset in the middle of the body is not an answer but keeps the status") {
    const Server server(always({.then = Answer::Then::reset,
                                .raw = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"}));
    const Response response = send(post(server.url()));
    CHECK(response.outcome == Outcome::connection_reset);
    CHECK(response.status == 200);
}

TEST_CASE("client: what is not HTTP is a bad response") {
    const Server server(always({.then = Answer::Then::close, .raw = "SSH-2.0-OpenSSH_9.2\r\n"}));
    CHECK(send(post(server.url())).outcome == Outcome::bad_response);
}

TEST_CASE("client: a receiver that never answers times out") {
    const Server server(always({.then = Answer::Then::hang}));
    Request request = post(server.url());
    request.timeout = 200ms;
    const Response response = send(std::move(request));
    CHECK(response.outcome == Outcome::timeout);
    CHECK(response.elapsed >= 200ms);
    CHECK(response.elapsed < 5s);
}

TEST_CASE("client: a body that stops in the middle times out with its status") {
    const Server server(always(
        {.then = Answer::Then::hang, .raw = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"}));
    Request request = post(server.url());
    request.timeout = 200ms;
    const Response response = send(std::move(request));
    CHECK(response.outcome == Outcome::timeout);
    CHECK(response.status == 200);
    CHECK(response.body == "half");
}

TEST_CASE("client: a connection that is not taken times out by its own limit") {
    // A full backlog: the kernel leaves further connections unanswered.
    const Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof address;
    REQUIRE(::bind(listener.get(), generic, size) == 0);
    REQUIRE(::listen(listener.get(), 0) == 0);
    REQUIRE(::getsockname(listener.get(), generic, &size) == 0);
    std::vector<Fd> fillers;
    for (int i = 0; i < 3; ++i) {
        fillers.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
        ::connect(fillers.back().get(), generic, size);
    }

    Request request = post("http://127.0.0.1:" + std::to_string(ntohs(address.sin_port)) + "/");
    request.connect_timeout = 200ms;
    request.timeout = 60s;
    const Response response = send(std::move(request));
    CHECK(response.outcome == Outcome::timeout);
    CHECK(response.elapsed < 5s);
}

TEST_CASE("client: a slow receiver does not hold up the others") {
    const Server slow(always({.delay = 60s}));
    const Server quick;
    Client client;
    for (int i = 0; i < 50; ++i)
        client.start(post(slow.url()));
    const auto began = Clock::now();
    for (int i = 0; i < 20; ++i) {
        client.start(post(quick.url()));
        CHECK(run(client, 1).front().outcome == Outcome::answered);
    }
    CHECK(Clock::now() - began < 5s);
    CHECK(client.in_flight() == 50);
}

TEST_CASE("client: a name that does not exist is a DNS error") {
    // A label of more than 63 characters fails without asking anybody.
    CHECK(send(post("http://" + std::string(64, 'x') + ".invalid/")).outcome == Outcome::dns_error);
}

TEST_CASE("client: a name lookup never takes longer than the timeout") {
    // Whether this fails at once or hangs is up to the resolver of the machine.
    Request request = post("http://nosuchhost.invalid/");
    request.timeout = 500ms;
    const auto began = Clock::now();
    const Response response = send(std::move(request));
    const bool as_expected =
        response.outcome == Outcome::dns_error || response.outcome == Outcome::timeout;
    CHECK(as_expected);
    CHECK(Clock::now() - began < 3s);
}

TEST_CASE("client: a name that is not known is looked up once for many requests") {
    test::raise_descriptor_limit();
    const Server server;
    names.reset();
    Client client;
    const auto url = "http://cold.test:" + std::to_string(server.port()) + "/";
    for (int i = 0; i < 1000; ++i)
        client.start(post(url));
    CHECK(client.in_flight() == 1000);
    const auto responses = run(client, 1000);
    for (const Response& response : responses)
        REQUIRE(response.outcome == Outcome::answered);
    CHECK(names.made == 1);
    CHECK(client.in_flight() == 0);
}

TEST_CASE("client: a name that cannot be found is looked up by few at a time") {
    names.reset();
    Client client;
    for (int i = 0; i < 100; ++i)
        client.start(post("http://dead.test/"));
    const auto responses = run(client, 100);
    for (const Response& response : responses)
        REQUIRE(response.outcome == Outcome::dns_error);
    CHECK(names.peak <= 8);
    REQUIRE(names.at_once().size() == 100);
    CHECK(names.at_once()[1] <= 2); // it began when the first had failed
}

TEST_CASE("client: a host that is down holds up no other") {
    const Server server;
    names.reset();
    Client client;
    for (int i = 0; i < 20; ++i) {
        client.start(post("http://dead.test/"));
        client.start(post(server.url()));
    }
    const auto responses = run_until(client, [](const auto& all) {
        return std::count_if(all.begin(), all.end(), [](const Response& response) {
                   return response.outcome == Outcome::answered;
               }) == 20;
    });
    CHECK(responses.size() < 40);
    run(client, 40 - responses.size());
}

TEST_CASE("client: requests that wait for a host can be cancelled") {
    test::raise_descriptor_limit();
    const Server server;
    Client client;
    const auto url = "http://cold.test:" + std::to_string(server.port()) + "/";
    for (std::uint64_t tag = 1; tag <= 10; ++tag) {
        Request request = post(url);
        request.tag = tag;
        client.start(std::move(request));
    }
    client.step();
    CHECK(client.cancel(1)); // the others waited for it
    CHECK(client.cancel(5));
    CHECK(client.in_flight() == 8);
    std::set<std::uint64_t> answered;
    for (const Response& response : run(client, 8))
        answered.insert(response.tag);
    CHECK(answered == std::set<std::uint64_t>{2, 3, 4, 6, 7, 8, 9, 10});
    client.start(post(url));
    client.start(post(url));
    client.cancel_all();
    CHECK(client.in_flight() == 0);
}

TEST_CASE("client: a host that comes back is used at full width again") {
    test::raise_descriptor_limit();
    Server server(always({.delay = 200ms}));
    Client client;
    const int port = test::closed_port();
    CHECK(send(client, post("http://127.0.0.1:" + std::to_string(port) + "/")).outcome ==
          Outcome::connection_refused);
    for (int i = 0; i < 100; ++i)
        client.start(post(server.url()));
    const auto begun = Clock::now();
    run(client, 100);
    CHECK(Clock::now() - begun < 2s); // eight at a time would be 2.6 s
}

TEST_CASE("client: a receiver that does not speak TLS is a TLS error") {
    const Server server;
    const Response response = send(post("https" + server.url().substr(4)));
    CHECK(response.outcome == Outcome::tls_error);
}

TEST_CASE("client: a request that is not fit to be sent ends in a response that says why") {
    const Server server;
    Client client;
    Request request = post(server.url());
    SUBCASE("header with a line break") {
        request.headers.push_back("x-a: b\r\nx-c: d");
    }
    SUBCASE("header without a colon") {
        request.headers.push_back("x-a");
    }
    SUBCASE("header without a name") {
        request.headers.push_back(": b");
    }
    SUBCASE("header in libcurl's notation for an empty one") {
        request.headers.push_back("x-a;");
    }
    SUBCASE("method with a space") {
        request.method = "POST /other";
    }
    SUBCASE("empty method") {
        request.method = "";
    }
    SUBCASE("scheme that is not HTTP") {
        request.url = "file:///etc/hostname";
    }
    SUBCASE("malformed URL") {
        request.url = "http://[::1/";
    }
    SUBCASE("empty URL") {
        request.url = "";
    }
    request.tag = 7;
    const Response response = send(client, std::move(request));
    CHECK(response.tag == 7);
    CHECK(response.outcome == Outcome::refused_request);
    CHECK(response.error != "");
    CHECK(server.received().empty());
    CHECK(send(client, post(server.url())).outcome == Outcome::answered);
}

TEST_CASE("client: a request that ends at once makes the descriptor readable") {
    Client client;
    Request request = post("http://127.0.0.1/");
    request.method = "";
    client.start(std::move(request));
    CHECK(client.in_flight() == 0);
    CHECK(readable(client.fd(), 5s));
}

TEST_CASE("client: the descriptor is readable exactly while there is something to do") {
    const Server server(always({.delay = 100ms}));
    Client client;
    CHECK_FALSE(readable(client.fd(), 0ms));
    client.start(post(server.url()));
    CHECK(readable(client.fd(), 0ms));
    run(client, 1);
    client.step();
    CHECK_FALSE(readable(client.fd(), 0ms));
}

TEST_CASE("client: an idle connection that the server closes does not keep it readable") {
    Client client;
    {
        const Server server;
        send(client, post(server.url()));
    }
    client.step();
    CHECK_FALSE(readable(client.fd(), 0ms));
}

TEST_CASE("client: sleeping on the descriptor inside another epoll is enough") {
    const Server server(always({.delay = 20ms}));
    Client client;
    const Fd outer(::epoll_create1(EPOLL_CLOEXEC));
    epoll_event event{};
    event.events = EPOLLIN;
    REQUIRE(::epoll_ctl(outer.get(), EPOLL_CTL_ADD, client.fd(), &event) == 0);
    std::vector<Response> responses;
    for (int i = 0; i < 10; ++i) {
        client.start(post(server.url()));
        int steps = 0;
        do {
            REQUIRE(::epoll_wait(outer.get(), &event, 1, 10'000) == 1);
            client.step();
            client.take(responses);
            ++steps;
        } while (responses.empty());
        CHECK(responses.size() == 1);
        CHECK(steps < 20); // it slept, and did not spin
    }
}

TEST_CASE("client: step does not wait") {
    const Server server(always({.then = Answer::Then::hang}));
    Client client;
    client.start(post(server.url()));
    const auto began = Clock::now();
    for (int i = 0; i < 100; ++i)
        client.step();
    CHECK(Clock::now() - began < 2s);
    CHECK(client.in_flight() == 1);
}

TEST_CASE("client: 1,000 requests at once are each answered once") {
    const Server server([](const Received& r) { return Answer{.body = r.body, .delay = 50ms}; });
    Client client;
    for (std::uint64_t tag = 0; tag < 1000; ++tag) {
        Request request = post(server.url(), std::to_string(tag));
        request.tag = tag;
        client.start(std::move(request));
    }
    CHECK(client.in_flight() == 1000);
    std::set<std::uint64_t> tags;
    for (const Response& response : run(client, 1000)) {
        REQUIRE(response.outcome == Outcome::answered);
        REQUIRE(response.body == std::to_string(response.tag));
        tags.insert(response.tag);
    }
    CHECK(tags.size() == 1000);
    CHECK(server.connections_made() == 1000);
}

TEST_CASE("client: the connections of a burst are kept for the next") {
    const Server server(always({.delay = 20ms}));
    Client client;
    for (int burst = 0; burst < 3; ++burst) {
        for (int i = 0; i < 700; ++i)
            client.start(post(server.url()));
        run(client, 700);
    }
    CHECK(server.connections_made() == 700);
}

TEST_CASE("client: no more connections are kept than the option says") {
    const Server server(always({.delay = 20ms}));
    Options options;
    options.connections = 10;
    Client client(options);
    for (int i = 0; i < 50; ++i)
        client.start(post(server.url()));
    CHECK(run(client, 50).size() == 50);
    run_until(client, [&](const auto&) { return server.connections_open() <= 10; });
}

TEST_CASE("client: a cancelled request gets no response and its connection is closed") {
    const Server server([](const Received& r) {
        return Answer{.then = r.target == "/hang" ? Answer::Then::hang : Answer::Then::keep_open};
    });
    Client client;
    Request request = post(server.url("/hang"));
    request.tag = 1;
    client.start(std::move(request));
    run_until(client, [&](const auto&) { return server.connections_open() == 1; });

    CHECK(client.cancel(1));
    CHECK(client.in_flight() == 0);
    CHECK_FALSE(client.cancel(1));
    run_until(client, [&](const auto&) { return server.connections_open() == 0; });
    Request other = post(server.url("/"));
    other.tag = 2;
    CHECK(send(client, std::move(other)).tag == 2);
}

TEST_CASE("client: a request cancelled before it began is never sent") {
    const Server server;
    Client client;
    client.start(post(server.url("/first")));
    client.cancel_all();
    send(client, post(server.url("/second")));
    const auto received = server.received();
    REQUIRE(received.size() == 1);
    CHECK(received.front().target == "/second");
}

TEST_CASE("client: cancel takes back a response that was not taken") {
    Client client;
    for (std::uint64_t tag = 1; tag <= 2; ++tag) {
        Request request = post("");
        request.method = "";
        request.tag = tag;
        client.start(std::move(request));
    }
    CHECK(client.cancel(1));
    const auto responses = run(client, 1);
    REQUIRE(responses.size() == 1);
    CHECK(responses.front().tag == 2);
}

TEST_CASE("client: cancel_all ends everything in flight") {
    const Server server(always({.then = Answer::Then::hang}));
    Client client;
    for (int i = 0; i < 100; ++i)
        client.start(post(server.url()));
    run_until(client, [&](const auto&) { return server.connections_open() == 100; });
    client.cancel_all();
    CHECK(client.in_flight() == 0);
    CHECK(run_until(client, [&](const auto&) { return server.connections_open() == 0; }).empty());
}

TEST_CASE("client: it can be dropped with requests in flight") {
    const Server server(always({.then = Answer::Then::hang}));
    {
        Client client;
        for (int i = 0; i < 10; ++i)
            client.start(post(server.url()));
        run_until(client, [&](const auto&) { return server.connections_open() == 10; });
    }
    Client client;
    run_until(client, [&](const auto&) { return server.connections_open() == 0; });
}

TEST_CASE("client: every outcome has a name of its own") {
    std::set<std::string_view> all;
    for (int i = 0; i <= static_cast<int>(Outcome::other_error); ++i)
        all.insert(name(static_cast<Outcome>(i)));
    CHECK(all.size() == static_cast<std::size_t>(Outcome::other_error) + 1);
    CHECK(name(Outcome::connection_refused) == "connection_refused");
}
