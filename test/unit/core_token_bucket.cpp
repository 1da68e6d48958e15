#include <limits>

#include <doctest/doctest.h>

#include "core/token_bucket.hpp"

using namespace jobq::core;
using namespace std::chrono_literals;
using std::chrono::microseconds;

namespace {

constexpr microseconds start = 1'000'000s;

TokenBucket bucket_of(double rate, int burst, microseconds now = start) {
    TokenBucket bucket;
    bucket.set(rate, burst, now);
    return bucket;
}

} // namespace

TEST_CASE("token bucket: it starts full") {
    CHECK(bucket_of(1, 5).available(start) == 5);
    CHECK(bucket_of(1, 5).next(start) == start);
}

TEST_CASE("token bucket: before it is set there is nothing in it") {
    TokenBucket bucket;
    CHECK(bucket.available(start) == 0);
    CHECK(bucket.next(start) == microseconds::max());
    bucket.set(1, 5, start);
    CHECK(bucket.available(start) == 5);
}

TEST_CASE("token bucket: what is taken is gone") {
    auto bucket = bucket_of(1, 5);
    bucket.take(2, start);
    CHECK(bucket.available(start) == 3);
    bucket.take(3, start);
    CHECK(bucket.available(start) == 0);
}

TEST_CASE("token bucket: tokens come at the rate") {
    auto bucket = bucket_of(4, 100);
    bucket.take(100, start);
    CHECK(bucket.available(start + 249ms) == 0);
    CHECK(bucket.available(start + 250ms) == 1);
    CHECK(bucket.available(start + 10s) == 40);
}

TEST_CASE("token bucket: no more are kept than the burst") {
    auto bucket = bucket_of(4, 3);
    CHECK(bucket.available(start + 24h) == 3);
    bucket.take(3, start + 24h);
    CHECK(bucket.available(start + 24h) == 0);
}

TEST_CASE("token bucket: next is when the first token is there") {
    auto bucket = bucket_of(4, 1);
    bucket.take(1, start);
    CHECK(bucket.next(start) == start + 250ms);
    CHECK(bucket.next(start + 100ms) == start + 250ms);
    CHECK(bucket.next(start + 1s) == start + 1s);
}

TEST_CASE("token bucket: there is a token at next and none a microsecond before") {
    for (const double rate : {0.0001, 0.3, 1.0, 3.0, 7.7, 999.0, 123'456.7, 1e6}) {
        CAPTURE(rate);
        auto bucket = bucket_of(rate, 1);
        microseconds now = start;
        for (int i = 0; i < 1000; ++i) {
            bucket.take(1, now);
            const microseconds next = bucket.next(now);
            REQUIRE(next > now);
            REQUIRE(bucket.available(next) >= 1);
            REQUIRE(bucket.available(next - 1us) == 0);
            now = next;
        }
    }
}

TEST_CASE("token bucket: after days there are as many as the rate says") {
    for (const double rate : {0.3, 3.0, 7.0, 33.3}) {
        CAPTURE(rate);
        auto bucket = bucket_of(rate, 1000);
        bucket.take(1000, start);
        std::uint64_t taken = 0;
        microseconds now = start;
        // Looked at in odd steps, and everything taken each time.
        for (; now < start + 72h; now += 123'457us) {
            const std::size_t available = bucket.available(now);
            bucket.take(available, now);
            taken += available;
        }
        const double due = static_cast<double>((now - 123'457us - start).count()) / 1e6 * rate;
        CHECK(static_cast<double>(taken) > due - 1);
        CHECK(static_cast<double>(taken) < due + 0.001);
    }
}

TEST_CASE("token bucket: looking changes nothing") {
    auto bucket = bucket_of(0.0001, 1);
    bucket.take(1, start);
    for (microseconds now = start; now < start + 1s; now += 1ms)
        CHECK(bucket.available(now) == 0);
    CHECK(bucket.next(start) == start + 10'000s);
}

TEST_CASE("token bucket: more than there are can be taken and is made up for") {
    auto bucket = bucket_of(2, 4);
    bucket.take(10, start);
    CHECK(bucket.available(start + 3s) == 0);
    CHECK(bucket.next(start) == start + 3500ms);
    CHECK(bucket.available(start + 3500ms) == 1);
}

TEST_CASE("token bucket: a change keeps the tokens up to the new burst") {
    auto bucket = bucket_of(1, 10);
    bucket.take(4, start);

    SUBCASE("a larger burst brings none by itself") {
        bucket.set(1, 100, start);
        CHECK(bucket.available(start) == 6);
        CHECK(bucket.available(start + 10s) == 16);
    }
    SUBCASE("a smaller one takes what does not fit") {
        bucket.set(1, 3, start);
        CHECK(bucket.available(start) == 3);
    }
    SUBCASE("what has come until then came at the old rate") {
        bucket.set(100, 1000, start + 2s);
        CHECK(bucket.available(start + 2s) == 8);
        CHECK(bucket.available(start + 3s) == 108);
    }
}

TEST_CASE("token bucket: setting the same again brings no tokens") {
    auto bucket = bucket_of(0.001, 10);
    bucket.take(10, start);
    for (int i = 0; i < 1000; ++i)
        bucket.set(0.001, 10, start);
    CHECK(bucket.available(start) == 0);
    CHECK(bucket.next(start) == start + 1000s);
}

TEST_CASE("token bucket: a clock that goes back brings no tokens") {
    auto bucket = bucket_of(1, 10);
    bucket.take(10, start);
    CHECK(bucket.available(start - 1h) == 0);
    bucket.take(0, start - 1h);
    bucket.set(1, 10, start - 1h);
    CHECK(bucket.available(start) == 0);
    CHECK(bucket.next(start - 1h) == start + 1s);
}

TEST_CASE("token bucket: the epoch does not matter") {
    auto bucket = bucket_of(1, 2, -10s);
    bucket.take(2, -10s);
    CHECK(bucket.next(-10s) == -9s);
    CHECK(bucket.available(0s) == 2);
}

TEST_CASE("token bucket: the lowest rate gives a token in 10,000 seconds") {
    auto bucket = bucket_of(0.0001, 1);
    bucket.take(1, start);
    CHECK(bucket.next(start) == start + 10'000s);
}

TEST_CASE("token bucket: the highest rate gives one a microsecond") {
    auto bucket = bucket_of(1e6, std::numeric_limits<int>::max());
    bucket.take(std::numeric_limits<int>::max(), start);
    CHECK(bucket.next(start) == start + 1us);
    CHECK(bucket.available(start + 1s) == 1'000'000);
    CHECK(bucket.available(start + 10h) == std::numeric_limits<int>::max());
}

TEST_CASE("token bucket: settings out of their ranges are clamped") {
    for (const double rate : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(),
                              -std::numeric_limits<double>::infinity()}) {
        auto bucket = bucket_of(rate, 1);
        bucket.take(1, start);
        CHECK(bucket.next(start) == start + 10'000s);
    }
    auto fast = bucket_of(std::numeric_limits<double>::infinity(), 0);
    CHECK(fast.available(start) == 1);
    fast.take(1, start);
    CHECK(fast.next(start) == start + 1us);
}

TEST_CASE("token bucket: nothing overflows") {
    auto bucket = bucket_of(0.0001, 1);
    bucket.take(std::numeric_limits<std::size_t>::max(), start);
    CHECK(bucket.next(start) == microseconds::max());
    CHECK(bucket.available(microseconds::max()) == 0);
}
