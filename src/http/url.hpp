#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace jobq::http {

constexpr std::size_t max_url_bytes = 2048;

// Why a request cannot be sent to this URL, or nothing if it can: http or https, a host, no
// user name or password, no spaces or control characters, at most max_url_bytes. Looks at the
// text only: resolves nothing, and works before and without a Library object.
std::optional<std::string> check_url(std::string_view url);

// The same of a proxy, "http://name:port" or https: what stands after the port is not sent, so
// there must be none.
std::optional<std::string> check_proxy(std::string_view url);

// The host's name or address, without brackets and port. Of a URL that check_url takes.
std::string_view host_name(std::string_view url) noexcept;

bool is_https(std::string_view url) noexcept;

} // namespace jobq::http
