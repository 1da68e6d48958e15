#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include "core/breaker.hpp"

using namespace jobq::core;
using namespace std::chrono_literals;
using std::chrono::microseconds;
using State = Breaker::State;
using Ticket = Breaker::Ticket;

namespace {

constexpr microseconds start = 1'000'000s;
constexpr BreakerRules usual{10, 60s, 5s, 5min};

void succeed(Breaker& breaker, microseconds now, int times = 1, const BreakerRules& rules = usual) {
    for (int i = 0; i < times; ++i)
        breaker.succeeded(rules, now, breaker.began(rules, now));
}

void fail(Breaker& breaker, microseconds now, int times = 1, const BreakerRules& rules = usual) {
    for (int i = 0; i < times; ++i)
        breaker.failed(rules, now, breaker.began(rules, now));
}

void be_down(Breaker& breaker, microseconds now, int times = 1) {
    for (int i = 0; i < times; ++i)
        breaker.failed(usual, now, breaker.began(usual, now), Breaker::Failure::of_endpoint);
}

Breaker opened(microseconds now, const BreakerRules& rules = usual) {
    Breaker breaker;
    fail(breaker, now, rules.failures, rules);
    REQUIRE(breaker.state(now) == State::open);
    return breaker;
}

// Of the probe that begins then.
Ticket probe(Breaker& breaker, microseconds now, const BreakerRules& rules = usual) {
    REQUIRE(breaker.allows(rules, now));
    const Ticket ticket = breaker.began(rules, now);
    REQUIRE(ticket.probe);
    return ticket;
}

} // namespace

TEST_CASE("breaker: a new one is closed and lets everything begin") {
    Breaker breaker;
    CHECK(breaker.state(start) == State::closed);
    CHECK(breaker.allows(usual, start));
    CHECK_FALSE(breaker.began(usual, start).probe);
}

TEST_CASE("breaker: it opens with the last of so many failures") {
    Breaker breaker;
    fail(breaker, start, 9);
    CHECK(breaker.state(start) == State::closed);
    fail(breaker, start);
    CHECK(breaker.state(start) == State::open);
    CHECK_FALSE(breaker.allows(usual, start));
    CHECK(breaker.probe_at() == start + 5s);
}

TEST_CASE("breaker: it stays closed while fewer than half have failed") {
    Breaker breaker;
    succeed(breaker, start, 1000);
    fail(breaker, start, 999);
    CHECK(breaker.state(start) == State::closed);
    fail(breaker, start);
    CHECK(breaker.state(start) == State::open);
}

