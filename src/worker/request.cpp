#include "worker/request.hpp"

#include <algorithm>
#include <ctime>

#include <fmt/format.h>

#include "core/header.hpp"
#include "core/signature.hpp"
#include "core/text.hpp"
#include "http/gzip.hpp"
#include "pg/values.hpp"

namespace jobq::worker {

namespace {

using Column = queue::JobColumn;
using std::chrono::microseconds;
using std::chrono::seconds;

// Shorter bodies become longer by it, or not worth the work.
constexpr std::size_t least_to_compress = 1024;

std::string header(std::string_view name, std::string_view value) {
    std::string line;
    line.reserve(name.size() + value.size() + 2);
    line.append(name).append(": ").append(value);
    return line;
}

// RFC 3339, UTC.
std::string rfc3339(microseconds unix) {
    auto whole = std::chrono::floor<seconds>(unix);
    std::time_t time = whole.count();
    std::tm parts{};
    gmtime_r(&time, &parts);
    return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z", parts.tm_year + 1900,
                       parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec,
                       (unix - whole).count());
}

http::Request request_to(const EndpointSettings& endpoint) {
    http::Request request;
    request.url = endpoint.url;
    request.method = endpoint.method;
    request.connect_timeout = endpoint.connect_timeout;
    request.timeout = endpoint.timeout;
    request.keep_response = endpoint.keep_response;
    request.ca_file = endpoint.ca_file;
    request.client_cert_file = endpoint.client_cert_file;
    request.client_key_file = endpoint.client_key_file;
    request.proxy = endpoint.proxy;
    request.version = endpoint.version;
    return request;
}

void sign(http::Request& request, const EndpointSettings& endpoint, std::string_view id,
          microseconds at) {
    auto timestamp = std::chrono::floor<seconds>(at).count();
    request.headers.push_back(header("webhook-id", id));
    if (!endpoint.is_signed)
        return;
    std::string signatures;
    for (const auto& key : endpoint.keys) {
        if (key.until && *key.until <= at)
            continue;
        if (!signatures.empty())
            signatures += ' ';
        signatures += core::sign(key.bytes, id, timestamp, request.body);
    }
    request.headers.push_back(fmt::format("webhook-timestamp: {}", timestamp));
    if (!signatures.empty())
        request.headers.push_back(header("webhook-signature", signatures));
}

// Whether these pairs of names and values have one of the name.
bool has(const auto& headers, std::string_view name) {
    return std::any_of(headers.begin(), headers.end(),
                       [&](const auto& header) { return core::same_name(header.first, name); });
}

// Binary mode of the HTTP binding of CloudEvents 1.0: what content-type says is the data's. Those
// that are among `given` are sent as they are there.
void add_cloudevents(http::Request& request, const EndpointSettings& endpoint, std::string_view id,
                     std::string_view type, microseconds created, const auto& given) {
    if (endpoint.cloudevents_source.empty())
        return;
    auto add = [&](std::string_view name, std::string_view value) {
        if (!has(given, name))
            request.headers.push_back(header(name, value));
    };
    add("ce-specversion", "1.0");
    add("ce-id", id);
    add("ce-source", endpoint.cloudevents_source);
    add("ce-type", core::percent_encoded(type));
    add("ce-time", rfc3339(created));
}

void compress(http::Request& request, const EndpointSettings& endpoint) {
    if (!endpoint.gzip || request.body.size() < least_to_compress)
        return;
    std::string shorter = http::gzip(request.body);
    if (shorter.size() >= request.body.size())
        return;
    request.body = std::move(shorter);
    request.headers.push_back("content-encoding: gzip");
}

} // namespace

http::Request make_request(const queue::ClaimedJob& job, const QueueSettings& queue,
                           const EndpointSettings& endpoint, microseconds at) {
    http::Request request = request_to(endpoint);
    if (auto payload = job.row.maybe(Column::payload))
        request.body = pg::to_utf8(pg::json_text(*payload));
    else if (auto body = job.row.maybe(Column::body))
        request.body = pg::bytea_of(*body);

    std::vector<std::pair<std::string_view, std::string_view>> headers;
    auto set = [&](std::string_view name, std::string_view value) {
        for (auto& header : headers)
            if (core::same_name(header.first, name)) {
                header.second = value;
                return;
            }
        headers.emplace_back(name, value);
    };
    set("content-type", job.row.maybe_text(Column::content_type).value_or("application/json"));
    for (const auto& [name, value] : endpoint.headers)
        set(name, value);
    if (auto own = job.row.maybe(Column::headers))
        for (const auto& field : pg::json_object(*own).value_or(std::vector<pg::JsonField>()))
            set(field.key, field.text);

    std::string id = core::to_string(job.id);
    auto type = job.row.maybe_text(Column::type);
    std::string_view queue_name = pg::to_utf8(queue.name);
    request.headers.reserve(headers.size() + 13);
    sign(request, endpoint, id, at);
    request.headers.push_back(header("jobq-queue", queue_name));
    if (type)
        request.headers.push_back(header("jobq-type", pg::to_utf8(*type)));
    request.headers.push_back(fmt::format("jobq-attempt: {}", job.attempt));
    add_cloudevents(request, endpoint, id, type ? pg::to_utf8(*type) : queue_name,
                    core::time_of(job.id), headers);
    for (const auto& [name, value] : headers)
        request.headers.push_back(header(name, pg::to_utf8(value)));
    if (!has(headers, "content-encoding"))
        compress(request, endpoint);
    return request;
}

http::Request make_test_request(const EndpointSettings& endpoint, std::string_view id,
                                microseconds at) {
    http::Request request = request_to(endpoint);
    request.body = R"({"test": true})";
    sign(request, endpoint, id, at);
    request.headers.push_back("jobq-test: true");
    add_cloudevents(request, endpoint, id, "jobq.test", at, endpoint.headers);
    request.headers.push_back("content-type: application/json");
    for (const auto& [name, value] : endpoint.headers)
        if (!core::same_name(name, "content-type"))
            request.headers.push_back(header(name, pg::to_utf8(value)));
    return request;
}

} // namespace jobq::worker
