// What users may write, checked in one place for push and for the settings.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "pg/values.hpp"

namespace jobq::queue {

constexpr int max_max_attempts = 10000;

// A short text that goes into a header: at most 255 bytes, no control characters. Error 22023.
void check_label(std::string_view what, const std::optional<std::string_view>& text);

// Each attempt at a job looks through its headers and its endpoint's.
constexpr std::size_t max_headers = 64;
constexpr std::size_t max_headers_bytes = 16384; // of names and values

// A jsonb object of header names and string values that a user may set. Error 22023.
void check_headers(Datum headers);

std::optional<int> parse_int(std::string_view text);

} // namespace jobq::queue
