#include <chrono>
#include <cmath>
#include <limits>

#include <doctest/doctest.h>

#include "core/durations.hpp"
#include "core/slot.hpp"

using namespace jobq::core;
using namespace std::chrono_literals;
using std::chrono::microseconds;

namespace {

// The first microsecond of a turn.
microseconds turn_start() {
    microseconds now = 1'000'000s;
    const auto slot = slot_of(now, Durations::turn);
    for (microseconds step = 1min; step >= 1us; step /= 2)
        while (slot_of(now - step, Durations::turn) == slot)
            now -= step;
    return now;
}

const microseconds start = turn_start();

void add(Durations& durations, int times, microseconds duration, microseconds now = start) {
    for (int i = 0; i < times; ++i)
        durations.add(duration, true, now);
}

// How far the quantile is off, relatively.
double error(const Durations& durations, double q, microseconds exact) {
    const auto found = static_cast<double>(durations.quantile(q, start).value().count());
    return std::abs(found / static_cast<double>(exact.count()) - 1);
}

} // namespace

TEST_CASE("durations: without any there is no quantile") {
    CHECK(Durations().quantile(0.5, start) == std::nullopt);
    CHECK(Durations().succeeded(start) == 0);
    CHECK(Durations().failed(start) == 0);
}

TEST_CASE("durations: every duration is told within 5 %") {
    for (double exact = 1; exact <= 3.6e9; exact = exact < 5000 ? exact + 1 : exact * 1.0007) {
        const microseconds duration{static_cast<microseconds::rep>(exact)};
        Durations durations;
        add(durations, 1, duration);
        REQUIRE(error(durations, 0.5, duration) <= 0.05);
    }
}

TEST_CASE("durations: quantiles of many durations are within 5 %") {
    Durations durations;
    for (int ms = 1; ms <= 1000; ++ms)
        add(durations, 1, ms * 1ms);
    CHECK(error(durations, 0.01, 10ms) <= 0.05);
    CHECK(error(durations, 0.5, 500ms) <= 0.05);
    CHECK(error(durations, 0.9, 900ms) <= 0.05);
    CHECK(error(durations, 0.99, 990ms) <= 0.05);
}

TEST_CASE("durations: a quantile is reached by at least its share") {
    Durations durations;
    add(durations, 99, 10ms);
    add(durations, 1, 10s);
    CHECK(error(durations, 0.5, 10ms) <= 0.05);
    CHECK(error(durations, 0.99, 10ms) <= 0.05);
    CHECK(error(durations, 0.991, 10s) <= 0.05);
    CHECK(error(durations, 1, 10s) <= 0.05);
}

TEST_CASE("durations: the ends are the shortest and the longest") {
    Durations durations;
    add(durations, 1, 2ms);
    add(durations, 100, 1s);
    add(durations, 1, 1min);
    CHECK(error(durations, 0, 2ms) <= 0.05);
    CHECK(error(durations, -1, 2ms) <= 0.05);
    CHECK(error(durations, std::nan(""), 2ms) <= 0.05);
    CHECK(error(durations, 1, 1min) <= 0.05);
    CHECK(error(durations, 7, 1min) <= 0.05);
}

TEST_CASE("durations: out of the range the nearest end counts") {
    for (const microseconds duration : {0us, -5us, microseconds::min()}) {
        Durations durations;
        add(durations, 1, duration);
        CHECK(durations.quantile(0.5, start) == 1us);
    }
    for (const microseconds duration : {microseconds(2h), microseconds::max()}) {
        Durations durations;
        add(durations, 1, duration);
        CHECK(error(durations, 0.5, 1h) <= 0.05);
    }
}

TEST_CASE("durations: successes and failures are counted apart") {
    Durations durations;
    for (int i = 0; i < 30; ++i)
        durations.add(1ms, i % 3 != 0, start);
    CHECK(durations.succeeded(start) == 20);
    CHECK(durations.failed(start) == 10);
}

TEST_CASE("durations: failures have durations too") {
    Durations durations;
    add(durations, 1, 1ms);
    durations.add(30s, false, start);
    CHECK(error(durations, 0.5, 1ms) <= 0.05);
    CHECK(error(durations, 1, 30s) <= 0.05);
}

