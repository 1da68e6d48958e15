#include "core/uri.hpp"

#include <algorithm>

namespace jobq::core {

namespace {

constexpr bool is_digit(char c) noexcept {
    return c >= '0' && c <= '9';
}

constexpr bool is_hex(char c) noexcept {
    return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

// Unreserved or reserved in RFC 3986, or the beginning of an escape.
constexpr bool is_uri_char(char c) noexcept {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) ||
           (c != '\0' &&
            std::string_view("-._~:/?#[]@!$&'()*+,;=%").find(c) != std::string_view::npos);
}

bool is_escaped(std::string_view text) noexcept {
    for (std::size_t i = 0; i < text.size(); ++i)
        if (text[i] == '%' && (text.size() - i < 3 || !is_hex(text[i + 1]) || !is_hex(text[i + 2])))
            return false;
    return true;
}

} // namespace

std::optional<std::string> check_uri_reference(std::string_view what, std::string_view text) {
    const std::string subject(what);
    if (text.empty())
        return subject + " must not be empty";
    if (text.size() > max_uri_bytes)
        return subject + " must not be longer than " + std::to_string(max_uri_bytes) + " bytes";
    if (!std::all_of(text.begin(), text.end(), is_uri_char))
        return subject + " must have only ASCII letters, digits and the characters "
                         "-._~:/?#[]@!$&'()*+,;=%";
    if (!is_escaped(text))
        return subject + " must have two hexadecimal digits after each %";
    if (std::count(text.begin(), text.end(), '#') > 1)
        return subject + " must not have more than one #";
    return std::nullopt;
}

} // namespace jobq::core
