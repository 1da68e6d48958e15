#pragma once

#include <array>
#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace jobq::core {

// Sixteen bytes in network order, which is also PostgreSQL's layout. Comparison is bytewise,
// as PostgreSQL's is, so version 7 ids sort by their time.
struct Uuid {
    std::array<std::uint8_t, 16> bytes{};

    friend auto operator<=>(const Uuid&, const Uuid&) = default;
};

// For ids whose last bytes are random, as version 7's and version 4's are.
struct UuidHash {
    std::size_t operator()(const Uuid& uuid) const noexcept {
        std::size_t hash;
        std::memcpy(&hash, uuid.bytes.data() + uuid.bytes.size() - sizeof hash, sizeof hash);
        return hash;
    }
};

// 36 characters, lower case: 018f3c2e-7b1a-7c3d-8e4f-0123456789ab
std::string to_string(const Uuid& uuid);

// Reads what to_string writes, upper case too; anything else gives nothing.
std::optional<Uuid> parse_uuid(std::string_view text);

// When a version 7 id was made, to the microsecond, since the unix epoch: exactly the time
// given to UuidV7::next, unless that id was pushed ahead of its clock. Of another version's
// id it makes no sense.
std::chrono::microseconds time_of(const Uuid& uuid);

// Makes version 7 ids (RFC 9562, method 3: after the 48 bits of milliseconds, the 12 bits of
// rand_a hold the fraction of the millisecond). Each id of one generator is greater than the
// one before: where the clock stands still or goes back, the time in the id is the last one
// plus 1/4096 ms. Ids of different generators have no order within that precision.
class UuidV7 {
public:
    // now: since the unix epoch, 0 to the year 10889; outside, the nearest end is taken.
    // random: eight bytes nobody can guess; two of their bits are not used.
    Uuid next(std::chrono::microseconds now, std::span<const std::uint8_t, 8> random) noexcept;

private:
    // What the next id must have at least: milliseconds and fraction as one number of 60 bits,
    // so that a full fraction carries.
    std::uint64_t least_ = 0;
};

} // namespace jobq::core
