#include <doctest/doctest.h>

#include "core/agenda.hpp"

using jobq::core::Agenda;
using jobq::core::Stream;

namespace {

constexpr Stream a{1}, b{2}, c{3, 7};

} // namespace

TEST_CASE("agenda: nothing is ready until somebody says so") {
    Agenda agenda;
    CHECK_FALSE(agenda.next());
    CHECK_FALSE(agenda.next_time());
    agenda.look_at(a);
    CHECK(agenda.next() == a);
    CHECK(agenda.ready() == 1);
}

TEST_CASE("agenda: ready streams have their turns, each as often as the others") {
    Agenda agenda;
    for (Stream stream : {c, a, b})
        agenda.look_at(stream);
    CHECK(agenda.next() == a);
    CHECK(agenda.next() == b);
    CHECK(agenda.next() == c);
    CHECK(agenda.next() == a);
}

TEST_CASE("agenda: one that was dealt with loses its turn") {
    Agenda agenda;
    agenda.look_at(a);
    agenda.look_at(b);
    agenda.done(a);
    CHECK(agenda.next() == b);
    CHECK(agenda.next() == b);
}

TEST_CASE("agenda: a time makes its stream ready when it has come, and not before") {
    Agenda agenda;
    agenda.look_at(a, 100);
    CHECK(agenda.next_time() == 100);
    agenda.ring(99);
    CHECK_FALSE(agenda.next());
    agenda.ring(100);
    CHECK(agenda.next() == a);
    CHECK_FALSE(agenda.next_time());
}

TEST_CASE("agenda: of two times of a stream the earlier counts") {
    Agenda agenda;
    agenda.look_at(a, 100);
    agenda.look_at(a, 200);
    CHECK(agenda.next_time() == 100);
    agenda.look_at(a, 50);
    CHECK(agenda.next_time() == 50);
    agenda.ring(60);
    CHECK(agenda.ready() == 1);
    CHECK_FALSE(agenda.next_time());
}

TEST_CASE("agenda: a push makes a timed stream ready at once") {
    Agenda agenda;
    agenda.look_at(a, 100);
    agenda.look_at(a);
    CHECK(agenda.next() == a);
    CHECK_FALSE(agenda.next_time());
}

TEST_CASE("agenda: one that is done may be due again later") {
    Agenda agenda;
    agenda.look_at(a);
    agenda.done(a, 10);
    CHECK_FALSE(agenda.next());
    CHECK(agenda.next_time() == 10);
}

TEST_CASE("agenda: a blocked stream has no turn, whatever is pushed, until its endpoint lets it") {
    Agenda agenda;
    agenda.look_at(a);
    agenda.block(a, 7);
    agenda.look_at(a);
    agenda.look_at(a, 5);
    agenda.ring(5);
    CHECK_FALSE(agenda.next());
    agenda.unblock(8, 1);
    CHECK_FALSE(agenda.next());
    agenda.unblock(7, 1);
    CHECK(agenda.next() == a);
}

TEST_CASE("agenda: an endpoint lets as many streams go on as it has room for") {
    Agenda agenda;
    for (Stream stream : {a, b, c}) {
        agenda.look_at(stream);
        agenda.block(stream, 7);
    }
    agenda.unblock(7, 2);
    CHECK(agenda.ready() == 2);
    agenda.unblock(7, 2);
    CHECK(agenda.ready() == 2);
    agenda.unblock(7, 10);
    CHECK(agenda.ready() == 3);
}

TEST_CASE("agenda: one that did not need the room leaves it to the next") {
    Agenda agenda;
    for (Stream stream : {a, b, c}) {
        agenda.look_at(stream);
        agenda.block(stream, 7);
    }
    agenda.unblock(7, 1);
    CHECK(agenda.next() == a);
    agenda.done(a);
    CHECK(agenda.next() == b);
    agenda.forget(b);
    CHECK(agenda.next() == c);
    agenda.done(c);
    CHECK_FALSE(agenda.next());
}

TEST_CASE("agenda: one that took the room waits behind the others") {
    Agenda agenda;
    for (Stream stream : {a, b, c}) {
        agenda.look_at(stream);
        agenda.block(stream, 7);
    }
    for (int round = 0; round < 2; ++round)
        for (Stream stream : {a, b, c}) {
            agenda.unblock(7, 1);
            CHECK(agenda.ready() == 1);
            CHECK(agenda.next() == stream);
            agenda.block(stream, 7);
            CHECK(agenda.ready() == 0);
        }
}

TEST_CASE("agenda: once one is blocked again, the room is gone for all") {
    Agenda agenda;
    for (Stream stream : {a, b, c}) {
        agenda.look_at(stream);
        agenda.block(stream, 7);
    }
    agenda.unblock(7, 2);
    agenda.block(a, 7);
    agenda.done(b);
    CHECK(agenda.ready() == 0);
    agenda.unblock(7, 1);
    CHECK(agenda.next() == c);
}

TEST_CASE("agenda: all blocked streams go on together, whatever their endpoint") {
    Agenda agenda;
    agenda.look_at(a);
    agenda.block(a, 7);
    agenda.look_at(b);
    agenda.block(b, 8);
    agenda.look_at(c, 10);
    agenda.unblock_all();
    CHECK(agenda.ready() == 2);
    CHECK(agenda.next_time() == 10);
    agenda.block(a, 7);
    agenda.unblock(7, 1);
    CHECK(agenda.ready() == 2);
}

TEST_CASE("agenda: a forgotten stream comes back only when it is looked at again") {
    Agenda agenda;
    agenda.look_at(a);
    agenda.block(a, 7);
    agenda.look_at(b, 10);
    agenda.look_at(c);
    for (Stream stream : {a, b, c})
        agenda.forget(stream);
    agenda.unblock(7, 1);
    agenda.ring(10);
    CHECK_FALSE(agenda.next());
    agenda.look_at(a);
    CHECK(agenda.next() == a);
}

TEST_CASE("agenda: those that want are the ready and the blocked ones") {
    Agenda agenda;
    agenda.look_at(a);
    agenda.look_at(b);
    agenda.block(b, 7);
    agenda.look_at(c, 10);
    CHECK(agenda.wanting(10) == std::vector<Stream>{a, b});
    CHECK(agenda.wanting(1) == std::vector<Stream>{a});
}
