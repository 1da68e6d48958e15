#include <doctest/doctest.h>

#include "core/header.hpp"

using namespace jobq::core;
using namespace std::string_view_literals;

TEST_CASE("header: ordinary headers are accepted") {
    CHECK(check_header("Authorization", "Bearer abc") == std::nullopt);
    CHECK(check_header("content-type", "application/json; charset=utf-8") == std::nullopt);
    CHECK(check_header("x_1!#$%&'*+-.^_`|~", "") == std::nullopt);
    CHECK(check_header("x-tab", "a\tb") == std::nullopt);
    CHECK(check_header("x-latin", "caf\xe9") == std::nullopt);
}

TEST_CASE("header: a name that is no token is refused") {
    for (const auto name : {"a b"sv, "a:b"sv, "a\r\nb"sv, "a\0b"sv, "\xc3\xa4"sv, "a(b)"sv})
        CHECK(check_header(name, "x") ==
              "header name must have only letters, digits and the characters !#$%&'*+-.^_`|~");
    CHECK(check_header("", "x") == "header name must not be empty");
}

TEST_CASE("header: a value that could end the line is refused") {
    for (const auto value : {"a\rb"sv, "a\nb"sv, "a\0b"sv, "\x1b[0m"sv, "\x7f"sv})
        CHECK(check_header("x-a", value) ==
              "value of header \"x-a\" must not contain line breaks or control characters");
}

TEST_CASE("header: names that jobq sets are refused in any case") {
    for (const auto name : {"webhook-id", "Webhook-Timestamp", "WEBHOOK-SIGNATURE", "jobq-queue",
                            "JobQ-Anything", "jobq-"})
        CHECK(is_reserved_header(name));
    CHECK(check_header("Webhook-Id", "x") == "header \"Webhook-Id\" is set by jobq itself");
}

TEST_CASE("header: names that frame the message are refused") {
    for (const auto name : {"Content-Length", "transfer-encoding", "Connection", "Host", "Expect",
                            "TE", "Trailer", "Upgrade"})
        CHECK(is_reserved_header(name));
}

TEST_CASE("header: names that only resemble reserved ones are allowed") {
    for (const auto name : {"x-webhook-id", "webhook-ids", "webhook", "jobq", "hosts"})
        CHECK_FALSE(is_reserved_header(name));
}

TEST_CASE("header: lengths are limited") {
    CHECK(check_header(std::string(256, 'x'), std::string(8192, 'y')) == std::nullopt);
    CHECK(check_header(std::string(257, 'x'), "") ==
          "header name must not be longer than 256 bytes");
    CHECK(check_header("x", std::string(8193, 'y')) ==
          "value of header \"x\" must not be longer than 8192 bytes");
}

TEST_CASE("header: names are the same whatever the case of their letters") {
    CHECK(same_name("Content-Type", "content-TYPE"));
    CHECK_FALSE(same_name("content-type", "content-typ"));
    CHECK_FALSE(same_name("@", "`"));
}