TEST_CASE(
    "breaker: however many succeeded before, so many failures of the endpoint in a row open it") {
    Breaker breaker;
    succeed(breaker, start, 100'000);
    be_down(breaker, start, 9);
    succeed(breaker, start);
    be_down(breaker, start, 9);
    fail(breaker, start, 9);
    CHECK(breaker.state(start) == State::closed);
    be_down(breaker, start);
    CHECK(breaker.state(start) == State::open);
}

TEST_CASE("breaker: failures in a row are counted anew after it has closed") {
    Breaker breaker;
    be_down(breaker, start, 10);
    REQUIRE(breaker.state(start) == State::open);
    breaker.succeeded(usual, start + 5s, probe(breaker, start + 5s));
    succeed(breaker, start + 5s, 100);
    be_down(breaker, start + 5s, 9);
    CHECK(breaker.state(start + 5s) == State::closed);
}

TEST_CASE("breaker: failures in a row that are older than the window do not count") {
    Breaker breaker;
    be_down(breaker, start, 9);
    be_down(breaker, start + 60s, 9);
    CHECK(breaker.state(start + 60s) == State::closed);
}

TEST_CASE("breaker: a success never opens it") {
    Breaker breaker;
    fail(breaker, start, 20, {1000, 60s, 5s, 5min});
    succeed(breaker, start); // under rules that 20 failures are too many for
    CHECK(breaker.state(start) == State::closed);
}

TEST_CASE("breaker: failures count for nine tenths of the window at least") {
    for (microseconds phase = 0s; phase < 6s; phase += 100ms) {
        Breaker breaker;
        fail(breaker, start + phase, 9);
        fail(breaker, start + phase + 54s);
        CHECK(breaker.state(start + phase + 54s) == State::open);
    }
}

TEST_CASE("breaker: failures older than the window do not count") {
    for (microseconds phase = 0s; phase < 6s; phase += 100ms) {
        Breaker breaker;
        fail(breaker, start + phase, 9);
        fail(breaker, start + phase + 60s);
        CHECK(breaker.state(start + phase + 60s) == State::closed);
    }
}

TEST_CASE("breaker: successes older than the window do not hold it closed") {
    Breaker breaker;
    succeed(breaker, start, 1000);
    fail(breaker, start + 60s, 10);
    CHECK(breaker.state(start + 60s) == State::open);
}

TEST_CASE("breaker: failures that are spread thin never open it") {
    Breaker breaker;
    for (microseconds now = start; now < start + 24h; now += 7s) {
        fail(breaker, now); // nine a minute at most
        REQUIRE(breaker.state(now) == State::closed);
    }
}

TEST_CASE("breaker: what is counted moves on with time, not all at once") {
    Breaker breaker;
    fail(breaker, start, 5);
    fail(breaker, start + 50s, 4);
    fail(breaker, start + 65s); // the first five are gone, and only they
    CHECK(breaker.state(start + 65s) == State::closed);
    fail(breaker, start + 66s, 5);
    CHECK(breaker.state(start + 66s) == State::open);
}

TEST_CASE("breaker: after a long time nothing is left of the counts") {
    for (const microseconds pause : {microseconds(61s), microseconds(120s), microseconds(599s),
                                     microseconds(600s), microseconds::max() - start}) {
        Breaker breaker;
        fail(breaker, start, 9);
        fail(breaker, start + pause, 9);
        CHECK(breaker.state(start + pause) == State::closed);
    }
}

TEST_CASE("breaker: it opens for the first wait, then one may begin") {
    Breaker breaker = opened(start);
    CHECK_FALSE(breaker.allows(usual, start + 5s - 1us));
    CHECK(breaker.state(start + 5s - 1us) == State::open);
    CHECK(breaker.allows(usual, start + 5s));
    CHECK(breaker.state(start + 5s) == State::half_open);
}

TEST_CASE("breaker: while the probe is under way no other may begin") {
    Breaker breaker = opened(start);
    probe(breaker, start + 5s);
    CHECK(breaker.state(start + 5s) == State::half_open);
    CHECK_FALSE(breaker.allows(usual, start + 5s));
    CHECK_FALSE(breaker.allows(usual, start + 24h));
    CHECK_FALSE(breaker.began(usual, start + 24h).probe);
}

TEST_CASE("breaker: a probe that succeeds closes it and clears the counts") {
    Breaker breaker = opened(start);
    breaker.succeeded(usual, start + 6s, probe(breaker, start + 5s));
    CHECK(breaker.state(start + 6s) == State::closed);
    CHECK(breaker.allows(usual, start + 6s));
    fail(breaker, start + 6s, 9);
    CHECK(breaker.state(start + 6s) == State::closed);
}

TEST_CASE("breaker: each probe that fails doubles the wait, up to the longest") {
    Breaker breaker = opened(start);
    microseconds now = start;
    for (const microseconds wait : {5s, 10s, 20s, 40s, 80s, 160s, 300s, 300s, 300s}) {
        REQUIRE(breaker.probe_at() == now + wait);
        const Ticket ticket = probe(breaker, now + wait);
        now += wait + 3s; // a probe takes time, and the wait begins when it has failed
        breaker.failed(usual, now, ticket);
        REQUIRE(breaker.state(now) == State::open);
    }
}

TEST_CASE("breaker: after it has closed the waits begin at the first again") {
    Breaker breaker = opened(start);
    breaker.failed(usual, start + 5s, probe(breaker, start + 5s));
    breaker.succeeded(usual, start + 15s, probe(breaker, start + 15s));
    fail(breaker, start + 16s, 10);
    CHECK(breaker.probe_at() == start + 21s);
}

TEST_CASE("breaker: after an abandoned probe another may begin at once") {
    Breaker breaker = opened(start);
    breaker.abandoned(probe(breaker, start + 5s));
    CHECK(breaker.state(start + 5s) == State::half_open);
    const Ticket second = probe(breaker, start + 5s);
    CHECK_FALSE(breaker.allows(usual, start + 5s));
    breaker.failed(usual, start + 5s, second); // and it has not made the wait longer
    CHECK(breaker.probe_at() == start + 15s);
}

TEST_CASE("breaker: abandoned requests that are no probe change nothing") {
    Breaker breaker;
    const Ticket early = breaker.began(usual, start);
    fail(breaker, start, 10);
    breaker.abandoned(early);
    CHECK(breaker.state(start) == State::open);
    probe(breaker, start + 5s);
    breaker.abandoned(early);
    CHECK_FALSE(breaker.allows(usual, start + 5s));
}

TEST_CASE("breaker: what began before it opened neither closes it nor makes it wait longer") {
    Breaker breaker;
    std::vector<Ticket> early(30);
    for (Ticket& ticket : early)
        ticket = breaker.began(usual, start);
    for (int i = 0; i < 10; ++i)
        breaker.failed(usual, start, early[static_cast<std::size_t>(i)]);
    REQUIRE(breaker.state(start) == State::open);

    SUBCASE("while it is open") {
        breaker.succeeded(usual, start + 1s, early[10]);
        breaker.failed(usual, start + 1s, early[11]);
        CHECK(breaker.state(start + 1s) == State::open);
        CHECK(breaker.probe_at() == start + 5s);
    }
    SUBCASE("while the probe is under way") {
        const Ticket ticket = probe(breaker, start + 5s);
        breaker.succeeded(usual, start + 6s, early[10]);
        CHECK(breaker.state(start + 6s) == State::half_open);
        breaker.failed(usual, start + 6s, early[11]);
        CHECK(breaker.state(start + 6s) == State::half_open);
        breaker.failed(usual, start + 7s, ticket);
        CHECK(breaker.probe_at() == start + 17s);
    }
    SUBCASE("nor does it open it again after it has closed") {
        breaker.succeeded(usual, start + 5s, probe(breaker, start + 5s));
        for (std::size_t i = 10; i < early.size(); ++i)
            breaker.failed(usual, start + 6s, early[i]);
        CHECK(breaker.state(start + 6s) == State::closed);
    }
}

TEST_CASE("breaker: what begins although it may not counts for nothing") {
    Breaker breaker = opened(start);
    const Ticket forced = breaker.began(usual, start + 1s);
    CHECK_FALSE(forced.probe);

    SUBCASE("while it is open") {
        breaker.succeeded(usual, start + 2s, forced);
        CHECK(breaker.state(start + 2s) == State::open);
    }
    SUBCASE("nor after it has closed") {
        breaker.succeeded(usual, start + 5s, probe(breaker, start + 5s));
        fail(breaker, start + 6s, 9);
        breaker.failed(usual, start + 6s, forced);
        CHECK(breaker.state(start + 6s) == State::closed);
    }
}

TEST_CASE("breaker: without a number of failures it never opens") {
    const BreakerRules never{0, 60s, 5s, 5min};
    Breaker breaker;
    fail(breaker, start, 100'000, never);
    CHECK(breaker.state(start) == State::closed);
    CHECK(breaker.allows(never, start));
}

TEST_CASE("breaker: rules that switch it off close one that is open") {
    const BreakerRules never{0, 60s, 5s, 5min};
    Breaker breaker = opened(start);
    CHECK(breaker.allows(never, start));
    CHECK_FALSE(breaker.began(never, start).probe);
    CHECK(breaker.state(start) == State::closed);
}

TEST_CASE("breaker: a probe that ends after it was switched off counts as any other request") {
    const BreakerRules never{0, 60s, 5s, 5min};
    Breaker breaker = opened(start);
    const Ticket old = probe(breaker, start + 5s);
    breaker.began(never, start + 6s);

    SUBCASE("while it is closed") {
        breaker.failed(usual, start + 6s, old);
        CHECK(breaker.state(start + 6s) == State::closed);
        fail(breaker, start + 6s, 9);
        CHECK(breaker.state(start + 6s) == State::open);
    }
    SUBCASE("and for nothing while another probe is under way") {
        fail(breaker, start + 6s, 10);
        probe(breaker, start + 11s);
        breaker.succeeded(usual, start + 12s, old);
        CHECK(breaker.state(start + 12s) == State::half_open);
        breaker.abandoned(old);
        CHECK_FALSE(breaker.allows(usual, start + 12s));
    }
}

TEST_CASE("breaker: a changed window begins to count anew") {
    for (const microseconds window : {30s, 120s}) {
        const BreakerRules changed{10, window, 5s, 5min};
        Breaker breaker;
        fail(breaker, start, 9);
        fail(breaker, start, 1, changed);
        CHECK(breaker.state(start) == State::closed);
        fail(breaker, start, 9, changed);
        CHECK(breaker.state(start) == State::open);
    }
}

TEST_CASE("breaker: a first wait longer than the longest is cut to it") {
    CHECK(opened(start, {1, 60s, 10min, 5min}).probe_at() == start + 5min);
}

TEST_CASE("breaker: a clock that goes back neither loses counts nor opens it") {
    Breaker breaker;
    fail(breaker, start, 5);
    fail(breaker, start - 10min, 4);
    CHECK(breaker.state(start) == State::closed);
    fail(breaker, start);
    CHECK(breaker.state(start) == State::open);
}

TEST_CASE("breaker: the epoch does not matter") {
    for (microseconds now = -100s; now < 100s; now += 1s) {
        Breaker breaker;
        fail(breaker, now, 9);
        fail(breaker, now + 60s);
        REQUIRE(breaker.state(now + 60s) == State::closed);
        fail(breaker, now + 62s, 9);
        REQUIRE(breaker.state(now + 62s) == State::open);
    }
}

TEST_CASE("breaker: no rule overflows") {
    const BreakerRules huge{1, microseconds::max(), microseconds::max(), microseconds::max()};
    Breaker breaker = opened(start, huge);
    CHECK(breaker.probe_at() == microseconds::max());
    breaker.failed(huge, start, probe(breaker, microseconds::max(), huge));
    CHECK(breaker.probe_at() == microseconds::max());

    const BreakerRules tiny{1, -1us, -1us, -1us};
    Breaker other;
    fail(other, start, 1, tiny);
    CHECK(other.probe_at() == start);
}

TEST_CASE("breaker: it is small, for there are thousands") {
    CHECK(sizeof(Breaker) <= 128);
    CHECK(std::is_trivially_copyable_v<Breaker>);
}
