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

} // namespace jobq::http
