#include "core/text.hpp"

#include <algorithm>

namespace jobq::core {

namespace {

bool is_continuation(char c) noexcept {
    return (static_cast<unsigned char>(c) & 0xc0) == 0x80;
}

// What stands at the start of a text that is not empty.
struct Sequence {
    std::size_t bytes; // >= 1; of a broken one, those that could have begun a character
    bool valid;
};

// The second byte's range is where overlong forms, surrogates and too large numbers are caught.
Sequence first_sequence(std::string_view text) noexcept {
    const auto at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned char lead = at(0);
    if (lead < 0x80)
        return {1, true};

    const std::size_t length = lead >= 0xc2 && lead <= 0xdf   ? 2
                               : lead >= 0xe0 && lead <= 0xef ? 3
                               : lead >= 0xf0 && lead <= 0xf4 ? 4
                                                              : 0;
    if (length == 0)
        return {1, false};
    const unsigned char low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    const unsigned char high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    if (text.size() < 2 || at(1) < low || at(1) > high)
        return {1, false};
    for (std::size_t i = 2; i < length; ++i)
        if (i >= text.size() || !is_continuation(text[i]))
            return {i, false};
    return {length, true};
}

} // namespace

bool has_control(std::string_view text) noexcept {
    return std::any_of(text.begin(), text.end(), is_control);
}

std::string clip(std::string_view text, std::size_t max_bytes) {
    return std::string(clipped(text, max_bytes));
}

std::string_view clipped(std::string_view text, std::size_t max_bytes) noexcept {
    if (text.size() <= max_bytes)
        return text;
    std::size_t cut = max_bytes;
    while (cut > 0 && max_bytes - cut < 3 && is_continuation(text[cut]))
        --cut;
    // Only a whole character that crosses the limit is a reason to stop short of it.
    const Sequence crossing = first_sequence(text.substr(cut));
    if (!crossing.valid || cut + crossing.bytes <= max_bytes)
        cut = max_bytes;
    return {text.data(), cut};
}

bool valid_utf8(std::string_view text) noexcept {
    while (!text.empty()) {
        const Sequence sequence = first_sequence(text);
        if (!sequence.valid)
            return false;
        text.remove_prefix(sequence.bytes);
    }
    return true;
}

std::string percent_encoded(std::string_view text) {
    constexpr std::string_view digits = "0123456789ABCDEF";
    std::string encoded;
    encoded.reserve(text.size());
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if (c > ' ' && c <= '~' && c != '"' && c != '%')
            encoded += c;
        else
            encoded.append({'%', digits[byte >> 4], digits[byte & 15]});
    }
    return encoded;
}

std::string printable(std::string_view text) {
    std::string result;
    result.reserve(text.size());
    while (!text.empty()) {
        const Sequence sequence = first_sequence(text);
        if (sequence.valid && text.front() != '\0')
            result += text.substr(0, sequence.bytes);
        else
            result += "\xef\xbf\xbd";
        text.remove_prefix(sequence.bytes);
    }
    return result;
}

} // namespace jobq::core
