#include "core/networks.hpp"

#include <algorithm>
#include <charconv>
#include <span>

#include <arpa/inet.h>

#include "core/text.hpp"

namespace jobq::core {

namespace {

using V4 = std::array<std::uint8_t, 4>;

constexpr unsigned mapped_prefix = 96;

bool same_prefix(std::span<const std::uint8_t> a, std::span<const std::uint8_t> b,
                 unsigned bits) noexcept {
    const std::size_t whole = bits / 8;
    const auto mask = static_cast<std::uint8_t>(0xff00U >> bits % 8);
    return std::equal(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(whole), b.begin()) &&
           (bits % 8 == 0 || ((a[whole] ^ b[whole]) & mask) == 0);
}

struct Range4 {
    V4 bytes;
    unsigned prefix;
};

// Not for connections over the internet.
constexpr Range4 special4[] = {
    {{0, 0, 0, 0}, 8},        // this network, RFC 791; connects to this host
    {{10, 0, 0, 0}, 8},       // private, RFC 1918
    {{100, 64, 0, 0}, 10},    // shared by carriers' customers, RFC 6598
    {{127, 0, 0, 0}, 8},      // loopback, RFC 1122
    {{168, 63, 129, 16}, 32}, // Azure's host, which answers its virtual machines only
    {{169, 254, 0, 0}, 16},   // link-local, RFC 3927; metadata of most clouds
    {{172, 16, 0, 0}, 12},    // private, RFC 1918
    {{192, 0, 0, 0}, 24},     // protocol assignments, RFC 6890
    {{192, 0, 2, 0}, 24},     // documentation, RFC 5737
    {{192, 88, 99, 0}, 24},   // 6to4 relays, RFC 7526
    {{192, 168, 0, 0}, 16},   // private, RFC 1918
    {{198, 18, 0, 0}, 15},    // benchmarks, RFC 2544
    {{198, 51, 100, 0}, 24},  // documentation, RFC 5737
    {{203, 0, 113, 0}, 24},   // documentation, RFC 5737
    {{224, 0, 0, 0}, 4},      // multicast, RFC 5771
    {{240, 0, 0, 0}, 4},      // reserved, RFC 1112; broadcast, RFC 919
};

bool is_public4(const V4& address) noexcept {
    return std::none_of(std::begin(special4), std::end(special4), [&](const Range4& range) {
        return same_prefix(address, range.bytes, range.prefix);
    });
}

struct Range6 {
    std::array<std::uint8_t, 16> bytes;
    unsigned prefix;
};

// The only part of IPv6 that is given out for the internet (RFC 4291, 2.4; IANA's registry of the
// IPv6 address space). Outside are unspecified and loopback (::/127), discard (100::/64, RFC 6666),
// SRv6 (5f00::/16, RFC 9602), unique local (fc00::/7, RFC 4193; metadata of AWS and Google),
// link-local (fe80::/10, RFC 4291), site-local (fec0::/10, RFC 3879), multicast (ff00::/8,
// RFC 4291) and what is kept for later.
constexpr Range6 global6 = {{0x20}, 3};

// In it, and yet not for connections over the internet.
constexpr Range6 special6[] = {
    {{0x20, 0x01}, 23},             // protocol assignments, RFC 2928: Teredo (2001::/32, RFC 4380),
                                    // benchmarks (2001:2::/48, RFC 5180), ORCHID (2001:10::/28 and
                                    // 2001:20::/28, RFC 4843 and 7343) and others
    {{0x20, 0x01, 0x0d, 0xb8}, 32}, // documentation, RFC 3849
    {{0x3f, 0xff}, 20},             // documentation, RFC 9637
};

constexpr Range6 mapped = {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff}, mapped_prefix};
constexpr Range6 compatible = {{}, 96};                  // RFC 4291, 2.5.5.1
constexpr Range6 six_to_four = {{0x20, 0x02}, 16};       // RFC 3056
constexpr Range6 nat64 = {{0x00, 0x64, 0xff, 0x9b}, 96}; // RFC 6052
// RFC 8215 sets 64:ff9b:1::/48 apart for NAT64 with prefixes of one's own, and where in it the IPv4
// address stands depends on the prefix's length (RFC 6052, 2.2). It is taken from the end where the
// other places hold none; the rest is not public.
constexpr Range6 local_nat64 = {{0x00, 0x64, 0xff, 0x9b, 0x00, 0x01}, 96};

bool in(const Address& address, const Range6& range) noexcept {
    return same_prefix(address.bytes, range.bytes, range.prefix);
}

V4 v4_at(const Address& address, std::size_t at) noexcept {
    return {address.bytes[at], address.bytes[at + 1], address.bytes[at + 2], address.bytes[at + 3]};
}

bool is_nat64(const Address& address) noexcept {
    return in(address, nat64) || in(address, local_nat64);
}

} // namespace

