#include "http/gate.hpp"

#include <algorithm>
#include <array>
#include <new>
#include <utility>

#include <arpa/inet.h>
#include <strings.h>

#include "http/client.hpp"
#include "http/lane.hpp"
#include "http/transfer.hpp"
#include "http/url.hpp"

namespace jobq::http {

namespace {

// Hosts whose names could not be looked up, so that they stay behind the others also when nothing
// is sent to them for a while.
constexpr std::size_t most_remembered = 10'000;

// As many requests a first connection gets before it is known that it takes more.
constexpr std::size_t first_streams = 8;

bool same(std::string_view a, std::string_view b) noexcept {
    return a.size() == b.size() && ::strncasecmp(a.data(), b.data(), a.size()) == 0;
}

// The URL up to its path.
std::string_view host_part(std::string_view url) noexcept {
    const std::size_t scheme = url.find("://");
    return url.substr(0, url.find_first_of("/?#", scheme == url.npos ? 0 : scheme + 3));
}

// What libcurl knows without asking the system.
bool needs_no_lookup(std::string_view name) {
    if (same(name, "localhost") ||
        (name.size() > 10 && same(name.substr(name.size() - 10), ".localhost")))
        return true;
    const std::string text(name);
    std::array<unsigned char, 16> bytes;
    return ::inet_pton(AF_INET, text.c_str(), bytes.data()) == 1 ||
           ::inet_pton(AF_INET6, text.c_str(), bytes.data()) == 1;
}

bool multiplexes(const Request& request) noexcept {
    return request.version == Version::http_2 ||
           (request.version == Version::automatic && is_https(request.url));
}

} // namespace

bool Host::admits() const noexcept {
    if (waiting.empty())
        return false;
    if (needs_lookup)
        return reached && begun < width;
    if (!reached)
        return connecting < (failed ? most_to_unreached : 1);
    switch (speaks) {
    case Speaks::serial:
        return true;
    case Speaks::unknown:
        return connecting == 0;
    case Speaks::multiplexed:
        break;
    }
    // New connections: enough for all that wait, but at most twice as many as there are.
    const std::size_t connected = begun - connecting;
    const std::size_t takes = connections.size() * streams;
    const std::size_t free = takes > connected ? takes - connected : 0;
    const std::size_t wanted = (waiting.size() + streams - 1) / streams;
    return connecting < free + std::clamp<std::size_t>(wanted, 1, connections.size() + 1);
}

Host& Gate::host_of(const Request& request) {
    const std::string_view part = host_part(request.url);
    std::string with_settings;
    std::string_view key = part;
    if (request.version != Version::automatic || !request.ca_file.empty() ||
        !request.client_cert_file.empty() || !request.proxy.empty()) {
        with_settings = part;
        with_settings += ' '; // in no part of a URL
        with_settings += static_cast<char>('0' + static_cast<int>(request.version));
        for (const std::string* each : {&request.proxy, &request.ca_file, &request.client_cert_file,
                                        &request.client_key_file}) {
            with_settings += '\n';
            with_settings += *each;
        }
        key = with_settings;
    }
    if (const auto known = hosts_.find(key); known != hosts_.end())
        return known->second;
    Host host;
    host.may_multiplex = multiplexes(request);
    host.named = !needs_no_lookup(host_name(request.proxy.empty() ? request.url : request.proxy));
    host.ready_place.push_back(nullptr);
    host.lookup_place.push_back(nullptr);
    const auto added = hosts_.emplace(std::string(key), std::move(host)).first;
    Host& made = added->second;
    made.key = added->first;
    made.ready_place.front() = made.lookup_place.front() = &made;
    made.speaks = made.may_multiplex ? Host::Speaks::unknown : Host::Speaks::serial;
    made.streams = first_streams;
    ++remembered_;
    return made;
}

void Gate::enter(Transfer& t) {
    Place& place = t.place;
    if (place.node.empty()) {
        place.node.push_back(&t);
        place.position = place.node.begin();
    }
    Host& host = host_of(t.request);
    if (host.requests++ == 0)
        --remembered_;
    place.host = &host;
    place.stage = Stage::waiting;
    host.waiting.splice(host.waiting.end(), place.node);
    line_up(host);
}

// Called after each change of what admits() or the lookups say.
void Gate::line_up(Host& host) noexcept {
    if (!host.ready && host.admits()) {
        ready_.splice(ready_.end(), host.ready_place);
        host.ready = true;
    }
    if (!host.wants_lookup && host.needs_lookup && !host.waiting.empty() &&
        host.lookups < host.most_lookups()) {
        auto& line = wants_lookup_[host.lookup_failed];
        line.splice(line.end(), host.lookup_place);
        host.wants_lookup = true;
    }
}

Transfer* Gate::next(Clock::time_point now) noexcept {
    while (!ready_.empty()) {
        Host& host = *ready_.front();
        host.ready_place.splice(host.ready_place.begin(), ready_, ready_.begin());
        host.ready = false;
        if (!host.admits()) {
            forget_unused(host);
            continue;
        }
        Transfer& t = *host.waiting.front();
        begin(host, t);
        return &t;
    }
    for (const bool failing : {false, true}) {
        auto& line = wants_lookup_[failing];
        while (!line.empty() && lookups_.may_begin(failing, now)) {
            Host& host = *line.front();
            host.lookup_place.splice(host.lookup_place.begin(), line, line.begin());
            host.wants_lookup = false;
            if (host.waiting.empty() || !host.needs_lookup || host.lookups >= host.most_lookups() ||
                host.lookup_failed != failing) {
                line_up(host);
                forget_unused(host);
                continue;
            }
            Transfer& t = *host.waiting.front();
            t.place.lookup = Lookup::granted;
            t.place.lookup_failing = failing;
            lookups_.begin(failing);
            ++host.lookups;
            begin(host, t);
            return &t;
        }
    }
    return nullptr;
}

void Gate::begin(Host& host, Transfer& t) noexcept {
    Place& place = t.place;
    place.node.splice(place.node.begin(), host.waiting, place.position);
    place.stage = Stage::connecting;
    place.rides = host.speaks == Host::Speaks::multiplexed &&
                  host.begun < host.connections.size() * host.streams;
    ++host.begun;
    ++host.connecting;
    line_up(host);
}

bool Gate::may_look_up(Transfer& t, Clock::time_point now) noexcept {
    Place& place = t.place;
    Host& host = *place.host;
    if (!host.named || place.lookup != Lookup::none) {
        if (place.lookup == Lookup::granted)
            place.lookup = Lookup::under_way;
        return true;
    }
    if (host.lookups >= host.most_lookups() || !lookups_.may_begin(host.lookup_failed, now)) {
        host.needs_lookup = true;
        return false;
    }
    place.lookup = Lookup::under_way;
    place.lookup_failing = host.lookup_failed;
    lookups_.begin(place.lookup_failing);
    ++host.lookups;
    return true;
}

void Gate::found(Transfer& t) noexcept {
    Place& place = t.place;
    Host& host = *place.host;
    if (std::exchange(place.lookup, Lookup::none) != Lookup::none) {
        lookups_.end(place.lookup_failing);
        --host.lookups;
    }
    host.lookup_failed = false;
    host.needs_lookup = false;
    if (host.reached && host.speaks == Host::Speaks::unknown) {
        host.speaks = Host::Speaks::serial; // the connection that is there did not take it
    } else if (place.stage == Stage::connected) {
        // The server refused it, as it may before it has said how many it takes: libcurl tries
        // again by itself, but not for ever.
        host.streams = std::max<std::size_t>(1, host.streams / 2);
        host.streams_found = true;
    } else if (std::exchange(place.rides, false) && !host.connections.empty()) {
        const std::size_t connected = host.begun - host.connecting;
        host.streams = std::max<std::size_t>(1, connected / host.connections.size());
        host.streams_found = true;
    }
    line_up(host);
}

void Gate::connected(Transfer& t, std::uint64_t connection) noexcept {
    Place& place = t.place;
    Host& host = *place.host;
    if (place.lookup != Lookup::none) // granted, but somebody else's was enough
        end_lookup(t, End::connected, {});
    host.reached = true;
    host.failed = false;
    if (place.stage == Stage::connecting) {
        place.stage = Stage::connected;
        --host.connecting;
    } else {
        leave_connection(t);
        ++t.lane->claims;
    }
    if (host.may_multiplex) {
        try {
            if (host.connections[connection]++ > 0) {
                --t.lane->claims;
                host.speaks = Host::Speaks::multiplexed;
            }
            place.connection = connection;
        } catch (const std::bad_alloc&) {
            // Then it counts as one that is alone in its connection.
        }
        const std::size_t now = host.begun - host.connecting;
        if (host.speaks == Host::Speaks::multiplexed &&
            now >= host.connections.size() * host.streams)
            host.streams =
                std::min(host.streams + (host.streams_found ? 1 : host.streams), most_streams);
    }
    line_up(host);
}

void Gate::answered(Transfer& t, bool http2) noexcept {
    Host& host = *t.place.host;
    if (host.may_multiplex)
        host.speaks = http2 ? Host::Speaks::multiplexed : Host::Speaks::serial;
}

// Its claim ends too if it was the last.
void Gate::leave_connection(Transfer& t) noexcept {
    auto& connections = t.place.host->connections;
    if (const auto found = connections.find(std::exchange(t.place.connection, 0));
        found != connections.end()) {
        if (--found->second > 0)
            return;
        connections.erase(found);
    }
    --t.lane->claims;
}

void Gate::end_lookup(Transfer& t, End end, Clock::time_point now) noexcept {
    Place& place = t.place;
    Host& host = *place.host;
    const bool was_under_way = place.lookup == Lookup::under_way;
    if (std::exchange(place.lookup, Lookup::none) == Lookup::none)
        return;
    --host.lookups;
    if (was_under_way && end != End::connected && end != End::name_not_found)
        lookups_.give_up(place.lookup_failing, now);
    else
        lookups_.end(place.lookup_failing);
    if (was_under_way && (end == End::name_not_found || end == End::not_connected))
        host.lookup_failed = true;
}

// Out of libcurl.
void Gate::take_back(Transfer& t) noexcept {
    Place& place = t.place;
    --place.host->begun;
    if (place.stage == Stage::connecting) {
        --place.host->connecting;
        if (t.lane) // or libcurl never got it
            --t.lane->claims;
    } else {
        leave_connection(t);
    }
}

void Gate::turned_away(Transfer& t) noexcept {
    Place& place = t.place;
    Host& host = *place.host;
    end_lookup(t, End::connected, {});
    take_back(t);
    place.stage = Stage::waiting;
    host.waiting.splice(host.waiting.begin(), place.node);
    host.width = host.begun;
    line_up(host);
}

void Gate::leave(Transfer& t, End end, Clock::time_point now) noexcept {
    Place& place = t.place;
    Host& host = *place.host;
    if (place.stage == Stage::waiting) {
        place.node.splice(place.node.begin(), host.waiting, place.position);
    } else {
        const bool was_looking_up = place.lookup == Lookup::under_way;
        end_lookup(t, end, now);
        take_back(t);
        if (place.stage == Stage::connecting &&
            (end == End::not_connected || end == End::name_not_found)) {
            // One that has no address says nothing of the connections that are there.
            if (!was_looking_up || host.begun == host.connecting)
                host.reached = false;
            host.failed = true;
        }
    }
    place.stage = Stage::outside;
    place.host = nullptr;
    if (--host.requests == 0)
        ++remembered_;
    line_up(host);
    forget_unused(host);
}

void Gate::forget_unused(Host& host) noexcept {
    if (host.requests > 0 || host.ready || host.wants_lookup)
        return;
    if (host.lookup_failed && remembered_ <= most_remembered) {
        host.reached = host.failed = host.needs_lookup = false;
        return;
    }
    if (host.lookup_failed) {
        remembered_ -= std::erase_if(hosts_, [](const auto& entry) {
            const Host& each = entry.second;
            return each.requests == 0 && !each.ready && !each.wants_lookup;
        });
        return;
    }
    --remembered_;
    hosts_.erase(hosts_.find(host.key));
}

std::optional<Gate::Clock::time_point> Gate::next_change() const noexcept {
    return any_wants_lookup() ? lookups_.next_change() : std::nullopt;
}

} // namespace jobq::http
