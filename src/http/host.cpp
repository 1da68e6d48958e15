#include "http/host.hpp"

namespace jobq::http {

std::string_view host_part(std::string_view url) noexcept {
    const std::size_t scheme = url.find("://");
    return url.substr(0, url.find_first_of("/?#", scheme == url.npos ? 0 : scheme + 3));
}

} // namespace jobq::http
