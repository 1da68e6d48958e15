#include <cstring>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include "core/stream_set.hpp"

using namespace jobq::core;

namespace {

template <std::size_t N>
std::vector<std::int32_t> list(const StreamSet<N>& set) {
    std::vector<std::int32_t> queues;
    for (const Stream& stream : set.streams())
        queues.push_back(stream.queue);
    return queues;
}

template <std::size_t N>
StreamSet<N> set_of(std::initializer_list<std::int32_t> ids) {
    StreamSet<N> set;
    for (const std::int32_t id : ids)
        set.add({id});
    return set;
}

using Ids = std::vector<std::int32_t>;

} // namespace

TEST_CASE("stream set: all zero bytes are the empty set") {
    static_assert(std::is_trivially_copyable_v<StreamSet<4>>);
    static_assert(std::is_standard_layout_v<StreamSet<4>>);
    StreamSet<4> set = set_of<4>({1, 2});
    std::memset(static_cast<void*>(&set), 0, sizeof set);
    CHECK(set.empty());
    set.add({7});
    CHECK(list(set) == Ids{7});
}

TEST_CASE("stream set: a stream is kept once") {
    CHECK(list(set_of<4>({5, 3, 5, 3})) == Ids{5, 3});
}

TEST_CASE("stream set: it holds as many as it says") {
    const auto set = set_of<3>({1, 2, 3});
    CHECK_FALSE(set.overflowed());
    CHECK(list(set) == Ids{1, 2, 3});
}

TEST_CASE("stream set: one too many means all streams") {
    const auto set = set_of<3>({1, 2, 3, 4});
    CHECK(set.overflowed());
    CHECK_FALSE(set.empty());
    CHECK(set.streams().empty());
    CHECK(set.contains({99}));
}

TEST_CASE("stream set: an overflow stays until it is cleared") {
    auto set = set_of<1>({1, 2});
    set.add({1});
    CHECK(set.overflowed());
    set.clear();
    CHECK(set.empty());
    CHECK_FALSE(set.contains({1}));
}

TEST_CASE("stream set: merge joins two sets") {
    auto set = set_of<3>({1, 2});
    set.merge(set_of<8>({2, 3}));
    CHECK(list(set) == Ids{1, 2, 3});
}

TEST_CASE("stream set: merge overflows where the union does not fit") {
    auto set = set_of<3>({1, 2});
    set.merge(set_of<3>({3, 4}));
    CHECK(set.overflowed());
}

TEST_CASE("stream set: merge takes over an overflow") {
    auto set = set_of<3>({1});
    set.merge(set_of<1>({1, 2}));
    CHECK(set.overflowed());
}

TEST_CASE("stream set: merge with itself changes nothing") {
    auto set = set_of<3>({1, 2});
    set.merge(set);
    CHECK(list(set) == Ids{1, 2});
}

TEST_CASE("stream set: streams of one queue are told apart") {
    StreamSet<4> set;
    set.add({1, 7});
    CHECK(set.contains({1, 7}));
    CHECK_FALSE(set.contains({1, 8}));
    CHECK_FALSE(set.contains({1}));
}

TEST_CASE("stream set: all streams of a queue stand for each of them") {
    StreamSet<4> set;
    set.add({1, Stream::any});
    CHECK(set.contains({1, 7}));
    CHECK(set.contains({1}));
    CHECK_FALSE(set.contains({2, 7}));
}
