// How many requests a second the client sends to a server on the loopback, and what one costs.
// speed [requests] [in flight]

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include <poll.h>
#include <sys/resource.h>

#include "http/client.hpp"
#include "server.hpp"

using namespace jobq::http;

namespace {

double cpu_seconds() {
    rusage usage{};
    ::getrusage(RUSAGE_THREAD, &usage);
    return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

} // namespace

int main(int argc, char** argv) {
    const std::size_t total = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 200'000;
    const std::size_t at_once = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 64;
    std::signal(SIGPIPE, SIG_IGN);
    test::raise_descriptor_limit();

    const Library library;
    test::Server server;
    server.keep_nothing();
    Client client;
    std::vector<Response> responses;
    std::size_t started = 0, ended = 0, failed = 0;
    const std::string body(200, 'x');

    const auto began = std::chrono::steady_clock::now();
    const double cpu_before = cpu_seconds();
    while (ended < total) {
        while (started < total && client.in_flight() < at_once) {
            Request request;
            request.tag = ++started;
            request.url = server.url("/hook");
            request.headers = {"content-type: application/json",
                               "webhook-id: 018f3c2e-7b1a-7c3d-8e4f-0123456789ab",
                               "jobq-queue: mail", "jobq-type: welcome", "jobq-attempt: 1"};
            request.body = body;
            client.start(std::move(request));
        }
        pollfd ready{client.fd(), POLLIN, 0};
        ::poll(&ready, 1, -1);
        client.step();
        client.take(responses);
        ended += responses.size();
        for (const Response& response : responses)
            failed += response.outcome != Outcome::answered;
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    std::printf("%zu requests, %zu at once: %.0f/s, %.1f us CPU each, %zu failed\n", total, at_once,
                static_cast<double>(total) / took.count(),
                (cpu_seconds() - cpu_before) / static_cast<double>(total) * 1e6, failed);
    return failed == 0 ? 0 : 1;
}
