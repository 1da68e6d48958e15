#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace jobq::core {

constexpr std::size_t max_header_name_bytes = 256;
constexpr std::size_t max_header_value_bytes = 8192;

// Whether two header names, or two media types, are one: the case of ASCII letters is ignored.
bool same_name(std::string_view a, std::string_view b) noexcept;

// RFC 9110: a token, which is letters, digits and !#$%&'*+-.^_`|~ and not empty.
bool is_header_name(std::string_view name) noexcept;

// Any bytes but the control characters; TAB is allowed. Nothing in it can end the line.
bool is_header_value(std::string_view value) noexcept;

// Names that a user may not set: jobq sets them itself (webhook-id, jobq-...), or they frame
// the message and belong to the HTTP client (content-length, connection...). Case is ignored.
bool is_reserved_header(std::string_view name) noexcept;

// Why this header may not be sent for a user, or nothing if it may be sent.
std::optional<std::string> check_header(std::string_view name, std::string_view value);

} // namespace jobq::core
