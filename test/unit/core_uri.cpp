#include <doctest/doctest.h>

#include "core/uri.hpp"

using namespace jobq::core;
using namespace std::string_view_literals;

TEST_CASE("uri: absolute and relative references are accepted") {
    for (const auto text :
         {"https://example.com/shop?a=b#c"sv, "/shop/orders"sv, "shop"sv,
          "urn:uuid:6e8bc430-9c3a-11d9-9669-0800200c9a66"sv, "mailto:ada@example.com"sv,
          "//example.com"sv, "http://[::1]/"sv, "a%20b%C3%A4"sv, "?"sv, "#"sv, "1-555-123-4567"sv})
        CHECK(check_uri_reference("source", text) == std::nullopt);
}

TEST_CASE("uri: characters that no URI has are refused") {
    for (const auto text : {"a b"sv, "a\r\nx-b: c"sv, "a\0b"sv, "a\tb"sv, "\x7f"sv, "\xc3\xa4"sv,
                            "<a>"sv, "a\"b"sv, "a\\b"sv, "{a}"sv, "a|b"sv, "a^b"sv, "a`b"sv})
        CHECK(check_uri_reference("source", text) ==
              "source must have only ASCII letters, digits and the characters "
              "-._~:/?#[]@!$&'()*+,;=%");
}

TEST_CASE("uri: an escape has two hexadecimal digits") {
    for (const auto text : {"%"sv, "a%2"sv, "%zz"sv, "%2x"sv, "%%20"sv})
        CHECK(check_uri_reference("source", text) ==
              "source must have two hexadecimal digits after each %");
}

TEST_CASE("uri: there is one fragment at most") {
    CHECK(check_uri_reference("source", "a#b#c") == "source must not have more than one #");
}

TEST_CASE("uri: lengths are limited") {
    CHECK(check_uri_reference("source", "") == "source must not be empty");
    CHECK(check_uri_reference("source", std::string(2048, 'a')) == std::nullopt);
    CHECK(check_uri_reference("source", std::string(2049, 'a')) ==
          "source must not be longer than 2048 bytes");
}
