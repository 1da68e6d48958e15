#pragma once

#include <string>
#include <string_view>

namespace jobq::http {

// The bytes in gzip's format (RFC 1952), for a body with "content-encoding: gzip". The same bytes
// always give the same result. Blocks for as long as it takes: some 15 ms a megabyte. Throws
// std::bad_alloc.
std::string gzip(std::string_view bytes);

} // namespace jobq::http
