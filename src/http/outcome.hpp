#pragma once

#include <curl/curl.h>

#include "http/client.hpp"

namespace jobq::http {

// What the end of this handle's transfer was.
Outcome outcome_of(CURLcode code, CURL* easy) noexcept;

} // namespace jobq::http
