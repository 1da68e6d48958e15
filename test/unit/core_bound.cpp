#include <vector>

#include <doctest/doctest.h>

#include "core/bound.hpp"

using namespace jobq::core;

namespace {

constexpr int normal = 0, high = -1;

// A queue whose search has found one priority.
QueueBounds known() {
    QueueBounds bounds;
    const std::int32_t priorities[] = {normal};
    bounds.found(priorities, bounds.changes());
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
    bounds.found(priorities, seen);
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
    bounds.found(priorities, bounds.changes());
    bounds.raise(normal, {100, 7}, seen);
    CHECK(from(bounds, normal) == first_place);
}

namespace {

// What a claim that looked at all spots drops.
std::vector<std::uint64_t> stamps(const QueueBounds& bounds) {
    std::vector<std::uint64_t> out;
    for (const auto& spot : bounds.spots())
        out.push_back(spot.stamp);
    return out;
}

} // namespace

TEST_CASE("a spot is looked at by itself, and the bound stays") {
    auto bounds = known();
    bounds.raise(normal, {100, 7}, generation(bounds));
    bounds.note_spot(normal, {50, 3});
    CHECK(from(bounds, normal) == Place{100, 7});
    REQUIRE(bounds.spots().size() == 1);
    CHECK(bounds.spots()[0].priority == normal);
    CHECK(bounds.spots()[0].place == Place{50, 3});
}

TEST_CASE("a spot that a claim has dealt with is dropped") {
    auto bounds = known();
    bounds.note_spot(normal, {50, 3});
    bounds.note_spot(normal, {60, 4});
    bounds.drop_spots(stamps(bounds));
    CHECK(bounds.spots().empty());
}

TEST_CASE("a spot that was noted again after a claim's snapshot is not dropped by it") {
    auto bounds = known();
    bounds.note_spot(normal, {50, 3});
    auto seen = stamps(bounds); // then the claim takes its snapshot
    bounds.note_spot(normal, {50, 3});
    bounds.drop_spots(seen);
    REQUIRE(bounds.spots().size() == 1);
    CHECK(bounds.spots()[0].place == Place{50, 3});
}

TEST_CASE("a raise does not lose a spot noted since the claim's snapshot") {
    auto bounds = known();
    auto seen = generation(bounds);
    bounds.note_spot(normal, {50, 1});
    bounds.raise(normal, {100, 7}, seen);
    CHECK(from(bounds, normal) == Place{100, 7});
    CHECK(bounds.spots().size() == 1);
}

TEST_CASE("a spot for which there is no room lowers the bound") {
    auto bounds = known();
    bounds.raise(normal, {1000, 7}, generation(bounds));
    for (std::size_t i = 0; i < QueueBounds::most_spots; ++i)
        bounds.note_spot(normal, {100, static_cast<std::int64_t>(i)});
    CHECK(from(bounds, normal) == Place{1000, 7});
    bounds.note_spot(normal, {50, 1});
    CHECK(from(bounds, normal) == Place{50, 1});
}

TEST_CASE("a spot of a priority that is not known becomes a level") {
    auto bounds = known();
    bounds.note_spot(high, {50, 1});
    CHECK(bounds.spots().empty());
    CHECK(from(bounds, high) == Place{50, 1});
}

TEST_CASE("a copy has the spots too") {
    auto bounds = known();
    bounds.note_spot(normal, {50, 3});
    QueueBounds copy = bounds;
    CHECK(stamps(copy) == stamps(bounds));
    CHECK(copy.complete());
}

TEST_CASE("with the rest the spots are forgotten") {
    auto bounds = known();
    bounds.note_spot(normal, {50, 3});
    bounds.forget();
    CHECK(bounds.spots().empty());
}
