#include <cstring>
#include <string>
#include <type_traits>

#include <doctest/doctest.h>

#include "core/fixed_text.hpp"

using namespace jobq::core;
using namespace std::string_view_literals;

TEST_CASE("fixed_text: keeps any bytes") {
    FixedText<8> text = "a\0\xff\n"sv;
    CHECK(text.view() == "a\0\xff\n"sv);
    CHECK_FALSE(text.empty());
}

TEST_CASE("fixed_text: fills up to its last byte") {
    CHECK(FixedText<4>("abcd").view() == "abcd");
    CHECK(FixedText<4>("abcde").view() == "abcd");
}

TEST_CASE("fixed_text: cuts between characters") {
    CHECK(FixedText<4>("abc\u20ac").view() == "abc");
}

TEST_CASE("fixed_text: a shorter text leaves nothing of a longer one") {
    FixedText<8> text = "longer"sv;
    text = std::string("two");
    CHECK(text.view() == "two");
    text = "";
    CHECK(text.empty());
}

TEST_CASE("fixed_text: zero bytes are the empty text") {
    static_assert(std::is_trivially_copyable_v<FixedText<32>>);
    FixedText<32> text = "not empty"sv;
    std::memset(static_cast<void*>(&text), 0, sizeof text);
    CHECK(text.empty());
    CHECK(text.view() == "");
}
