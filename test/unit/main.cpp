#define DOCTEST_CONFIG_IMPLEMENT
#include <csignal>

#include <doctest/doctest.h>

#include "http/client.hpp"
#include "server.hpp"

int main(int argc, char** argv) {
    std::signal(SIGPIPE, SIG_IGN); // as PostgreSQL's workers have it
    test::raise_descriptor_limit();
    const jobq::http::Library library;
    doctest::Context context(argc, argv);
    return context.run();
}
