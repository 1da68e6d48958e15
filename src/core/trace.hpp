#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace jobq::core {

// The value of a traceparent header, W3C Trace Context 3.2: version, trace id, parent id and flags
// in lower-case hexadecimal with dashes between, neither id all zeros. Version ff is none; those
// after 00 may have more behind another dash, here visible characters up to 512 in all.
constexpr bool is_traceparent(std::string_view text) noexcept {
    constexpr std::size_t length = 55, longest = 512;
    if (text.size() < length)
        return false;
    for (std::size_t i = 0; i < length; ++i) {
        const char c = text[i];
        const bool dash = i == 2 || i == 35 || i == 52;
        if (dash ? c != '-' : !((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f')))
            return false;
    }
    const std::string_view version = text.substr(0, 2), rest = text.substr(length);
    const auto all_zeros = [](std::string_view id) {
        return id.find_first_not_of('0') == std::string_view::npos;
    };
    if (version == "ff" || all_zeros(text.substr(3, 32)) || all_zeros(text.substr(36, 16)))
        return false;
    return rest.empty() ||
           (version != "00" && rest.front() == '-' && text.size() <= longest &&
            std::all_of(rest.begin(), rest.end(), [](char c) { return c > ' ' && c <= '~'; }));
}

} // namespace jobq::core
