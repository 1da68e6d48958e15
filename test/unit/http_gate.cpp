// The gate alone: libcurl's part is played by the tests.

#include <doctest/doctest.h>

#include "http/transfer.hpp"
#include "requests.hpp"

using namespace test;

namespace {

const std::string plain = "http://a.test/", over_tls = "https://a.test/";

struct Gated {
    Common common{Options()};
    Gate& gate = common.gate;
    Poller poller;
    Lane lane{poller, 0, 1000, false};
    std::vector<std::unique_ptr<Transfer>> transfers;
    Gate::Clock::time_point now = Gate::Clock::now();
    std::uint64_t last_connection = 0;

    void enter(const std::string& url, int count = 1) {
        for (; count > 0; --count) {
            transfers.push_back(std::make_unique<Transfer>(common));
            transfers.back()->request = post(url);
            gate.enter(*transfers.back());
        }
    }

    // All that may begin.
    std::vector<Transfer*> begin() {
        std::vector<Transfer*> begun;
        while (Transfer* const t = gate.next(now)) {
            t->lane = &lane;
            ++lane.claims;
            begun.push_back(t);
        }
        return begun;
    }

    // Looks its name up, and connects.
    void connect(Transfer& t) {
        REQUIRE(gate.may_look_up(t, now));
        gate.found(t);
        gate.connected(t, ++last_connection);
    }
};

} // namespace

TEST_CASE("gate: to a host that none has reached one goes first, then eight, then all") {
    Gated g;
    g.enter(plain, 20);
    auto first = g.begin();
    REQUIRE(first.size() == 1);
    REQUIRE(g.gate.may_look_up(*first[0], g.now));
    g.gate.found(*first[0]);
    g.gate.leave(*first[0], Gate::End::not_connected, g.now);
    auto then = g.begin();
    REQUIRE(then.size() == 8);
    g.gate.connected(*then[0], 1);
    CHECK(g.begin().size() == 11);
}

TEST_CASE("gate: hosts take turns") {
    Gated g;
    g.enter("http://192.0.2.1/", 10);
    g.gate.connected(*g.begin().at(0), 1);
    g.begin();
    g.enter("http://192.0.2.1/", 3);
    g.enter("http://192.0.2.2/", 3);
    const auto begun = g.begin();
    REQUIRE(begun.size() == 4);
    CHECK(begun[1]->request.url == "http://192.0.2.2/");
}

TEST_CASE("gate: until it is known that connections take many requests, they begin one by one") {
    Gated g;
    g.enter(over_tls, 300);
    const auto first = g.begin();
    REQUIRE(first.size() == 1);
    g.connect(*first[0]);
    const auto second = g.begin();
    REQUIRE(second.size() == 1);
    SUBCASE("all at once when the second opens another one") {
        g.gate.found(*second[0]);
        CHECK(g.begin().size() == 298);
    }
    SUBCASE("as many as there is room for when it shares the first's") {
        g.gate.connected(*second[0], 1);
        CHECK(g.lane.claims == 1);
        for (std::size_t begun = 2, steps = 0; begun < 90; ++steps) {
            const auto some = g.begin();
            REQUIRE(steps < 10);
            REQUIRE(begun + some.size() <= 110);
            begun += some.size();
            for (Transfer* t : some)
                g.gate.connected(*t, 1);
        }
        CHECK(g.lane.claims == 1);
    }
    SUBCASE("all at once when the first's answer is HTTP/1.1") {
        g.gate.answered(*first[0], false);
        g.gate.leave(*first[0], Gate::End::connected, g.now);
        CHECK(g.begin().size() == 298);
    }
    SUBCASE("a few when an answer corrects the impression") {
        g.gate.found(*second[0]);
        g.gate.answered(*first[0], true);
        g.gate.leave(*first[0], Gate::End::connected, g.now);
        CHECK(g.begin().size() < 20);
    }
}

