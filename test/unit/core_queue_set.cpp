#include <cstring>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include "core/queue_set.hpp"

using namespace jobq::core;

namespace {

template <std::size_t N>
std::vector<std::int32_t> list(const QueueSet<N>& set) {
    return {set.ids().begin(), set.ids().end()};
}

template <std::size_t N>
QueueSet<N> set_of(std::initializer_list<std::int32_t> ids) {
    QueueSet<N> set;
    for (const std::int32_t id : ids)
        set.add(id);
    return set;
}

using Ids = std::vector<std::int32_t>;

} // namespace

TEST_CASE("queue set: all zero bytes are the empty set") {
    static_assert(std::is_trivially_copyable_v<QueueSet<4>>);
    static_assert(std::is_standard_layout_v<QueueSet<4>>);
    QueueSet<4> set = set_of<4>({1, 2});
    std::memset(static_cast<void*>(&set), 0, sizeof set);
    CHECK(set.empty());
    set.add(7);
    CHECK(list(set) == Ids{7});
}

TEST_CASE("queue set: an id is kept once") {
    CHECK(list(set_of<4>({5, 3, 5, 3})) == Ids{5, 3});
}

TEST_CASE("queue set: it holds as many ids as it says") {
    const auto set = set_of<3>({1, 2, 3});
    CHECK_FALSE(set.overflowed());
    CHECK(list(set) == Ids{1, 2, 3});
}

TEST_CASE("queue set: one id too many means all queues") {
    const auto set = set_of<3>({1, 2, 3, 4});
    CHECK(set.overflowed());
    CHECK_FALSE(set.empty());
    CHECK(set.ids().empty());
    CHECK(set.contains(99));
}

TEST_CASE("queue set: an overflow stays until it is cleared") {
    auto set = set_of<1>({1, 2});
    set.add(1);
    CHECK(set.overflowed());
    set.clear();
    CHECK(set.empty());
    CHECK_FALSE(set.contains(1));
}

TEST_CASE("queue set: merge joins two sets") {
    auto set = set_of<3>({1, 2});
    set.merge(set_of<8>({2, 3}));
    CHECK(list(set) == Ids{1, 2, 3});
}

TEST_CASE("queue set: merge overflows where the union does not fit") {
    auto set = set_of<3>({1, 2});
    set.merge(set_of<3>({3, 4}));
    CHECK(set.overflowed());
}

TEST_CASE("queue set: merge takes over an overflow") {
    auto set = set_of<3>({1});
    set.merge(set_of<1>({1, 2}));
    CHECK(set.overflowed());
}

TEST_CASE("queue set: merge with itself changes nothing") {
    auto set = set_of<3>({1, 2});
    set.merge(set);
    CHECK(list(set) == Ids{1, 2});
}
