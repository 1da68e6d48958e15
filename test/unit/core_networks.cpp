#include <doctest/doctest.h>

#include "core/networks.hpp"

using namespace jobq::core;
using namespace std::string_view_literals;

namespace {

Address address(std::string_view text) {
    const auto parsed = parse_address(text);
    REQUIRE_MESSAGE(parsed, text);
    return *parsed;
}

bool is_public(std::string_view text) {
    return jobq::core::is_public(address(text));
}

Networks networks(std::string_view list) {
    const auto parsed = Networks::parse(list);
    REQUIRE_MESSAGE(std::holds_alternative<Networks>(parsed), list);
    return std::get<Networks>(parsed);
}

// Why it is none.
std::string refused(std::string_view list) {
    const auto parsed = Networks::parse(list);
    REQUIRE_MESSAGE(std::holds_alternative<std::string>(parsed), list);
    return std::get<std::string>(parsed);
}

} // namespace

TEST_CASE("networks: an IPv4 address and its mapped form are one") {
    CHECK(address("192.0.2.1") == Address::v4({192, 0, 2, 1}));
    CHECK(address("::ffff:192.0.2.1") == Address::v4({192, 0, 2, 1}));
    CHECK(address("::ffff:c000:201") == Address::v4({192, 0, 2, 1}));
    CHECK(Address::v6({0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 192, 0, 2, 1}) ==
          Address::v4({192, 0, 2, 1}));
}

TEST_CASE("networks: an address is written as it is read") {
    for (const auto text : {"192.0.2.1", "0.0.0.0", "2001:db8::1", "::", "64:ff9b::a00:1"})
        CHECK(to_string(address(text)) == text);
    CHECK(to_string(address("::ffff:10.0.0.1")) == "10.0.0.1");
}

TEST_CASE("networks: text of another form is no address") {
    for (const auto text :
         {""sv, "localhost"sv, "1"sv, "127.1"sv, "0x7f.0.0.1"sv, "0177.0.0.1"sv, "127.00.0.1"sv,
          "1.2.3.256"sv, "1.2.3.4.5"sv, " 1.2.3.4"sv, "1.2.3.4 "sv, "1.2.3.4\0"sv, "2130706433"sv,
          "[::1]"sv, "fe80::1%eth0"sv, "::1/128"sv, ":::"sv, "1::2::3"sv, "12345::"sv})
        CHECK_FALSE(parse_address(text));
}

TEST_CASE("networks: addresses of the internet are public") {
    for (const auto text :
         {"1.1.1.1", "8.8.8.8", "93.184.216.34", "192.31.196.1", "2606:4700::1111",
          "2001:4860:4860::8888", "2a00:1450:4001::200e", "2c0f::1"})
        CHECK_MESSAGE(is_public(text), text);
}

TEST_CASE("networks: special-purpose IPv4 ranges are not public, from their first to their last") {
    // Each with what stands before and behind it, where that is public.
    struct Range {
        const char *before, *first, *last, *behind;
    };
    for (const Range& range : {
             Range{nullptr, "0.0.0.0", "0.255.255.255", "1.0.0.0"},
             Range{"9.255.255.255", "10.0.0.0", "10.255.255.255", "11.0.0.0"},
             Range{"100.63.255.255", "100.64.0.0", "100.127.255.255", "100.128.0.0"},
             Range{"126.255.255.255", "127.0.0.0", "127.255.255.255", "128.0.0.0"},
             Range{"168.63.129.15", "168.63.129.16", "168.63.129.16", "168.63.129.17"},
             Range{"169.253.255.255", "169.254.0.0", "169.254.255.255", "169.255.0.0"},
             Range{"172.15.255.255", "172.16.0.0", "172.31.255.255", "172.32.0.0"},
             Range{"191.255.255.255", "192.0.0.0", "192.0.0.255", "192.0.1.0"},
             Range{"192.0.1.255", "192.0.2.0", "192.0.2.255", "192.0.3.0"},
             Range{"192.88.98.255", "192.88.99.0", "192.88.99.255", "192.88.100.0"},
             Range{"192.167.255.255", "192.168.0.0", "192.168.255.255", "192.169.0.0"},
             Range{"198.17.255.255", "198.18.0.0", "198.19.255.255", "198.20.0.0"},
             Range{"198.51.99.255", "198.51.100.0", "198.51.100.255", "198.51.101.0"},
             Range{"203.0.112.255", "203.0.113.0", "203.0.113.255", "203.0.114.0"},
             Range{"223.255.255.255", "224.0.0.0", "239.255.255.255", nullptr},
             Range{nullptr, "240.0.0.0", "255.255.255.255", nullptr},
         }) {
        CAPTURE(range.first);
        CHECK_FALSE(is_public(range.first));
        CHECK_FALSE(is_public(range.last));
        for (const char* outside : {range.before, range.behind})
            if (outside != nullptr)
                CHECK_MESSAGE(is_public(outside), outside);
    }
}

