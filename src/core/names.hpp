#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace jobq::core {

// A queue's channel is its name behind "jobq_", and a channel has at most 63 bytes; the rest
// is left for names that jobq may need to derive later.
constexpr std::size_t max_name_bytes = 48;

// Why name cannot name a queue or an endpoint (kind says which: "queue"), or nothing if it
// can: 1 to 48 bytes without control characters.
std::optional<std::string> check_name(std::string_view kind, std::string_view name);

// The channel on which a queue's arrivals are announced.
std::string channel_of(std::string_view queue);

} // namespace jobq::core
