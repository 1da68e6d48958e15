#pragma once
#include <string>
#include <string_view>
namespace jobq::http {
inline std::string gzip(std::string_view s) {
    return std::string(s);
}
} // namespace jobq::http
