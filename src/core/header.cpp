#include "core/header.hpp"

#include <algorithm>
#include <array>

#include "core/text.hpp"

namespace jobq::core {

namespace {

// By hand: the <cctype> functions follow the locale of the process.
constexpr char lower(char c) noexcept {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

constexpr bool is_token_char(char c) noexcept {
    const char l = lower(c);
    return (l >= 'a' && l <= 'z') || (c >= '0' && c <= '9') ||
           (c != '\0' && std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos);
}

constexpr std::array<std::string_view, 14> reserved = {
    "webhook-id",
    "webhook-timestamp",
    "webhook-signature",
    "connection",
    "host",
    "content-length",
    "transfer-encoding",
    "te",
    "trailer",
    "upgrade",
    "expect",
    "keep-alive",
    "proxy-connection",
    "http2-settings",
};
constexpr std::string_view reserved_prefix = "jobq-";

} // namespace

bool same_name(std::string_view a, std::string_view b) noexcept {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](char x, char y) { return lower(x) == lower(y); });
}

bool is_header_name(std::string_view name) noexcept {
    return !name.empty() && std::all_of(name.begin(), name.end(), is_token_char);
}

bool is_header_value(std::string_view value) noexcept {
    return std::all_of(value.begin(), value.end(),
                       [](char c) { return c == '\t' || !is_control(c); });
}

bool is_reserved_header(std::string_view name) noexcept {
    return same_name(name.substr(0, reserved_prefix.size()), reserved_prefix) ||
           std::any_of(reserved.begin(), reserved.end(),
                       [&](std::string_view r) { return same_name(name, r); });
}

std::optional<std::string> check_header(std::string_view name, std::string_view value) {
    if (name.empty())
        return "header name must not be empty";
    if (name.size() > max_header_name_bytes)
        return "header name must not be longer than " + std::to_string(max_header_name_bytes) +
               " bytes";
    // The name is quoted only where it is known to be printable.
    if (!is_header_name(name))
        return "header name must have only letters, digits and the characters !#$%&'*+-.^_`|~";
    const std::string subject = "header \"" + std::string(name) + "\"";
    if (is_reserved_header(name))
        return subject + " is set by jobq itself";
    if (value.size() > max_header_value_bytes)
        return "value of " + subject + " must not be longer than " +
               std::to_string(max_header_value_bytes) + " bytes";
    if (!is_header_value(value))
        return "value of " + subject + " must not contain line breaks or control characters";
    return std::nullopt;
}

} // namespace jobq::core
