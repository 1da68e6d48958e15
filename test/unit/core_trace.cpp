#include <string>

#include <doctest/doctest.h>

#include "core/trace.hpp"

using namespace jobq::core;

namespace {

const std::string example = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

std::string with(std::size_t at, std::string_view text) {
    std::string changed = example;
    return changed.replace(at, text.size(), text);
}

} // namespace

TEST_CASE("traceparent: the example of the specification is one") {
    CHECK(is_traceparent(example));
    CHECK(is_traceparent(with(53, "00")));
    CHECK(is_traceparent(with(53, "ff")));
}

TEST_CASE("traceparent: only lower-case hexadecimal digits are read") {
    for (std::size_t at = 0; at < example.size(); ++at)
        for (const auto bad : {"A", "F", "g", "`", "/", ":", " ", "\n", "\xe4", "_"}) {
            CAPTURE(at);
            CHECK_FALSE(is_traceparent(with(at, bad)));
        }
}

TEST_CASE("traceparent: the parts are where they belong") {
    for (const std::size_t dash : {2, 35, 52})
        CHECK_FALSE(is_traceparent(with(dash, "0")));
    CHECK_FALSE(is_traceparent(with(10, "-")));
}

TEST_CASE("traceparent: ids of zeros only are none") {
    CHECK_FALSE(is_traceparent(with(3, std::string(32, '0'))));
    CHECK_FALSE(is_traceparent(with(36, std::string(16, '0'))));
    CHECK(is_traceparent(with(3, std::string(31, '0') + "1")));
    CHECK(is_traceparent(with(36, "1" + std::string(15, '0'))));
}

TEST_CASE("traceparent: version 00 has exactly its length") {
    for (std::size_t length = 0; length < example.size(); ++length)
        CHECK_FALSE(is_traceparent(example.substr(0, length)));
    CHECK_FALSE(is_traceparent(example + "-"));
    CHECK_FALSE(is_traceparent(example + "-00"));
    CHECK_FALSE(is_traceparent(example + "0"));
}

TEST_CASE("traceparent: version ff is none") {
    CHECK_FALSE(is_traceparent(with(0, "ff")));
    CHECK_FALSE(is_traceparent(with(0, "ff") + "-00"));
    CHECK(is_traceparent(with(0, "fe")));
}

TEST_CASE("traceparent: later versions may have more behind a dash") {
    const std::string later = with(0, "01");
    CHECK(is_traceparent(later));
    CHECK(is_traceparent(later + "-what-The~future/brings."));
    CHECK_FALSE(is_traceparent(later + "x"));
    CHECK_FALSE(is_traceparent(later.substr(0, 54)));
}

TEST_CASE("traceparent: nothing in it can end a header or be long beyond reason") {
    const std::string later = with(0, "01") + "-";
    for (const char bad : {'\r', '\n', '\0', '\t', ' ', '\x7f', '\x80', '\xff'})
        CHECK_FALSE(is_traceparent(later + bad + "x"));
    CHECK(is_traceparent(later + std::string(512 - later.size(), 'x')));
    CHECK_FALSE(is_traceparent(later + std::string(513 - later.size(), 'x')));
}
