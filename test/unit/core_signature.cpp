#include <set>

#include <doctest/doctest.h>

#include "core/signature.hpp"

using namespace jobq::core;
using namespace std::string_literals;
using namespace std::string_view_literals;

namespace {

// The example that the libraries of Standard Webhooks test themselves with.
constexpr auto secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"sv;
constexpr auto id = "msg_p5jXN8AQM9LWM0D4loKWxJek"sv;

std::string wrapped(std::string_view base64) {
    return "whsec_" + std::string(base64);
}

// The base64 of so many zero bytes.
std::string zeros(std::size_t bytes) {
    std::string text((bytes + 2) / 3 * 4, 'A');
    for (std::size_t i = 0; i < (3 - bytes % 3) % 3; ++i)
        text[text.size() - 1 - i] = '=';
    return text;
}

} // namespace

TEST_CASE("signature: the published example is signed as its libraries do") {
    CHECK(sign(key_of(secret).value(), id, 1614265330, R"({"test": 2432232314})") ==
          "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
}

TEST_CASE("signature: it is HMAC-SHA256 for keys and bodies of any bytes") {
    // openssl dgst -sha256 -mac HMAC -macopt hexkey:000... -binary | base64
    CHECK(sign(std::string(64, '\0'), "a", -1, "\0\xff"sv) ==
          "v1,HsPpipROOTI+kbMq2NdwkGYtadMB+mCDCorzFKKocCk=");
}

TEST_CASE("signature: every part of the message counts") {
    const std::string key(32, 'k');
    const std::set<std::string> signatures = {
        sign(key, "id", 1, "body"),   sign(std::string(32, 'l'), "id", 1, "body"),
        sign(key, "ie", 1, "body"),   sign(key, "id", 2, "body"),
        sign(key, "id", 1, "bodz"),   sign(key, "id", 1, ""),
        sign(key, "id", 1, "body\n"),
    };
    CHECK(signatures.size() == 7);
}

TEST_CASE("signature: a secret gives the bytes of its key") {
    const auto key = key_of("whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX+/8=");
    REQUIRE(key);
    CHECK(*key == "\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10\x11\x12\x13"
                  "\x14\x15\x16\x17\xfb\xff"sv);
}

TEST_CASE("signature: keys of 24 to 64 bytes are accepted") {
    for (std::size_t bytes = 0; bytes <= 100; ++bytes) {
        const std::string text = wrapped(zeros(bytes));
        CAPTURE(bytes);
        CHECK(check_secret(text).has_value() == (bytes < 24 || bytes > 64));
        const auto key = key_of(text);
        REQUIRE(key.has_value() == (bytes >= 24 && bytes <= 64));
        if (key)
            CHECK(*key == std::string(bytes, '\0'));
    }
}

TEST_CASE("signature: a secret that is long beyond reason is refused") {
    CHECK_FALSE(key_of(wrapped(std::string(1'000'000, 'A'))));
}

TEST_CASE("signature: what is not exactly whsec_ and base64 is refused") {
    const std::string good = zeros(32);
    REQUIRE(key_of(wrapped(good)));
    for (const std::string& bad : {
             std::string{},
             good,
             "WHSEC_" + good,
             "whsec-" + good,
             " whsec_" + good,
             wrapped(""),
             wrapped(" " + good),
             wrapped(good + " "),
             wrapped(good + "\n"),
             wrapped(good + "AAAA\n"),
             wrapped(good.substr(0, 43)),        // no padding
             wrapped(good + "="),                // too much of it
             wrapped(good + "===="),             //
             wrapped("=" + good.substr(1)),      // in the wrong place
             wrapped(good.substr(0, 42) + "B="), // left-over bits
             wrapped(good.substr(0, 40) + "A-_="),
             wrapped(good.substr(0, 40) + "A\0A="s),
             wrapped(good.substr(0, 20) + "=" + good.substr(21)),
             wrapped(good.substr(0, 20) + "\n" + good.substr(21)),
             wrapped(good.substr(0, 20) + "\xe4" + good.substr(21)),
         }) {
        CAPTURE(bad);
        CHECK_FALSE(key_of(bad));
        CHECK(check_secret(bad));
    }
}

TEST_CASE("signature: the reason of a refusal does not tell the secret") {
    CHECK(check_secret("hunter2") == "secret must begin with \"whsec_\"");
    CHECK(check_secret("whsec_hunter2") ==
          "secret must have the base64 of 24 to 64 bytes after \"whsec_\"");
}

TEST_CASE("signature: new secrets are valid, have 32 bytes and are never the same") {
    std::set<std::string> seen;
    for (int i = 0; i < 1000; ++i) {
        const std::string made = new_secret();
        REQUIRE(check_secret(made) == std::nullopt);
        REQUIRE(key_of(made)->size() == 32);
        REQUIRE(seen.insert(made).second);
    }
}
