#include <doctest/doctest.h>

#include "core/text.hpp"

using namespace jobq::core;
using namespace std::string_view_literals;

namespace {

const std::string replacement = "\xef\xbf\xbd";

} // namespace

TEST_CASE("text: clip leaves what fits alone") {
    CHECK(clip("abc", 3) == "abc");
    CHECK(clip("", 0) == "");
}

TEST_CASE("text: clip cuts between characters") {
    CHECK(clip("abcdef", 4) == "abcd");
    CHECK(clip("a\u00e4b", 3) == "a\u00e4");
}

TEST_CASE("text: clip never cuts inside a character") {
    CHECK(clip("a\u00e4b", 2) == "a");
    for (std::size_t limit = 1; limit < 4; ++limit)
        CHECK(clip("\U0001f600", limit) == "");
    CHECK(clip("a\U0001f600\u20ac", 7) == "a\U0001f600");
}

TEST_CASE("text: clip cuts broken UTF-8 at the limit") {
    CHECK(clip("\x80\x80\x80\x80\x80\x80", 4) == "\x80\x80\x80\x80");
    CHECK(clip("\xff\xff\xff", 2) == "\xff\xff");
    CHECK(clip("\xe2\x82zz", 1) == "\xe2");
}

TEST_CASE("text: well-formed characters of every length are valid") {
    CHECK(valid_utf8(""));
    CHECK(valid_utf8("\0"sv));
    CHECK(valid_utf8("a\u007f\u0080\u07ff\u0800\ud7ff\ue000\uffff\U00010000\U0010ffff"));
}

TEST_CASE("text: ill-formed sequences are not valid") {
    for (const auto text : {
             "\x80"sv,             // a continuation alone
             "\xc3"sv,             // cut short
             "\xc3("sv,            //
             "\xe2\x82"sv,         //
             "\xf0\x9f\x98"sv,     //
             "\xc0\xaf"sv,         // overlong
             "\xe0\x80\xaf"sv,     //
             "\xf0\x80\x80\xaf"sv, //
             "\xed\xa0\x80"sv,     // a surrogate
             "\xf4\x90\x80\x80"sv, // above U+10FFFF
             "\xfe"sv,
         })
        CHECK_FALSE(valid_utf8(text));
}

TEST_CASE("text: printable leaves valid text alone") {
    const auto text = "caf\u00e9 \U0001f600\r\n\t";
    CHECK(printable(text) == text);
}

TEST_CASE("text: printable replaces NUL") {
    CHECK(printable("a\0b"sv) == "a" + replacement + "b");
}

TEST_CASE("text: printable replaces each broken sequence once and keeps what follows") {
    CHECK(printable("a\xff"
                    "b") == "a" + replacement + "b");
    CHECK(printable("\xe2\x82z") == replacement + "z");
    CHECK(printable("\xf0\x9f\x98\xc3\xa9") == replacement + "\u00e9");
    CHECK(printable("\xed\xa0\x80") == replacement + replacement + replacement);
    CHECK(printable("z\xc3") == "z" + replacement);
}

TEST_CASE("text: what printable returns is valid for every pair of bytes") {
    for (int a = 0; a < 256; ++a)
        for (int b = 0; b < 256; ++b) {
            const std::string text{static_cast<char>(a), static_cast<char>(b), 'x'};
            const std::string result = printable(text);
            REQUIRE(valid_utf8(result));
            REQUIRE(result.find('\0') == std::string::npos);
            REQUIRE(result.back() == 'x');
        }
}

TEST_CASE("text: percent encoding leaves printable ASCII as it is") {
    CHECK(percent_encoded("order.created-1/~'") == "order.created-1/~'");
}

TEST_CASE("text: percent encoding covers spaces, quotes, percent signs, controls and UTF-8") {
    CHECK(percent_encoded("a b\"c%d\n\xc3\xa9\x7f") == "a%20b%22c%25d%0A%C3%A9%7F");
}
