#include "worker/settings_rows.hpp"

#include "core/signature.hpp"

namespace jobq::worker {

namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;

std::string text_or_none(const pg::Row& row, int column) {
    auto text = row.maybe_text(column);
    return text ? std::string(*text) : std::string();
}

// What a trigger refused cannot be here, unless somebody went around it.
core::Statuses statuses_of(Datum array) {
    auto elements = pg::elements(array, TEXTOID);
    std::vector<std::string> items;
    for (std::size_t i = 0; i < elements.size; ++i)
        if (!elements.null(i))
            items.emplace_back(pg::text_of(elements.values[i]));
    auto parsed = core::Statuses::parse(items);
    auto* statuses = std::get_if<core::Statuses>(&parsed);
    return statuses ? *statuses : core::Statuses();
}

http::Version version_of(std::string_view name) {
    using Version = http::Version;
    return name == "1.1" ? Version::http_1_1 : name == "2" ? Version::http_2 : Version::automatic;
}

void read_keys(const pg::Spi& spi, std::map<int32, EndpointSettings>& endpoints) {
    static pg::Statement secrets(R"(
        SELECT s.endpoint_id, s.secret, s.expires_at FROM jobq.secret AS s
        WHERE s.expires_at IS NULL OR s.expires_at > clock_timestamp()
        ORDER BY s.endpoint_id, s.expires_at DESC NULLS FIRST, s.created_at DESC)");
    for (auto row : secrets.run(spi)) {
        auto endpoint = endpoints.find(row.int4(1));
        auto key = core::key_of(row.text(2));
        if (endpoint != endpoints.end() && endpoint->second.is_signed && key)
            endpoint->second.keys.push_back(
                {*key,
                 row.null(3) ? std::nullopt : std::optional(pg::unix_time(row.timestamp(3)))});
    }
}

} // namespace

std::map<int32, EndpointSettings> read_endpoints(const pg::Spi& spi) {
    static pg::Statement select(R"(
        SELECT e.id, e.name, e.url, e.headers, e.max_in_flight, e.timeout, e.connect_timeout, e.keep_response, e.enabled,
               e.method, e.min_in_flight, e.rate, e.burst, e.final_statuses, e.accept_later, e.signed, e.ca_file,
               e.client_cert_file, e.client_key_file, e.proxy, e.http_version, e.gzip, e.cloudevents_source,
               e.breaker_failures, e.breaker_window, e.breaker_first, e.breaker_longest
        FROM jobq.endpoint AS e)");
    std::map<int32, EndpointSettings> endpoints;
    for (auto row : select.run(spi)) {
        EndpointSettings& endpoint = endpoints[row.int4(1)];
        endpoint.name = row.text(2);
        endpoint.url = row.text(3);
        for (const auto& header :
             pg::json_object(row.datum(4)).value_or(std::vector<pg::JsonField>()))
            endpoint.headers.emplace_back(header.key, header.text);
        endpoint.max_in_flight = static_cast<std::size_t>(row.int4(5));
        endpoint.timeout = duration_cast<milliseconds>(pg::length_of(row.datum(6)));
        endpoint.connect_timeout = duration_cast<milliseconds>(pg::length_of(row.datum(7)));
        endpoint.keep_response = static_cast<std::size_t>(row.int4(8));
        endpoint.enabled = row.boolean(9);
        endpoint.method = row.text(10);
        endpoint.min_in_flight = static_cast<std::size_t>(row.int4(11));
        if (!row.null(12))
            endpoint.rate = row.float8(12);
        endpoint.burst = row.int4(13);
        endpoint.final_statuses = statuses_of(row.datum(14));
        endpoint.accept_later = row.boolean(15);
        endpoint.is_signed = row.boolean(16);
        endpoint.ca_file = text_or_none(row, 17);
        endpoint.client_cert_file = text_or_none(row, 18);
        endpoint.client_key_file = text_or_none(row, 19);
        endpoint.proxy = text_or_none(row, 20);
        endpoint.version = version_of(row.text(21));
        endpoint.gzip = row.boolean(22);
        endpoint.cloudevents_source = text_or_none(row, 23);
        endpoint.breaker = {row.int4(24), pg::length_of(row.datum(25)),
                            pg::length_of(row.datum(26)), pg::length_of(row.datum(27))};
    }
    read_keys(spi, endpoints);
    return endpoints;
}

std::map<int32, QueueSettings> read_queues(const pg::Spi& spi, bool& home) {
    static pg::Statement select(R"(
        SELECT q.id, q.name, q.endpoint_id, q.paused, q.lease, q.max_running, q.routes <> '{}',
               q.home = jobq.this_database()
        FROM jobq.queue AS q)");
    std::map<int32, QueueSettings> queues;
    home = true;
    for (auto row : select.run(spi)) {
        home &= row.boolean(8);
        QueueSettings& queue = queues[row.int4(1)];
        queue.name = row.text(2);
        queue.endpoint_id = row.null(3) ? std::nullopt : std::optional(row.int4(3));
        queue.paused = row.boolean(4);
        queue.lease = pg::length_of(row.datum(5));
        queue.max_running = row.null(6) ? std::nullopt : std::optional(row.int4(6));
        queue.routed = row.boolean(7);
    }
    return queues;
}

} // namespace jobq::worker