TEST_CASE("networks: metadata services of clouds are not public") {
    for (const auto text : {"169.254.169.254", "169.254.170.2", "100.100.100.200", "192.0.0.192",
                            "168.63.129.16", "fd00:ec2::254", "fd20:ce::254", "fe80::a9fe:a9fe"})
        CHECK_FALSE_MESSAGE(is_public(text), text);
}

TEST_CASE("networks: special-purpose IPv6 ranges are not public") {
    for (const auto text : {
             "::",
             "::1",
             "100::1",
             "100:0:0:1::1",
             "2001::1", // Teredo
             "2001:0:ffff:ffff:ffff:ffff:ffff:ffff",
             "2001:2::1",
             "2001:10::1",
             "2001:2f:ffff::1",
             "2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff",
             "2001:db8::",
             "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff",
             "3fff::",
             "3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff",
             "5f00::1",
             "fc00::1",
             "fdff:ffff::1",
             "fe80::1",
             "febf::1",
             "fec0::1",
             "feff::1",
             "ff02::1",
             "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
         })
        CHECK_FALSE_MESSAGE(is_public(text), text);
}

TEST_CASE("networks: IPv6 addresses that nobody was given are not public") {
    for (const auto text : {"1fff:ffff::1", "4000::1", "8000::1", "e000::1", "::1:0:0:1"})
        CHECK_FALSE_MESSAGE(is_public(text), text);
}

TEST_CASE("networks: what stands next to a special-purpose IPv6 range is public") {
    for (const auto text :
         {"2000::1", "2001:200::1", "2001:db7:ffff::1", "2001:db9::1", "2003::1", "3ffe:ffff::1",
          "3fff:1000::1", "3fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"})
        CHECK_MESSAGE(is_public(text), text);
}

TEST_CASE("networks: an IPv6 address that carries an IPv4 address is judged by that") {
    for (const std::string prefix : {"::ffff:", "::", "64:ff9b::", "64:ff9b:1::"}) {
        CAPTURE(prefix);
        CHECK(is_public(prefix + "8.8.8.8"));
        for (const auto inside : {"127.0.0.1", "10.0.0.1", "169.254.169.254", "0.0.0.0",
                                  "224.0.0.1", "255.255.255.255", "168.63.129.16"})
            CHECK_FALSE_MESSAGE(is_public(prefix + inside), inside);
    }
    CHECK(is_public("2002:808:808::1"));
    CHECK_FALSE(is_public("2002:7f00:1::1"));
    CHECK_FALSE(is_public("2002:a00:1::808:808"));
    CHECK_FALSE(is_public("2002:a9fe:a9fe::"));
}

TEST_CASE("networks: a local NAT64 address is not public where it may hide another") {
    // 10.0.0.1 behind prefixes of 48, 56 and 64 bits, 8.8.8.8 where one of 96 would have it.
    for (const auto text :
         {"64:ff9b:1:a00:0:100:808:808", "64:ff9b:1:a:0:1:808:808", "64:ff9b:1:0:a:0:108:808",
          "64:ff9b:1:1::808:808", "64:ff9b:2::808:808", "64:ff9b:0:1::808:808", "64:ff9a::808:808"})
        CHECK_FALSE_MESSAGE(is_public(text), text);
}

TEST_CASE("networks: the empty list has none") {
    for (const auto list : {"", " ", ",", " , ,\t\n"}) {
        CHECK_FALSE(networks(list).contains(address("10.0.0.1")));
        CHECK_FALSE(networks(list).contains(address("::")));
    }
    CHECK_FALSE(Networks().contains(address("10.0.0.1")));
}

TEST_CASE("networks: a network has the addresses from its first to its last") {
    const auto list = networks("10.1.2.0/23");
    CHECK_FALSE(list.contains(address("10.1.1.255")));
    CHECK(list.contains(address("10.1.2.0")));
    CHECK(list.contains(address("10.1.3.255")));
    CHECK_FALSE(list.contains(address("10.1.4.0")));

    const auto six = networks("fd00:1:2::/47");
    CHECK_FALSE(six.contains(address("fd00:1:1:ffff::1")));
    CHECK(six.contains(address("fd00:1:2::")));
    CHECK(six.contains(address("fd00:1:3:ffff:ffff:ffff:ffff:ffff")));
    CHECK_FALSE(six.contains(address("fd00:1:4::")));
}

TEST_CASE("networks: every length of prefix covers what it says") {
    for (unsigned prefix = 0; prefix <= 32; ++prefix) {
        const auto list = networks("0.0.0.0/" + std::to_string(prefix));
        const std::uint32_t beyond = prefix == 0 ? 0 : 1U << (32 - prefix);
        const auto at = [](std::uint32_t n) {
            return Address::v4({static_cast<std::uint8_t>(n >> 24),
                                static_cast<std::uint8_t>(n >> 16),
                                static_cast<std::uint8_t>(n >> 8), static_cast<std::uint8_t>(n)});
        };
        CAPTURE(prefix);
        CHECK(list.contains(at(0)));
        CHECK(list.contains(at(beyond - 1)));
        CHECK(list.contains(at(beyond)) == (prefix == 0));
    }
}

