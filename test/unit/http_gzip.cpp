#include <array>
#include <string>

#include <doctest/doctest.h>
#include <zlib.h>

#include "http/gzip.hpp"

using jobq::http::gzip;

namespace {

// What a receiver makes of it; "(broken)" if it is not one whole gzip member.
std::string gunzip(const std::string& bytes) {
    z_stream stream{};
    constexpr int gzip_only = MAX_WBITS + 16;
    REQUIRE(inflateInit2(&stream, gzip_only) == Z_OK);
    std::string input = bytes, result;
    std::array<char, 1 << 16> buffer;
    stream.next_in = reinterpret_cast<Bytef*>(input.data());
    stream.avail_in = static_cast<uInt>(input.size());
    int code = Z_OK;
    while (code == Z_OK) {
        stream.next_out = reinterpret_cast<Bytef*>(buffer.data());
        stream.avail_out = buffer.size();
        code = inflate(&stream, Z_NO_FLUSH);
        result.append(buffer.data(), buffer.size() - stream.avail_out);
    }
    const bool whole = code == Z_STREAM_END && stream.avail_in == 0;
    inflateEnd(&stream);
    return whole ? result : "(broken)";
}

} // namespace

TEST_CASE("gzip: a receiver gets back what was compressed") {
    std::string noise(3 << 20, '\0');
    unsigned state = 1;
    for (char& c : noise)
        c = static_cast<char>((state = state * 1'664'525 + 1'013'904'223) >> 24);
    for (const std::string& text : {std::string(), std::string("{}"), std::string("a\0b", 3),
                                    std::string(1 << 20, 'x'), noise})
        CHECK((gunzip(gzip(text)) == text));
}

TEST_CASE("gzip: what repeats itself becomes short") {
    CHECK(gzip(std::string(1 << 20, 'x')).size() < 2000);
}

TEST_CASE("gzip: the same bytes give the same result") {
    CHECK(gzip("{\"n\": 1}") == gzip("{\"n\": 1}"));
}