Address Address::v4(const V4& bytes) noexcept {
    Address address{mapped.bytes};
    std::copy(bytes.begin(), bytes.end(), address.bytes.begin() + 12);
    return address;
}

std::optional<Address> parse_address(std::string_view text) {
    if (text.find('\0') != std::string_view::npos)
        return std::nullopt;
    const std::string terminated(text);
    V4 four;
    if (inet_pton(AF_INET, terminated.c_str(), four.data()) == 1)
        return Address::v4(four);
    Address address;
    if (inet_pton(AF_INET6, terminated.c_str(), address.bytes.data()) == 1)
        return address;
    return std::nullopt;
}

std::string to_string(const Address& address) {
    char text[INET6_ADDRSTRLEN] = "";
    if (in(address, mapped))
        inet_ntop(AF_INET, address.bytes.data() + 12, text, sizeof text);
    else
        inet_ntop(AF_INET6, address.bytes.data(), text, sizeof text);
    return text;
}

bool is_public(const Address& address) noexcept {
    if (in(address, mapped) || in(address, compatible) || is_nat64(address))
        return is_public4(v4_at(address, 12));
    if (in(address, six_to_four))
        return is_public4(v4_at(address, 2));
    return in(address, global6) &&
           std::none_of(std::begin(special6), std::end(special6),
                        [&](const Range6& range) { return in(address, range); });
}

std::variant<Networks, std::string> Networks::parse(std::string_view list) {
    constexpr std::string_view separators = ", \t\r\n";
    Networks networks;
    while (true) {
        list.remove_prefix(std::min(list.find_first_not_of(separators), list.size()));
        if (list.empty())
            return networks;
        const std::string_view item = list.substr(0, list.find_first_of(separators));
        list.remove_prefix(item.size());
        const std::string quoted = '"' + printable(clip(item, 64)) + '"';

        const std::size_t slash = item.find('/');
        const auto address = parse_address(item.substr(0, slash));
        if (!address)
            return quoted + " is not a network";
        // An IPv4 network's prefix is counted from the mapped form's.
        const bool four = item.find(':') == std::string_view::npos;
        const unsigned offset = four ? mapped_prefix : 0;
        unsigned prefix = 128 - offset;
        if (slash != std::string_view::npos) {
            const std::string_view digits = item.substr(slash + 1);
            const auto [end, error] =
                std::from_chars(digits.data(), digits.data() + digits.size(), prefix);
            if (error != std::errc{} || end != digits.data() + digits.size() ||
                prefix > 128 - offset)
                return quoted + " is not a network";
        }
        prefix += offset;

        Address masked = *address;
        for (unsigned bit = prefix; bit < 128; ++bit)
            masked.bytes[bit / 8] &= static_cast<std::uint8_t>(~(0x80U >> bit % 8));
        if (masked != *address)
            return quoted + " has bits set to the right of its mask";
        networks.networks_.push_back({*address, prefix});
    }
}

bool Networks::contains(const Address& address) const noexcept {
    const bool four = in(address, mapped);
    const auto covers = [this](const Address& a, bool is_v4) {
        return std::any_of(networks_.begin(), networks_.end(), [&](const Network& network) {
            return (!is_v4 || network.prefix >= mapped_prefix) &&
                   same_prefix(a.bytes, network.address.bytes, network.prefix);
        });
    };
    return covers(address, four) ||
           (is_nat64(address) && covers(Address::v4(v4_at(address, 12)), true));
}

} // namespace jobq::core
