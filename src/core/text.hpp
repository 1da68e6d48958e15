#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace jobq::core {

// The control characters of ASCII: 0 to 31 and 127.
constexpr bool is_control(char c) noexcept {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
}
bool has_control(std::string_view text) noexcept;

// The first max_bytes bytes of the text, or up to three fewer: a UTF-8 character that does not
// fit is left out whole. Text that is not UTF-8 is cut anywhere.
std::string clip(std::string_view text, std::size_t max_bytes);
// The same as a part of the text.
std::string_view clipped(std::string_view text, std::size_t max_bytes) noexcept;

// Strict, as PostgreSQL is: no overlong forms, no surrogates, nothing above U+10FFFF. NUL is
// valid UTF-8, though PostgreSQL cannot keep it in a text.
bool valid_utf8(std::string_view text) noexcept;

// What is not printable ASCII, and space, quote and percent sign, as %XX: CloudEvents 1.0, HTTP
// binding, 3.1.3.2.
std::string percent_encoded(std::string_view text);

// The text with every NUL and every broken sequence replaced by U+FFFD, so that whatever a
// receiver sent can be kept as text. At most three times as long.
std::string printable(std::string_view text);

} // namespace jobq::core
