// An endpoint as the dispatcher has it: its settings, and what its answers have taught.
//
// How many requests may begin is the least of what its window leaves (core/window.hpp), its tokens
// (core/token_bucket.hpp) and its breaker (core/breaker.hpp). After 429 or 503 with Retry-After
// none begins until then. Plain C++; every time is a parameter.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/breaker.hpp"
#include "core/durations.hpp"
#include "core/statuses.hpp"
#include "core/token_bucket.hpp"
#include "core/window.hpp"
#include "http/client.hpp"

namespace jobq::worker {

struct EndpointSettings {
    std::string name, url; // without a URL it is gone
    std::string method = "POST";
    std::vector<std::pair<std::string, std::string>> headers;
    std::size_t max_in_flight = 50, min_in_flight = 1;
    std::optional<double> rate; // requests a second
    int burst = 1;
    std::chrono::milliseconds timeout{30'000}, connect_timeout{5'000};
    std::size_t keep_response = 0;
    core::Statuses final_statuses;
    bool accept_later = false;
    bool is_signed = true;
    struct Key {
        std::string bytes;
        std::optional<std::chrono::microseconds> until; // unix time; none: it stays
    };
    std::vector<Key> keys; // that sign, newest first
    std::string ca_file, client_cert_file, client_key_file, proxy;
    http::Version version = http::Version::automatic;
    bool gzip = false;
    std::string cloudevents_source; // empty: none
    core::BreakerRules breaker;
    bool enabled = true;

    bool gone() const { return url.empty(); }
};

// What an answer, or its absence, means for the job.
struct Verdict {
    enum class Ending {
        completed,
        accepted, // goes on until somebody ends it
        failed,   // charged, and tried again or dead
        released, // not charged
        buried,   // dead
    } ending = Ending::failed;
    std::string outcome, error; // error: empty if completed
    std::optional<std::chrono::seconds> retry_after = {};
    std::optional<std::chrono::seconds> again_in = {}; // of one released: not before
    bool gone = false;                                 // the endpoint wants nothing any more
};

class Endpoint {
public:
    using Time = std::chrono::microseconds;

    // A request under way.
    struct Begun {
        Time at{0};
        core::Breaker::Ticket ticket;
    };

    const EndpointSettings& settings() const { return settings_; }
    void set(EndpointSettings settings, Time now);

    // How many requests may begin now, those that are reserved not counted.
    std::size_t room(Time now) const;
    // When there may be room, if time alone brings it.
    std::optional<Time> opens_at(Time now) const;
    // Places for what is being claimed.
    void reserve(std::size_t places) { reserved_ += places; }
    void unreserve() { reserved_ = 0; }

    Begun begin(Time now);
    Verdict end(const Begun& begun, const http::Response& response, Time now);
    // A request ended without telling anything: it was cancelled.
    void abandon(const Begun& begun);

    std::size_t in_flight() const { return in_flight_; }
    bool open() const { return opened_; } // the last end() opened its breaker, or kept it open
    // What it answers is that it is no more.
    void close_for_good() { gone_ = true; }

    // For jobq.endpoint_stats.
    struct Seen {
        std::size_t in_flight = 0, window = 0;
        core::Breaker::State breaker = core::Breaker::State::closed;
        std::optional<Time> probe_at, paused_until;
        std::int64_t succeeded = 0, failed = 0; // since the start
        std::uint64_t recent_succeeded = 0, recent_failed = 0;
        std::optional<std::chrono::microseconds> median, p99;
        int last_status = 0;
        std::optional<Time> last_at;
        std::string last_outcome, last_error;
    };
    Seen seen(Time now) const;

private:
    EndpointSettings settings_;
    core::Window window_;
    core::TokenBucket tokens_;
    core::Breaker breaker_;
    core::Durations durations_;
    std::size_t in_flight_ = 0, reserved_ = 0;
    Time paused_until_{0};
    bool opened_ = false, gone_ = false;
    std::int64_t succeeded_ = 0, failed_ = 0;
    int last_status_ = 0;
    std::optional<Time> last_at_;
    std::string last_outcome_, last_error_;
};

// The meaning of a response, but for what the endpoint's state makes of it.
Verdict judge(const EndpointSettings& settings, const http::Response& response);

} // namespace jobq::worker
