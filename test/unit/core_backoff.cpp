#include <cmath>
#include <limits>

#include <doctest/doctest.h>

#include "core/backoff.hpp"

using namespace jobq::core;
using namespace std::chrono_literals;
using std::chrono::microseconds;

namespace {

constexpr Backoff usual{2s, 1h, 2, 0.2};
constexpr double middle = 0.5; // no jitter either way

} // namespace

TEST_CASE("backoff: the first failure waits the first wait") {
    CHECK(wait(usual, 1, middle) == 2s);
}

TEST_CASE("backoff: each further failure multiplies the wait") {
    CHECK(wait(usual, 2, middle) == 4s);
    CHECK(wait(usual, 3, middle) == 8s);
    CHECK(wait(usual, 11, middle) == 2048s);
}

TEST_CASE("backoff: the wait stops growing at the longest") {
    CHECK(wait(usual, 12, middle) == 1h);
    CHECK(wait(usual, 1'000'000, middle) == 1h);
    CHECK(wait(usual, std::numeric_limits<int>::max(), middle) == 1h);
}

TEST_CASE("backoff: jitter spreads the wait evenly to both sides") {
    CHECK(wait(usual, 1, 0) == 1600ms);
    CHECK(wait(usual, 1, 0.75) == 2200ms);
    CHECK(wait(usual, 1, std::nextafter(1.0, 0.0)) <= 2400ms);
}

TEST_CASE("backoff: full jitter reaches down to zero and never below") {
    CHECK(wait({2s, 1h, 2, 1}, 1, 0) == 0s);
}

TEST_CASE("backoff: a factor of one keeps the wait") {
    CHECK(wait({5s, 1h, 1, 0}, 1000, middle) == 5s);
}

TEST_CASE("backoff: a first wait of zero stays zero after any number of failures") {
    CHECK(wait({0s, 1h, 1000, 0.2}, std::numeric_limits<int>::max(), 0.9) == 0s);
}

TEST_CASE("backoff: no setting overflows") {
    const Backoff huge{microseconds::max(), microseconds::max(), 1000, 1};
    CHECK(wait(huge, std::numeric_limits<int>::max(), 0.999) == microseconds::max());
    CHECK(wait(huge, 1, 0) == 0us);
}

TEST_CASE("backoff: values out of their ranges are clamped") {
    const double nan = std::nan("");
    CHECK(wait(usual, 0, middle) == 2s);
    CHECK(wait(usual, -5, middle) == 2s);
    CHECK(wait(usual, 1, 7) == 2400ms);
    CHECK(wait(usual, 1, -7) == 1600ms);
    CHECK(wait({2s, 1h, nan, nan}, 3, nan) == 2s);
    CHECK(wait({-2s, 1h, 2, 0}, 1, middle) == 0s);
    CHECK(wait({2s, -1h, 2, 0}, 1, middle) == 0s);
}

TEST_CASE("backoff: check accepts the usual settings") {
    CHECK(check(usual) == std::nullopt);
    CHECK(check({0s, 0s, 1, 0}) == std::nullopt);
}

TEST_CASE("backoff: check says which setting is wrong") {
    CHECK(check({-1us, 1h, 2, 0}) == "first retry wait must not be negative");
    CHECK(check({2s, 1s, 2, 0}) == "longest retry wait must not be shorter than the first");
    CHECK(check({2s, 1h, 0.5, 0}) == "retry factor must be between 1 and 1000");
    CHECK(check({2s, 1h, std::nan(""), 0}) == "retry factor must be between 1 and 1000");
    CHECK(check({2s, 1h, 2, 1.1}) == "retry jitter must be between 0 and 1");
    CHECK(check({2s, 1h, 2, std::nan("")}) == "retry jitter must be between 0 and 1");
}

TEST_CASE("backoff: the wait that a receiver asks for is kept to between its bounds") {
    CHECK(clamp_retry_after(30s, 1s, 1h) == 30s);
    CHECK(clamp_retry_after(0s, 1s, 1h) == 1s);
    CHECK(clamp_retry_after(3600s, 1s, 1h) == 1h);
    CHECK(clamp_retry_after(3601s, 1s, 1h) == 1h);
    CHECK(clamp_retry_after(-5s, 1s, 1h) == 1s);
    CHECK(clamp_retry_after(0s, 0s, 1h) == 0s);
}

TEST_CASE("backoff: bounds of the wait that is asked for need not be whole seconds") {
    CHECK(clamp_retry_after(1s, 1500ms, 2500ms) == 1500ms);
    CHECK(clamp_retry_after(2s, 1500ms, 2500ms) == 2s);
    CHECK(clamp_retry_after(3s, 1500ms, 2500ms) == 2500ms);
}

TEST_CASE("backoff: no wait that is asked for overflows") {
    using std::chrono::seconds;
    CHECK(clamp_retry_after(seconds::max(), 1s, 1h) == 1h);
    CHECK(clamp_retry_after(seconds::min(), 1s, 1h) == 1s);
    CHECK(clamp_retry_after(seconds::max(), 0s, microseconds::max()) == microseconds::max());
}
