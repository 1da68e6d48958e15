#include <doctest/doctest.h>

#include "http/url.hpp"

using namespace jobq::http;

TEST_CASE("url: http and https URLs are accepted") {
    for (const auto url : {"http://a", "https://example.com:8443/hooks/1?x=y&z=%20#part",
                           "HTTP://Example.Com/", "http://127.0.0.1:80", "http://[::1]:8080/x"})
        CHECK(check_url(url) == std::nullopt);
}

TEST_CASE("url: other schemes and none are refused") {
    for (const auto url : {"ftp://a/", "file:///etc/passwd", "example.com/x", "//a/x", "/x",
                           "mailto:a@example.com", "gopher://a"})
        CHECK(check_url(url) == "URL must begin with http:// or https://");
}

TEST_CASE("url: a URL without a host is refused") {
    for (const auto url : {"http://", "http:///x", "http:/x", "http://:80/", "https://?x"})
        CHECK(check_url(url) == "URL must have a host");
}

TEST_CASE("url: credentials are refused") {
    for (const auto url : {"http://user:secret@a/", "http://user@a/", "http://@a/"})
        CHECK(check_url(url) == "URL must not contain a user name or password");
}

TEST_CASE("url: spaces and control characters are refused") {
    using namespace std::string_view_literals;
    for (const auto url : {"http://a b/"sv, "http://a/ "sv, " http://a/"sv, "http://a/\r\nx"sv,
                           "http://a/\0"sv, "http://a/\x7f"sv})
        CHECK(check_url(url) == "URL must not contain spaces or control characters");
}

TEST_CASE("url: a port out of range is refused") {
    for (const auto url : {"http://a:0/", "http://a:65536/", "http://a:b/"})
        CHECK(check_url(url) == "URL must have a port between 1 and 65535");
    CHECK(check_url("http://a:65535/") == std::nullopt);
}

TEST_CASE("url: the length is limited") {
    const std::string start = "http://a/";
    CHECK(check_url(start + std::string(max_url_bytes - start.size(), 'x')) == std::nullopt);
    CHECK(check_url(start + std::string(max_url_bytes, 'x')) ==
          "URL must not be longer than 2048 bytes");
    CHECK(check_url("") == "URL must not be empty");
}

TEST_CASE("url: what cannot be read is malformed") {
    CHECK(check_url("http://[::1/") == "URL is malformed");
}

TEST_CASE("url: a proxy's ends after its port") {
    for (const std::string good :
         {"http://proxy.test:3128", "https://proxy.test", "http://[::1]:80/"})
        CHECK_FALSE(check_proxy(good));
    for (const std::string bad : {"proxy.test:3128", "socks5://proxy.test", "http://a:b@proxy.test",
                                  "http://proxy.test/path", "http://proxy.test?a", ""})
        CHECK(check_proxy(bad));
    CHECK(check_proxy("") == "proxy URL must not be empty");
}

TEST_CASE("url: a host's name or address") {
    CHECK(host_name("http://a.test/b:c") == "a.test");
    CHECK(host_name("https://a.test:80?x=[") == "a.test");
    CHECK(host_name("http://[2001:db8::1]:80/") == "2001:db8::1");
    CHECK(host_name("http://192.0.2.1") == "192.0.2.1");
}
