#include "core/uuid.hpp"

#include <algorithm>

namespace jobq::core {

using std::chrono::microseconds;

namespace {

constexpr std::uint64_t max_ticks = (std::uint64_t{1} << 60) - 1;

// A tick is 1/4096 ms.
std::uint64_t ticks_of(microseconds since_epoch) noexcept {
    const auto us = static_cast<std::uint64_t>(std::max<microseconds::rep>(since_epoch.count(), 0));
    const std::uint64_t ms = us / 1000;
    if (ms > max_ticks >> 12)
        return max_ticks;
    return ms << 12 | (us % 1000) * 4096 / 1000;
}

int hex_digit(char c) noexcept {
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

constexpr bool dash_before(std::size_t byte) noexcept {
    return byte == 4 || byte == 6 || byte == 8 || byte == 10;
}

} // namespace

std::string to_string(const Uuid& uuid) {
    constexpr std::string_view digits = "0123456789abcdef";
    std::string text;
    text.reserve(36);
    for (std::size_t i = 0; i < uuid.bytes.size(); ++i) {
        if (dash_before(i))
            text += '-';
        text += digits[uuid.bytes[i] >> 4];
        text += digits[uuid.bytes[i] & 15];
    }
    return text;
}

std::optional<Uuid> parse_uuid(std::string_view text) {
    if (text.size() != 36)
        return std::nullopt;
    Uuid uuid;
    std::size_t at = 0;
    for (std::size_t i = 0; i < uuid.bytes.size(); ++i) {
        if (dash_before(i) && text[at++] != '-')
            return std::nullopt;
        const int high = hex_digit(text[at++]);
        const int low = hex_digit(text[at++]);
        if (high < 0 || low < 0)
            return std::nullopt;
        uuid.bytes[i] = static_cast<std::uint8_t>(high << 4 | low);
    }
    return uuid;
}

microseconds time_of(const Uuid& uuid) {
    std::uint64_t ms = 0;
    for (std::size_t i = 0; i < 6; ++i)
        ms = ms << 8 | uuid.bytes[i];
    const std::uint64_t fraction = (uuid.bytes[6] & 0x0fU) << 8 | uuid.bytes[7];
    // Rounded up, because ticks_of rounds down and a tick is shorter than a microsecond: only
    // one whole microsecond lies in each tick that stands for one.
    const std::uint64_t us = ms * 1000 + (fraction * 1000 + 4095) / 4096;
    return microseconds{static_cast<microseconds::rep>(us)};
}

Uuid UuidV7::next(microseconds now, std::span<const std::uint8_t, 8> random) noexcept {
    const std::uint64_t ticks = std::min(std::max(ticks_of(now), least_), max_ticks);
    least_ = ticks + 1;

    Uuid uuid;
    const std::uint64_t ms = ticks >> 12;
    for (std::size_t i = 0; i < 6; ++i)
        uuid.bytes[i] = static_cast<std::uint8_t>(ms >> (40 - 8 * i));
    uuid.bytes[6] = static_cast<std::uint8_t>(0x70 | (ticks >> 8 & 0x0f)); // version 7
    uuid.bytes[7] = static_cast<std::uint8_t>(ticks);
    std::copy(random.begin(), random.end(), uuid.bytes.begin() + 8);
    uuid.bytes[8] = static_cast<std::uint8_t>((uuid.bytes[8] & 0x3f) | 0x80); // variant
    return uuid;
}

} // namespace jobq::core
