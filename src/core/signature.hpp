#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace jobq::core {

// Signatures of Standard Webhooks 1.0.0. A secret is text, "whsec_" and a key in base64; the key
// is the bytes themselves. No message here contains either.

constexpr std::size_t least_key_bytes = 24, most_key_bytes = 64;

// "v1," and the base64 of the HMAC-SHA256 of "id.timestamp.body". A header with several of them,
// while secrets are rotated, has them with spaces between. The id must have no dot, or two
// messages could be one to the receiver. timestamp: unix seconds.
// Throws std::runtime_error where libcrypto has no SHA-256 or no memory.
std::string sign(std::string_view key, std::string_view id, std::int64_t timestamp,
                 std::string_view body);

// The key in a secret, or nothing if check_secret would refuse it.
std::optional<std::string> key_of(std::string_view secret);

// Why this is no secret, or nothing if it is one: "whsec_" and the base64 of 24 to 64 bytes,
// padded, without spaces and with no bits left over (RFC 4648, 3.5), as any library reads it.
std::optional<std::string> check_secret(std::string_view secret);

// A secret of 32 random bytes. Throws std::runtime_error where there is no randomness.
std::string new_secret();

} // namespace jobq::core
