#include <doctest/doctest.h>

#include "core/window.hpp"

using namespace jobq::core;
using namespace std::chrono_literals;
using std::chrono::microseconds;

namespace {

constexpr microseconds start = 1'000'000s;

Window window_of(std::size_t low, std::size_t high) {
    Window window;
    window.set_bounds(low, high);
    return window;
}

void grow(Window& window, std::size_t answers, microseconds started_at) {
    for (std::size_t i = 0; i < answers; ++i)
        window.grow(started_at);
}

} // namespace

TEST_CASE("window: it starts at its upper bound and grows no further") {
    auto window = window_of(1, 20);
    CHECK(window.size() == 20);
    grow(window, 1000, start);
    CHECK(window.size() == 20);
}

TEST_CASE("window: an answer of too much halves it") {
    auto window = window_of(1, 20);
    window.shrink(start, start + 1s);
    CHECK(window.size() == 10);
    window.shrink(start + 2s, start + 3s);
    CHECK(window.size() == 5);
    window.shrink(start + 4s, start + 5s);
    CHECK(window.size() == 2);
}

TEST_CASE("window: it is never halved below its lower bound") {
    auto window = window_of(3, 20);
    for (microseconds now = start; now < start + 100s; now += 1s)
        window.shrink(now, now);
    CHECK(window.size() == 3);
}

TEST_CASE("window: requests that were under way together halve it once") {
    auto window = window_of(1, 64);
    for (int i = 0; i < 64; ++i)
        window.shrink(start + i * 1ms, start + 1s + i * 1ms);
    CHECK(window.size() == 32);
}

TEST_CASE("window: a request that started with the halved window halves it again") {
    auto window = window_of(1, 64);
    window.shrink(start, start + 1s);
    window.shrink(start + 1s - 1us, start + 2s);
    CHECK(window.size() == 32);
    window.shrink(start + 1s, start + 2s);
    CHECK(window.size() == 16);
}

TEST_CASE("window: a full window of good answers makes room for one more") {
    auto window = window_of(1, 64);
    window.shrink(start, start);
    grow(window, 31, start);
    CHECK(window.size() == 32);
    grow(window, 1, start);
    CHECK(window.size() == 33);
    grow(window, 32, start);
    CHECK(window.size() == 33);
    grow(window, 1, start);
    CHECK(window.size() == 34);
}

TEST_CASE("window: it grows back to its upper bound") {
    auto window = window_of(1, 16);
    window.shrink(start, start);
    grow(window, 8 + 9 + 10 + 11 + 12 + 13 + 14 + 14, start);
    CHECK(window.size() == 15);
    grow(window, 1, start);
    CHECK(window.size() == 16);
    grow(window, 1000, start);
    CHECK(window.size() == 16);
}

TEST_CASE("window: good answers to requests from before the halving do not make it grow") {
    auto window = window_of(1, 8);
    window.shrink(start, start + 1s);
    grow(window, 100, start + 1s - 1us);
    CHECK(window.size() == 4);
}

TEST_CASE("window: a halving takes back what had been answered well") {
    auto window = window_of(1, 16);
    window.shrink(start, start);
    grow(window, 7, start);
    window.shrink(start, start);
    REQUIRE(window.size() == 4);
    grow(window, 3, start);
    CHECK(window.size() == 4);
}

TEST_CASE("window: new bounds keep its size where they can") {
    auto window = window_of(1, 64);
    window.shrink(start, start);
    window.set_bounds(2, 100);
    CHECK(window.size() == 32);
    window.set_bounds(40, 100);
    CHECK(window.size() == 40);
    window.set_bounds(1, 10);
    CHECK(window.size() == 10);
}

TEST_CASE("window: one that is at its upper bound goes up with it") {
    auto window = window_of(1, 10);
    window.set_bounds(1, 100);
    CHECK(window.size() == 100);
}

TEST_CASE("window: the same bounds again change nothing") {
    auto window = window_of(1, 10);
    window.shrink(start, start);
    window.set_bounds(1, 10);
    CHECK(window.size() == 5);
    grow(window, 4, start);
    window.set_bounds(1, 10);
    grow(window, 1, start);
    CHECK(window.size() == 6);
}

TEST_CASE("window: equal bounds hold it still") {
    auto window = window_of(7, 7);
    window.shrink(start, start);
    grow(window, 100, start);
    CHECK(window.size() == 7);
}

TEST_CASE("window: bounds out of their ranges are clamped") {
    CHECK(window_of(0, 0).size() == 1);
    auto window = window_of(9, 4);
    CHECK(window.size() == 4);
    window.shrink(start, start);
    CHECK(window.size() == 4);
    auto lowest = window_of(0, 2);
    lowest.shrink(start, start);
    lowest.shrink(start, start);
    CHECK(lowest.size() == 1);
}
