#include "core/signature.hpp"

#include <algorithm>
#include <array>
#include <stdexcept>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

namespace jobq::core {

namespace {

constexpr std::string_view secret_prefix = "whsec_";

// EVP_EncodeBlock writes a NUL behind the text.
constexpr std::size_t base64_bytes(std::size_t bytes) noexcept {
    return (bytes + 2) / 3 * 4;
}
using Encoded = std::array<unsigned char, base64_bytes(most_key_bytes) + 1>;

const unsigned char* bytes_of(std::string_view text) noexcept {
    return reinterpret_cast<const unsigned char*>(text.data());
}

std::string base64(std::string_view bytes) {
    Encoded text;
    const int length =
        EVP_EncodeBlock(text.data(), bytes_of(bytes), static_cast<int>(bytes.size()));
    std::string result(text.begin(), text.begin() + length);
    OPENSSL_cleanse(text.data(), text.size());
    return result;
}

// Of at most most_key_bytes bytes. EVP_DecodeBlock forgives much; what it made is right if it
// gives the same text again.
std::optional<std::string> from_base64(std::string_view text) {
    Encoded bytes;
    if (text.size() >= bytes.size())
        return std::nullopt;
    int length = EVP_DecodeBlock(bytes.data(), bytes_of(text), static_cast<int>(text.size()));
    if (length < 0)
        return std::nullopt;
    for (std::size_t i = text.size(); i > 0 && text[i - 1] == '=' && length > 0; --i)
        --length; // padding was decoded as zero bytes
    std::string result(bytes.begin(), bytes.begin() + length);
    OPENSSL_cleanse(bytes.data(), bytes.size());
    if (result.size() > most_key_bytes || base64(result) != text)
        return std::nullopt;
    return result;
}

} // namespace

std::string sign(std::string_view key, std::string_view id, std::int64_t timestamp,
                 std::string_view body) {
    const std::string seconds = std::to_string(timestamp);
    std::string message;
    message.reserve(id.size() + seconds.size() + body.size() + 2);
    message.append(id).append(1, '.').append(seconds).append(1, '.').append(body);

    std::array<unsigned char, EVP_MAX_MD_SIZE> code;
    unsigned int length = 0;
    if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), bytes_of(message),
             message.size(), code.data(), &length) == nullptr)
        throw std::runtime_error("could not compute a signature");
    return "v1," + base64({reinterpret_cast<const char*>(code.data()), length});
}

std::optional<std::string> key_of(std::string_view secret) {
    if (!secret.starts_with(secret_prefix))
        return std::nullopt;
    auto key = from_base64(secret.substr(secret_prefix.size()));
    if (key && key->size() < least_key_bytes)
        return std::nullopt;
    return key;
}

std::optional<std::string> check_secret(std::string_view secret) {
    if (!secret.starts_with(secret_prefix))
        return "secret must begin with \"" + std::string(secret_prefix) + "\"";
    if (!key_of(secret))
        return "secret must have the base64 of " + std::to_string(least_key_bytes) + " to " +
               std::to_string(most_key_bytes) + " bytes after \"" + std::string(secret_prefix) +
               "\"";
    return std::nullopt;
}

std::string new_secret() {
    std::array<unsigned char, 32> key;
    if (RAND_priv_bytes(key.data(), static_cast<int>(key.size())) != 1)
        throw std::runtime_error("no random bytes for a secret");
    std::string secret(secret_prefix);
    secret += base64({reinterpret_cast<const char*>(key.data()), key.size()});
    OPENSSL_cleanse(key.data(), key.size());
    return secret;
}

} // namespace jobq::core
