#include <algorithm>
#include <limits>
#include <vector>

#include <doctest/doctest.h>

#include "core/statuses.hpp"

using namespace jobq::core;

namespace {

using Items = std::vector<std::string>;

std::vector<int> list(const Items& items) {
    const auto parsed = Statuses::parse(items);
    REQUIRE(std::holds_alternative<Statuses>(parsed));
    std::vector<int> statuses;
    for (int status = -10; status < 2000; ++status)
        if (std::get<Statuses>(parsed).contains(status))
            statuses.push_back(status);
    return statuses;
}

std::vector<int> all_but(int from, int to, std::initializer_list<int> without) {
    std::vector<int> statuses;
    for (int status = from; status <= to; ++status)
        if (std::find(without.begin(), without.end(), status) == without.end())
            statuses.push_back(status);
    return statuses;
}

std::string refused(const std::string& item) {
    const auto parsed = Statuses::parse(Items{"404", item});
    REQUIRE_MESSAGE(std::holds_alternative<std::string>(parsed), item);
    return std::get<std::string>(parsed);
}

} // namespace

TEST_CASE("statuses: none are final by default") {
    CHECK(list({}).empty());
    CHECK_FALSE(Statuses().contains(404));
}

TEST_CASE("statuses: a status means itself") {
    CHECK(list({"404", "100", "599", "404"}) == std::vector<int>{100, 404, 599});
}

TEST_CASE("statuses: a class leaves out what asks for another try") {
    CHECK(list({"4xx"}) == all_but(400, 499, {408, 425, 429}));
    CHECK(list({"5xx"}) == all_but(500, 599, {}));
    CHECK(list({"3xx"}) == all_but(300, 399, {}));
}

TEST_CASE("statuses: what a class leaves out can be named beside it") {
    CHECK(list({"4xx", "429"}) == all_but(400, 499, {408, 425}));
    CHECK(list({"408", "425", "4xx"}) == all_but(400, 499, {429}));
}

TEST_CASE("statuses: success cannot be final") {
    for (const std::string item : {"200", "204", "299", "2xx"})
        CHECK(refused(item) == "status \"" + item + "\" is success and cannot be final");
}

TEST_CASE("statuses: what is neither a status nor a class is refused by name") {
    for (const std::string item : {"", "4", "40", "4040", "099", "600", "999", "0xx", "6xx", "xxx",
                                   "4XX", "40x", "4x4", "4x", " 404", "404 ", "-404", "4.4", "/04"})
        CHECK(refused(item) ==
              '"' + item + "\" is neither an HTTP status (\"404\") nor a class of them (\"4xx\")");
}

TEST_CASE("statuses: any number can be asked for") {
    CHECK_FALSE(Statuses().contains(-1));
    CHECK_FALSE(Statuses().contains(std::numeric_limits<int>::min()));
    CHECK_FALSE(Statuses().contains(std::numeric_limits<int>::max()));
}