TEST_CASE("durations: what is 5 minutes old still counts") {
    for (const microseconds phase : {0us, 1us, 100'000'000us, 299'999'999us}) {
        Durations durations;
        durations.add(1s, true, start + phase);
        durations.add(1s, false, start + phase);
        CHECK(durations.succeeded(start + phase + 5min) == 1);
        CHECK(durations.failed(start + phase + 5min) == 1);
        CHECK(durations.quantile(0.5, start + phase + 5min));
    }
}

TEST_CASE("durations: what is 10 minutes old does not count") {
    for (const microseconds phase : {0us, 1us, 100'000'000us, 299'999'999us}) {
        Durations durations;
        durations.add(1s, true, start + phase);
        durations.add(1s, false, start + phase);
        CHECK(durations.succeeded(start + phase + 10min) == 0);
        CHECK(durations.failed(start + phase + 10min) == 0);
        CHECK(durations.quantile(0.5, start + phase + 10min) == std::nullopt);
    }
}

TEST_CASE("durations: this turn and the one before are taken together") {
    Durations durations;
    add(durations, 10, 1ms, start);
    add(durations, 90, 1s, start + 5min);
    CHECK(durations.succeeded(start + 6min) == 100);
    CHECK(durations.quantile(0.1, start + 6min).value() < 2ms);
    CHECK(durations.quantile(0.11, start + 6min).value() > 900ms);
}

TEST_CASE("durations: a new turn takes the place of the oldest") {
    Durations durations;
    add(durations, 1, 1ms, start);
    add(durations, 2, 1s, start + 5min);
    add(durations, 4, 1min, start + 10min);
    CHECK(durations.succeeded(start + 10min) == 6);
    CHECK(durations.quantile(0, start + 10min).value() > 900ms);
}

TEST_CASE("durations: after a pause only what is new counts") {
    for (const microseconds pause : {microseconds(10min), microseconds(15min), microseconds(24h)}) {
        Durations durations;
        add(durations, 5, 1ms, start);
        add(durations, 1, 1s, start + pause);
        CHECK(durations.succeeded(start + pause) == 1);
        CHECK(durations.quantile(0, start + pause).value() > 900ms);
    }
}

TEST_CASE("durations: a clock that goes back loses nothing") {
    Durations durations;
    add(durations, 1, 1ms, start);
    add(durations, 1, 1s, start - 1h);
    CHECK(durations.succeeded(start) == 2);
    CHECK(durations.succeeded(start - 1h) == 2);
}

TEST_CASE("durations: quantiles stay right when there are more than 16 bits can count") {
    Durations durations;
    for (int i = 0; i < 10'000; ++i) {
        add(durations, 90, 10ms);
        add(durations, 9, 100ms);
        add(durations, 1, 1s);
    }
    CHECK(durations.succeeded(start) == 1'000'000);
    CHECK(error(durations, 0.5, 10ms) <= 0.05);
    CHECK(error(durations, 0.899, 10ms) <= 0.05);
    CHECK(error(durations, 0.901, 100ms) <= 0.05);
    CHECK(error(durations, 0.989, 100ms) <= 0.05);
    CHECK(error(durations, 0.991, 1s) <= 0.05);
}

TEST_CASE("durations: among very many the first weigh as much as the last") {
    Durations durations;
    add(durations, 400'000, 10ms);
    add(durations, 400'000, 1s);
    add(durations, 200'000, 10s);
    CHECK(error(durations, 0.39, 10ms) <= 0.05);
    CHECK(error(durations, 0.41, 1s) <= 0.05);
    CHECK(error(durations, 0.79, 1s) <= 0.05);
    CHECK(error(durations, 0.81, 10s) <= 0.05);
}

TEST_CASE("durations: very many that take turns are all seen") {
    Durations durations;
    for (int i = 0; i < 300'000; ++i) {
        add(durations, 1, 10ms);
        add(durations, 1, 1s);
    }
    CHECK(error(durations, 0.49, 10ms) <= 0.05);
    CHECK(error(durations, 0.51, 1s) <= 0.05);
}

TEST_CASE("durations: a turn with too many and one with few weigh what they are") {
    Durations durations;
    add(durations, 300'000, 10ms, start);
    add(durations, 30'000, 1s, start + 5min);
    CHECK(durations.quantile(0.85, start + 5min).value() < 11ms);
    CHECK(durations.quantile(0.95, start + 5min).value() > 900ms);
}

TEST_CASE("durations: it is small, for there are thousands") {
    CHECK(sizeof(Durations) <= 1536);
}
