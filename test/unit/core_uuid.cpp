#include <doctest/doctest.h>

#include "core/uuid.hpp"

using namespace jobq::core;
using namespace std::chrono_literals;
using std::chrono::microseconds;

namespace {

using Random = std::array<std::uint8_t, 8>;

constexpr Random zeros{};
constexpr Random ones{255, 255, 255, 255, 255, 255, 255, 255};
constexpr microseconds noon = 1'700'000'000'123'456us;

} // namespace

TEST_CASE("uuid: an id has the version, the variant and the milliseconds of RFC 9562") {
    // The example of its appendix A.6: 2022-02-22 14:22:22 -05:00.
    const Uuid id = UuidV7().next(1'645'557'742'000ms, zeros);
    CHECK(to_string(id) == "017f22e2-79b0-7000-8000-000000000000");
}

TEST_CASE("uuid: random bits fill what the variant leaves") {
    const Uuid id = UuidV7().next(1'645'557'742'000ms, ones);
    CHECK(to_string(id) == "017f22e2-79b0-7000-bfff-ffffffffffff");
}

TEST_CASE("uuid: an id gives back its time for every microsecond of a millisecond") {
    for (microseconds us = 0us; us < 1000us; ++us) {
        const microseconds t = noon - noon % 1ms + us;
        CHECK(time_of(UuidV7().next(t, ones)) == t);
    }
}

TEST_CASE("uuid: ids of increasing microseconds are never pushed ahead of their clock") {
    UuidV7 generator;
    for (microseconds t = noon; t < noon + 3ms; ++t)
        CHECK(time_of(generator.next(t, zeros)) == t);
}

TEST_CASE("uuid: ids increase while the clock stands still") {
    UuidV7 generator;
    Uuid last = generator.next(noon, ones);
    for (int i = 0; i < 10'000; ++i) {
        const Uuid id = generator.next(noon, zeros);
        REQUIRE(id > last);
        last = id;
    }
    CHECK(time_of(last) - noon < 3ms);
}

TEST_CASE("uuid: ids increase when the clock goes back") {
    UuidV7 generator;
    const Uuid first = generator.next(noon, ones);
    const Uuid second = generator.next(noon - 1h, zeros);
    CHECK(second > first);
    CHECK(time_of(second) - time_of(first) <= 1us);
}

TEST_CASE("uuid: a clock that goes on overtakes the ids that ran ahead") {
    UuidV7 generator;
    for (int i = 0; i < 5000; ++i)
        generator.next(noon, zeros);
    CHECK(time_of(generator.next(noon + 1s, zeros)) == noon + 1s);
}

TEST_CASE("uuid: times outside of the format take its nearest end") {
    CHECK(time_of(UuidV7().next(-1us, zeros)) == 0us);
    CHECK(to_string(UuidV7().next(microseconds::max(), zeros)) ==
          "ffffffff-ffff-7fff-8000-000000000000");
}

TEST_CASE("uuid: text comes back as the same id") {
    const Uuid id = UuidV7().next(noon, Random{1, 2, 3, 4, 5, 6, 7, 8});
    CHECK(parse_uuid(to_string(id)) == id);
}

TEST_CASE("uuid: upper case is read and lower case written") {
    const auto id = parse_uuid("018F3C2E-7B1A-7C3D-8E4F-0123456789AB");
    REQUIRE(id);
    CHECK(to_string(*id) == "018f3c2e-7b1a-7c3d-8e4f-0123456789ab");
}

TEST_CASE("uuid: text of another form is refused") {
    CHECK_FALSE(parse_uuid(""));
    CHECK_FALSE(parse_uuid("018f3c2e7b1a7c3d8e4f0123456789ab"));
    CHECK_FALSE(parse_uuid("018f3c2e-7b1a-7c3d-8e4f-0123456789a"));
    CHECK_FALSE(parse_uuid("018f3c2e-7b1a-7c3d-8e4f-0123456789abc"));
    CHECK_FALSE(parse_uuid("018f3c2e-7b1a-7c3d-8e4f-0123456789ag"));
    CHECK_FALSE(parse_uuid("018f3c2e07b1a-7c3d-8e4f-0123456789ab"));
}
