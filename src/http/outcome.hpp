#pragma once

#include <curl/curl.h>

#include "http/client.hpp"

namespace jobq::http {

// What the end of this handle's transfer was; connected: as far as the server, not to a proxy only.
Outcome outcome_of(CURLcode code, CURL* easy, bool connected) noexcept;

} // namespace jobq::http