TEST_CASE("gate: a connection takes no more requests than went into it before one did not") {
    Gated g;
    g.enter(over_tls, 200);
    const auto first = g.begin();
    g.connect(*first[0]);
    const auto second = g.begin();
    g.gate.connected(*second[0], 1);
    const auto next = g.begin();
    REQUIRE(next.size() >= 5);
    g.gate.connected(*next[0], 1); // three are in it
    g.gate.found(*next[1]);        // and the fourth opens another
    g.gate.connected(*next[1], 2);
    for (std::size_t i = 2; i < next.size(); ++i)
        g.gate.connected(*next[i], 2 + i / 3);
    CHECK(g.begin().size() < 15);
}

TEST_CASE("gate: a request without a lookup goes when the other's has ended well") {
    Gated g;
    g.enter(plain, 2);
    const auto first = g.begin();
    g.connect(*first[0]);
    const auto second = g.begin();
    REQUIRE(second.size() == 1);
    REQUIRE(g.gate.may_look_up(*second[0], g.now)); // its time is up
    g.enter(plain, 1);
    const auto third = g.begin();
    REQUIRE(third.size() == 1);
    CHECK_FALSE(g.gate.may_look_up(*third[0], g.now));
    g.gate.turned_away(*third[0]);
    third[0]->lane = nullptr;
    CHECK(g.begin().empty());
    g.enter(plain, 3);
    CHECK(g.begin().empty());
    g.gate.found(*second[0]);
    const auto all = g.begin();
    REQUIRE(all.size() == 4);
    CHECK(all[0] == third[0]);
}

TEST_CASE("gate: a lookup that fails says nothing of the connections that are there") {
    Gated g;
    g.enter(plain, 12);
    g.connect(*g.begin().at(0));
    const auto begun = g.begin();
    REQUIRE(begun.size() == 11);
    for (std::size_t i = 1; i < 11; ++i)
        g.gate.connected(*begun[i], i);
    REQUIRE(g.gate.may_look_up(*begun[0], g.now));
    g.gate.leave(*begun[0], Gate::End::not_connected, g.now);
    g.enter(plain, 20);
    CHECK(g.begin().size() == 20);
}

TEST_CASE("gate: a host whose name was found again is no longer behind the others") {
    Gated g;
    g.enter("http://b.test/");
    Transfer* t = g.begin().at(0);
    REQUIRE(g.gate.may_look_up(*t, g.now));
    g.gate.leave(*t, Gate::End::name_not_found, g.now);
    bool found = false;
    SUBCASE("found") {
        found = true;
        g.enter("http://b.test/");
        t = g.begin().at(0);
        g.connect(*t);
        g.gate.leave(*t, Gate::End::connected, g.now);
    }
    SUBCASE("not found") {}
    // As many hosts as may hang that failed before.
    for (std::size_t i = 0; i < 2 * Lookups::most_failing; ++i) {
        g.enter("http://h" + std::to_string(i / 2) + ".test/");
        t = g.begin().at(0);
        REQUIRE(g.gate.may_look_up(*t, g.now));
        if (i % 2 == 0)
            g.gate.leave(*t, Gate::End::name_not_found, g.now);
    }
    g.enter("http://b.test/");
    CHECK(g.gate.may_look_up(*g.begin().at(0), g.now) == found);
}

TEST_CASE("gate: lookups given up count against those that failed before") {
    Gated g;
    for (std::size_t i = 0; i < Lookups::most_failing; ++i) {
        g.enter("http://h" + std::to_string(i) + ".test/");
        Transfer* const t = g.begin().at(0);
        REQUIRE(g.gate.may_look_up(*t, g.now));
        g.gate.leave(*t, Gate::End::not_connected, g.now);
    }
    g.enter("http://h0.test/");
    Transfer* const again = g.begin().at(0);
    CHECK_FALSE(g.gate.may_look_up(*again, g.now));
    g.gate.turned_away(*again);
    again->lane = nullptr;
    CHECK(g.begin().empty());
    REQUIRE(g.gate.next_change());
    g.now = *g.gate.next_change();
    CHECK(g.begin().size() == 1);
}