TEST_CASE("networks: an address alone is a network of one") {
    const auto list = networks("127.0.0.1 ::1");
    CHECK(list.contains(address("127.0.0.1")));
    CHECK_FALSE(list.contains(address("127.0.0.2")));
    CHECK(list.contains(address("::1")));
    CHECK_FALSE(list.contains(address("::2")));
    CHECK_FALSE(list.contains(address("::")));
}

TEST_CASE("networks: a list is separated by commas or spaces") {
    for (const auto text : {"10.0.0.0/8,::1,fd00::/8", "10.0.0.0/8 ::1 fd00::/8",
                            " 10.0.0.0/8 , ::1,\n\tfd00::/8, "}) {
        const auto list = networks(text);
        CHECK(list.contains(address("10.9.9.9")));
        CHECK(list.contains(address("::1")));
        CHECK(list.contains(address("fd12::1")));
        CHECK_FALSE(list.contains(address("192.168.0.1")));
    }
}

TEST_CASE("networks: an IPv4 network covers the mapped and NAT64 forms of its addresses") {
    for (const auto text : {"10.0.0.0/8", "::ffff:10.0.0.0/104"}) {
        const auto list = networks(text);
        CHECK(list.contains(address("::ffff:10.1.2.3")));
        CHECK(list.contains(address("64:ff9b::10.1.2.3")));
        CHECK(list.contains(address("64:ff9b:1::10.1.2.3")));
        CHECK_FALSE(list.contains(address("::ffff:11.1.2.3")));
        CHECK_FALSE(list.contains(address("64:ff9b::11.1.2.3")));
        CHECK_FALSE(list.contains(address("64:ff9b:1:1::10.1.2.3")));
        CHECK_FALSE(list.contains(address("::10.1.2.3")));
        CHECK_FALSE(list.contains(address("2002:a01:203::1")));
    }
}

TEST_CASE("networks: all of IPv6 does not include IPv4, nor the other way round") {
    CHECK(networks("::/0").contains(address("fe80::1")));
    CHECK(networks("::/0").contains(address("::1")));
    CHECK_FALSE(networks("::/0").contains(address("10.0.0.1")));
    CHECK_FALSE(networks("::/64").contains(address("10.0.0.1")));
    CHECK(networks("0.0.0.0/0").contains(address("255.255.255.255")));
    CHECK_FALSE(networks("0.0.0.0/0").contains(address("fe80::1")));
}

TEST_CASE("networks: an IPv6 network of NAT64 addresses covers them as they are") {
    CHECK(networks("64:ff9b::/96").contains(address("64:ff9b::10.0.0.1")));
    CHECK_FALSE(networks("64:ff9b::/96").contains(address("10.0.0.1")));
}

TEST_CASE("networks: what is no network is refused by name") {
    CHECK(refused("10.0.0.0/33") == "\"10.0.0.0/33\" is not a network");
    for (const std::string item :
         {"localhost", "10.0.0.0/", "10.0.0.0/-1", "10.0.0.0/+8", "10.0.0.0/8x", "10.0.0.0/8/8",
          "10.0.0.0/99999999999", "10/8", "10.0.0/8", "::/129", "::1/", "/8", "/", "fe80::1%lo",
          "10.0.0.0;10.0.0.1", "10.0.0.0/0x8"})
        CHECK(refused(item) == '"' + item + "\" is not a network");
    CHECK(refused("10.0.0.0/8, 10.0.0.300") == "\"10.0.0.300\" is not a network");
}

TEST_CASE("networks: a refusal is short and printable, whatever was given") {
    CHECK(refused(std::string(100'000, 'x')).size() < 100);
    CHECK(refused("\xff\0"sv) == "\"\xef\xbf\xbd\xef\xbf\xbd\" is not a network");
}

TEST_CASE("networks: bits behind the mask are refused") {
    CHECK(refused("10.0.0.1/8") == "\"10.0.0.1/8\" has bits set to the right of its mask");
    for (const auto item : {"10.0.0.1/31", "128.0.0.0/0", "10.128.0.0/8", "fd00::1/127", "1::/15",
                            "::ffff:10.0.0.1/104", "::ffff:0:0/95"})
        CHECK(refused(item).ends_with("has bits set to the right of its mask"));
}

TEST_CASE("networks: connections are allowed to what is public or listed") {
    const auto list = networks("10.0.0.0/8, fd00::/8");
    CHECK(list.allows(address("8.8.8.8")));
    CHECK(list.allows(address("10.0.0.1")));
    CHECK(list.allows(address("fd00::1")));
    CHECK_FALSE(list.allows(address("192.168.0.1")));
    CHECK_FALSE(list.allows(address("fe80::1")));
    CHECK_FALSE(Networks().allows(address("10.0.0.1")));
}
