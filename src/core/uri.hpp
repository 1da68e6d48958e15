#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace jobq::core {

constexpr std::size_t max_uri_bytes = 2048;

// Why this is no URI reference (RFC 3986, section 4.1), or nothing if it is one: 1 to max_uri_bytes
// of the characters that one may have, each % followed by two hexadecimal digits. Its parts are not
// looked at, nor is anything resolved. What passes is ASCII without blanks, fit for a header.
std::optional<std::string> check_uri_reference(std::string_view what, std::string_view text);

} // namespace jobq::core
