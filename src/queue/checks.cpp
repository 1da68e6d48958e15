#include <charconv>

#include <fmt/format.h>

#include "core/header.hpp"
#include "core/names.hpp"
#include "core/signature.hpp"
#include "core/statuses.hpp"
#include "core/text.hpp"
#include "core/uri.hpp"
#include "http/url.hpp"
#include "pg/call.hpp"
#include "pg/locks.hpp"
#include "queue/checks.hpp"

extern "C" {
#include "access/xlog.h"
}

namespace jobq::queue {

namespace {
pg::Error invalid(std::string message) {
    return pg::Error(ERRCODE_INVALID_PARAMETER_VALUE, std::move(message));
}
} // namespace

void check_label(std::string_view what, const std::optional<std::string_view>& text) {
    constexpr std::size_t max_bytes = 255;
    if (!text)
        return;
    if (text->size() > max_bytes)
        throw invalid(fmt::format("{} must not be longer than {} bytes", what, max_bytes));
    if (!core::is_header_value(*text))
        throw invalid(fmt::format("{} must not contain control characters", what));
}

void check_headers(Datum headers) {
    auto fields = pg::json_object(headers);
    if (!fields)
        throw invalid("headers must be a JSON object of strings");
    if (fields->size() > max_headers)
        throw invalid(fmt::format("there must not be more than {} headers", max_headers));
    std::size_t bytes = 0;
    for (const auto& field : *fields) {
        if (field.kind != pg::JsonField::Kind::string)
            throw invalid(fmt::format("the value of header \"{}\" must be a string", field.key));
        if (auto reason = core::check_header(field.key, field.text))
            throw invalid(*reason);
        bytes += field.key.size() + field.text.size();
    }
    if (bytes > max_headers_bytes)
        throw invalid(
            fmt::format("headers must not be longer than {} bytes in all", max_headers_bytes));
}

std::optional<int> parse_int(std::string_view text) {
    int value;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size())
        return std::nullopt;
    return value;
}

} // namespace jobq::queue

using jobq::pg::Error;
using jobq::queue::invalid;

JOBQ_FUNCTION(jobq_check_name) {
    if (auto reason = jobq::core::check_name(call.text(0), call.text(1)))
        throw Error(ERRCODE_INVALID_PARAMETER_VALUE, *reason);
    return 0;
}

JOBQ_FUNCTION(jobq_check_url) {
    if (auto reason = jobq::http::check_url(call.text(0)))
        throw Error(ERRCODE_INVALID_PARAMETER_VALUE, *reason);
    return 0;
}

JOBQ_FUNCTION(jobq_check_headers) {
    jobq::queue::check_headers(call.datum(0));
    return 0;
}

// Of a file on the server, which is not looked at: a standby may have others.
JOBQ_FUNCTION(jobq_check_path) {
    constexpr std::size_t max_bytes = MAXPGPATH - 1;
    const auto what = call.text(0), path = call.text(1);
    if (!path.starts_with('/'))
        throw invalid(fmt::format("{} must be an absolute path", what));
    if (path.size() > max_bytes)
        throw invalid(fmt::format("{} must not be longer than {} bytes", what, max_bytes));
    if (jobq::core::has_control(path))
        throw invalid(fmt::format("{} must not contain control characters", what));
    return 0;
}

JOBQ_FUNCTION(jobq_check_proxy) {
    constexpr std::string_view scheme = "http://";
    const auto proxy = call.text(0);
    if (proxy.size() < scheme.size() ||
        pg_strncasecmp(proxy.data(), scheme.data(), scheme.size()) != 0)
        throw invalid("proxy URL must begin with http://");
    if (auto reason = jobq::http::check_proxy(proxy))
        throw invalid(*reason);
    return 0;
}

JOBQ_FUNCTION(jobq_check_source) {
    if (auto reason = jobq::core::check_uri_reference("cloudevents_source", call.text(0)))
        throw invalid(*reason);
    return 0;
}

JOBQ_FUNCTION(jobq_check_statuses) {
    const auto given = jobq::pg::elements(call.datum(0), TEXTOID);
    std::vector<std::string> items;
    for (std::size_t i = 0; i < given.size; ++i) {
        if (given.null(i))
            throw Error(ERRCODE_NULL_VALUE_NOT_ALLOWED, "final_statuses must not contain nulls");
        items.emplace_back(jobq::pg::text_of(given.values[i]));
    }
    const auto parsed = jobq::core::Statuses::parse(items);
    if (const auto* reason = std::get_if<std::string>(&parsed))
        throw invalid(*reason);
    return 0;
}

JOBQ_FUNCTION(jobq_check_secret) {
    if (auto reason = jobq::core::check_secret(call.text(0)))
        throw invalid(*reason);
    return 0;
}

JOBQ_FUNCTION(jobq_new_secret) {
    const auto secret = jobq::core::new_secret();
    return jobq::pg::param(std::string_view(secret)).value;
}

JOBQ_FUNCTION(jobq_lock_name) {
    using namespace jobq::pg;
    lock_name(call.text(0) == "queue" ? LockKind::queue_name : LockKind::endpoint_name,
              call.text(1), call.boolean(2) ? LockMode::exclusive : LockMode::shared);
    return 0;
}

JOBQ_FUNCTION(jobq_created_at) {
    return TimestampTzGetDatum(jobq::pg::timestamp_of(jobq::core::time_of(call.uuid(0))));
}

JOBQ_FUNCTION(jobq_this_database) {
    auto name = fmt::format("{}/{}", GetSystemIdentifier(), MyDatabaseId);
    return jobq::pg::param(std::string_view(name)).value;
}
