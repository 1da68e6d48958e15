#include "http/url.hpp"

#include <algorithm>
#include <memory>
#include <new>

#include <curl/curl.h>
#include <strings.h>

#include "core/text.hpp"

namespace jobq::http {

namespace {

struct UrlDeleter {
    void operator()(CURLU* url) const noexcept { curl_url_cleanup(url); }
};
using UrlHandle = std::unique_ptr<CURLU, UrlDeleter>;

// The part, or an empty string where the URL does not have it.
std::string part(CURLU* url, CURLUPart which) {
    char* text = nullptr;
    const CURLUcode code = curl_url_get(url, which, &text, 0);
    if (code == CURLUE_OUT_OF_MEMORY)
        throw std::bad_alloc();
    const std::unique_ptr<char, decltype(&curl_free)> owner(text, curl_free);
    return text ? text : "";
}

} // namespace

std::optional<std::string> check_url(std::string_view text) {
    if (text.empty())
        return "URL must not be empty";
    if (text.size() > max_url_bytes)
        return "URL must not be longer than " + std::to_string(max_url_bytes) + " bytes";
    if (core::has_control(text) || text.find(' ') != std::string_view::npos)
        return "URL must not contain spaces or control characters";

    const UrlHandle url(curl_url());
    if (!url)
        throw std::bad_alloc();
    constexpr const char* bad_scheme = "URL must begin with http:// or https://";
    switch (
        curl_url_set(url.get(), CURLUPART_URL, std::string(text).c_str(), CURLU_DISALLOW_USER)) {
    case CURLUE_OK:
        break;
    case CURLUE_OUT_OF_MEMORY:
        throw std::bad_alloc();
    case CURLUE_BAD_SCHEME:
    case CURLUE_UNSUPPORTED_SCHEME:
        return bad_scheme;
    case CURLUE_USER_NOT_ALLOWED:
        return "URL must not contain a user name or password";
    case CURLUE_BAD_PORT_NUMBER:
        return "URL must have a port between 1 and 65535";
    case CURLUE_NO_HOST:
        return "URL must have a host";
    default:
        return "URL is malformed";
    }
    const std::string scheme = part(url.get(), CURLUPART_SCHEME);
    if (scheme != "http" && scheme != "https")
        return bad_scheme;
    // libcurl reads http:/x and http:///x as http://x: a typing mistake, not a host named x.
    const std::string_view rest = text.substr(scheme.size());
    if (!rest.starts_with("://") || rest.starts_with(":///"))
        return "URL must have a host";
    if (part(url.get(), CURLUPART_PORT) == "0")
        return "URL must have a port between 1 and 65535";
    return std::nullopt;
}

std::optional<std::string> check_proxy(std::string_view text) {
    if (auto wrong = check_url(text))
        return "proxy " + *wrong;
    const std::size_t end = text.find_first_of("/?#", text.find("://") + 3);
    if (end != std::string_view::npos && text.substr(end) != "/")
        return "proxy URL must end after its port";
    return std::nullopt;
}

std::string_view host_name(std::string_view url) noexcept {
    const std::size_t scheme = url.find("://");
    if (scheme != url.npos)
        url.remove_prefix(scheme + 3);
    url = url.substr(0, url.find_first_of("/?#"));
    if (url.starts_with('['))
        return url.substr(1, url.find(']') - 1);
    return url.substr(0, url.rfind(':'));
}

bool is_https(std::string_view url) noexcept {
    return url.size() >= 6 && ::strncasecmp(url.data(), "https:", 6) == 0;
}

} // namespace jobq::http
