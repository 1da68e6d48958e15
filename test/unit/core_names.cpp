#include <doctest/doctest.h>

#include "core/names.hpp"

using namespace jobq::core;

TEST_CASE("names: 1 to 48 bytes of any printable text are a name") {
    CHECK(check_name("queue", "a") == std::nullopt);
    CHECK(check_name("queue", "E-Mail an Käufer") == std::nullopt);
    CHECK(check_name("queue", std::string(48, 'x')) == std::nullopt);
}

TEST_CASE("names: an empty name is refused") {
    CHECK(check_name("queue", "") == "queue name must not be empty");
}

TEST_CASE("names: length is counted in bytes") {
    CHECK(check_name("endpoint", std::string(49, 'x')) ==
          "endpoint name must not be longer than 48 bytes");
    std::string umlauts;
    for (int i = 0; i < 25; ++i)
        umlauts += "ä";
    CHECK(check_name("queue", umlauts) == "queue name must not be longer than 48 bytes");
}

TEST_CASE("names: control characters are refused") {
    using namespace std::string_view_literals;
    const auto reason = "queue name must not contain control characters";
    CHECK(check_name("queue", "a\nb") == reason);
    CHECK(check_name("queue", "a\0b"sv) == reason);
    CHECK(check_name("queue", "a\x7f") == reason);
}

TEST_CASE("names: the longest channel fits into PostgreSQL's 63 bytes") {
    CHECK(channel_of("mail") == "jobq_mail");
    CHECK(channel_of(std::string(max_name_bytes, 'x')).size() <= 63);
}
