#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace jobq::core {

// An IP address, in network order. An IPv4 address is kept in its IPv4-mapped form, ::ffff:a.b.c.d
// (RFC 4291, 2.5.5.2), so that both forms of it are one.
struct Address {
    std::array<std::uint8_t, 16> bytes{};

    static Address v4(const std::array<std::uint8_t, 4>& bytes) noexcept;
    static Address v6(const std::array<std::uint8_t, 16>& bytes) noexcept { return {bytes}; }

    friend bool operator==(const Address&, const Address&) = default;
};

// "192.0.2.1" or "2001:db8::1": no zones, no IPv4 of fewer than four numbers or with leading
// zeros. Anything else gives nothing.
std::optional<Address> parse_address(std::string_view text);
std::string to_string(const Address& address);

// Whether the address is one of the public internet. All that IANA's special-purpose registries
// (RFC 6890) set apart is not, and neither are the metadata services of clouds. Of an address that
// carries an IPv4 address (IPv4-mapped, IPv4-compatible, 6to4, NAT64) that one is judged.
bool is_public(const Address& address) noexcept;

// Networks that may be connected to although they are not public.
class Networks {
public:
    // None.
    Networks() = default;

    // A list of addresses and networks ("10.0.0.0/8", "fd00::/8"), separated by commas or spaces;
    // or what is wrong with it.
    static std::variant<Networks, std::string> parse(std::string_view list);

    // An IPv4 network covers its addresses also in IPv4-mapped and in NAT64 form; no other network
    // covers an IPv4 address ("::/0" is all of IPv6, and not IPv4).
    bool contains(const Address& address) const noexcept;

    // Whether a connection to this address is allowed.
    bool allows(const Address& address) const noexcept {
        return is_public(address) || contains(address);
    }

private:
    struct Network {
        Address address;
        unsigned prefix; // of the 128 bits
    };

    std::vector<Network> networks_;
};

} // namespace jobq::core
