#include <doctest/doctest.h>

#include "core/slot.hpp"

using namespace jobq::core;
using namespace std::chrono_literals;
using std::chrono::microseconds;

TEST_CASE("slot: slots are of one width on both sides of the epoch") {
    std::uint64_t slot = slot_of(-100us, 7us);
    int length = 0;
    for (microseconds now = -100us; now < 100us; ++now) {
        if (slot_of(now, 7us) != slot) {
            REQUIRE(slot_of(now, 7us) == slot + 1);
            REQUIRE((length == 7 || now < -93us));
            slot = slot_of(now, 7us);
            length = 0;
        }
        ++length;
    }
}

TEST_CASE("slot: the earliest time is in the first") {
    CHECK(slot_of(microseconds::min(), 1us) == 0);
    CHECK(slot_of(microseconds::max(), 1us) == ~std::uint64_t{0});
}
