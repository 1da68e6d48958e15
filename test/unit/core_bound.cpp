#include <doctest/doctest.h>

#include "core/bound.hpp"

using namespace jobq::core;

namespace {

constexpr int normal = 0, high = -1;

// A queue whose search has found one priority.
QueueBounds known() {
    QueueBounds bounds;
    const std::int32_t priorities[] = {normal};
    bounds.found(priorities, false, bounds.changes());
    return bounds;
}

Place from(const QueueBounds& bounds, int priority) {
    for (const auto& level : bounds.levels())
        if (level.priority == priority)
            return level.from;
    return last_place;
}

std::uint64_t generation(const QueueBounds& bounds, int priority = normal) {
    for (const auto& level : bounds.levels())
        if (level.priority == priority)
            return level.generation;
    return 0;
}

} // namespace

TEST_CASE("zeroed memory knows nothing of a queue") {
    QueueBounds bounds{};
    CHECK_FALSE(bounds.complete());
    CHECK(bounds.levels().empty());
}

TEST_CASE("a claim raises the bound to what it has read") {
    auto bounds = known();
    bounds.raise(normal, {100, 7}, generation(bounds));
    CHECK(from(bounds, normal) == Place{100, 7});
}

TEST_CASE("a place noted below the bound lowers it") {
    auto bounds = known();
    bounds.raise(normal, {100, 7}, generation(bounds));
    bounds.note(normal, {90, 3});
    CHECK(from(bounds, normal) == Place{90, 3});
}

TEST_CASE("a place noted above the bound leaves it") {
    auto bounds = known();
    bounds.raise(normal, {100, 7}, generation(bounds));
    bounds.note(normal, {110, 8});
    CHECK(from(bounds, normal) == Place{100, 7});
}

TEST_CASE("a push that commits between a claim's snapshot and its raise is not passed over") {
    auto bounds = known();
    auto seen = generation(bounds); // then the claim takes its snapshot
    bounds.note(normal, {50, 1});
    bounds.raise(normal, {100, 7}, seen);
    CHECK(from(bounds, normal) == Place{50, 1});
}

TEST_CASE("of two claims that saw the same bound only the first to commit raises it") {
    auto bounds = known();
    auto seen = generation(bounds);
    bounds.raise(normal, {100, 7}, seen);
    bounds.note(normal, {90, 3}); // forgotten by nobody
    bounds.raise(normal, {200, 9}, seen);
    CHECK(from(bounds, normal) == Place{90, 3});
}

TEST_CASE("what a claim that rolls back had taken is below the bound again") {
    auto bounds = known();
    bounds.raise(normal, {100, 7}, generation(bounds));
    bounds.lower({60, 2});
    CHECK(from(bounds, normal) == Place{60, 2});
}

TEST_CASE("a push of a new priority becomes a level of its own, in its order") {
    auto bounds = known();
    bounds.note(high, {100, 1});
    REQUIRE(bounds.levels().size() == 2);
    CHECK(bounds.levels()[0].priority == high);
    CHECK(bounds.levels()[0].from == Place{100, 1});
    CHECK(bounds.complete());
}

TEST_CASE("a new priority noted before the search is over begins at the start") {
    QueueBounds bounds{};
    bounds.note(high, {100, 1});
    CHECK(from(bounds, high) == first_place);
}

TEST_CASE("a search that something overtook does not count as complete") {
    QueueBounds bounds{};
    auto seen = bounds.changes();
    bounds.forget();
    const std::int32_t priorities[] = {normal};
    bounds.found(priorities, false, seen);
    CHECK_FALSE(bounds.complete());
}

TEST_CASE("more priorities than there is room for are searched for each time") {
    auto bounds = known();
    for (int priority = 1; priority <= static_cast<int>(QueueBounds::most_levels); ++priority)
        bounds.note(priority, {100, 1});
    CHECK_FALSE(bounds.complete());
}

TEST_CASE("a raise from before a forget changes nothing") {
    auto bounds = known();
    auto seen = generation(bounds);
    bounds.forget();
    const std::int32_t priorities[] = {normal};
    bounds.found(priorities, false, bounds.changes());
    bounds.raise(normal, {100, 7}, seen);
    CHECK(from(bounds, normal) == first_place);
}

TEST_CASE("a group noted or found is remembered until it is forgotten") {
    auto bounds = known();
    CHECK_FALSE(bounds.grouped());
    bounds.note_group();
    CHECK(bounds.grouped());
    bounds.forget();
    CHECK_FALSE(bounds.grouped());
}
