#include "worker/endpoint.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace jobq::worker {

namespace {

using std::chrono::microseconds;

// A receiver that names a time far off would hold up its jobs for ever.
constexpr std::chrono::seconds longest_pause = std::chrono::hours(1);
// Until a job is tried again that this side kept from leaving.
constexpr std::chrono::seconds wait_for_us{10};

bool answered(const http::Response& response) {
    return response.outcome == http::Outcome::answered;
}

// Whether it says "too much".
bool overloaded(const http::Response& response) {
    return answered(response) ? response.status == 429 || response.status == 503
                              : response.outcome == http::Outcome::timeout;
}

// Whether it tells that the endpoint is down, or not, or neither. It may be down where the request
// has left: another one might have been answered.
enum class Health { up, maybe_down, down, unknown };
Health health(const http::Response& response) {
    switch (response.outcome) {
    case http::Outcome::answered:
        switch (response.status) {
        case 502: // a gateway says so of the server behind it
        case 503:
        case 504:
            return Health::down;
        default:
            return response.status / 100 == 5 ? Health::maybe_down : Health::up;
        }
    case http::Outcome::refused_request:
    case http::Outcome::out_of_memory:
    case http::Outcome::other_error:
        return Health::unknown;
    case http::Outcome::response_too_large:
        return Health::up;
    default:
        return response.sent ? Health::maybe_down : Health::down;
    }
}

} // namespace

Verdict judge(const EndpointSettings& settings, const http::Response& response) {
    using Ending = Verdict::Ending;
    Verdict verdict;
    if (!answered(response)) {
        verdict.outcome = http::name(response.outcome);
        verdict.error = response.error;
        // Nothing left, and it is no fault of the job's or the endpoint's.
        if (response.outcome == http::Outcome::address_not_allowed ||
            response.outcome == http::Outcome::out_of_memory) {
            verdict.ending = Ending::released;
            verdict.again_in = wait_for_us;
        }
        return verdict;
    }
    int status = response.status;
    if (status / 100 == 2) {
        bool later = status == 202 && settings.accept_later;
        verdict.ending = later ? Ending::accepted : Ending::completed;
        verdict.outcome = later ? "accepted" : "completed";
        return verdict;
    }
    verdict.outcome = fmt::format("http_{}", status);
    verdict.error = fmt::format("the endpoint answered with status {}", status);
    verdict.retry_after = response.retry_after;
    if (status / 100 == 3)
        verdict.error += "; redirects are not followed";
    if (status == 410) {
        verdict.ending = Ending::released;
        verdict.error += ": it wants no more";
        verdict.gone = true;
    } else if (response.no_retry) {
        verdict.ending = Ending::buried;
        verdict.error += "; it asked for no other try";
    } else if (settings.final_statuses.contains(status)) {
        verdict.ending = Ending::buried;
        verdict.error += ", which is final";
    }
    return verdict;
}

void Endpoint::set(EndpointSettings settings, Time now) {
    // What was learnt is of another place, or an administrator says that it is over.
    if (settings.url != settings_.url || (settings.enabled && !settings_.enabled)) {
        breaker_ = core::Breaker();
        paused_until_ = Time(0);
        opened_ = false;
    }
    settings_ = std::move(settings);
    window_.set_bounds(settings_.min_in_flight, settings_.max_in_flight);
    if (settings_.rate)
        tokens_.set(*settings_.rate, settings_.burst, now);
    gone_ = false;
}

std::size_t Endpoint::room(Time now) const {
    if (settings_.gone()) // each attempt fails at once
        return settings_.max_in_flight;
    if (!settings_.enabled || gone_ || now < paused_until_)
        return 0;
    std::size_t used = in_flight_ + reserved_;
    std::size_t free = window_.size() > used ? window_.size() - used : 0;
    if (settings_.rate) {
        std::size_t tokens = tokens_.available(now);
        free = std::min(free, tokens > reserved_ ? tokens - reserved_ : 0);
    }
    if (!breaker_.allows(settings_.breaker, now))
        return 0;
    if (breaker_.state(now) != core::Breaker::State::closed) // one probe
        free = std::min<std::size_t>(free, reserved_ == 0 ? 1 : 0);
    return free;
}

std::optional<Endpoint::Time> Endpoint::opens_at(Time now) const {
    if (settings_.gone() || !settings_.enabled || gone_)
        return std::nullopt;
    if (now < paused_until_)
        return paused_until_;
    if (breaker_.state(now) == core::Breaker::State::open)
        return breaker_.probe_at();
    if (settings_.rate && tokens_.available(now) <= reserved_)
        return std::max(tokens_.next(now), now + microseconds(1));
    return std::nullopt;
}

Endpoint::Begun Endpoint::begin(Time now) {
    ++in_flight_;
    if (settings_.rate)
        tokens_.take(1, now);
    return {now, breaker_.began(settings_.breaker, now)};
}

Verdict Endpoint::end(const Begun& begun, const http::Response& response, Time now) {
    --in_flight_;
    switch (health(response)) {
    case Health::up:
        breaker_.succeeded(settings_.breaker, now, begun.ticket);
        break;
    case Health::maybe_down:
        breaker_.failed(settings_.breaker, now, begun.ticket);
        break;
    case Health::down:
        breaker_.failed(settings_.breaker, now, begun.ticket, core::Breaker::Failure::of_endpoint);
        break;
    case Health::unknown:
        breaker_.abandoned(begun.ticket);
        break;
    }
    bool was_open = std::exchange(opened_, breaker_.state(now) != core::Breaker::State::closed);
    Verdict verdict = judge(settings_, response);
    bool good =
        verdict.ending == Verdict::Ending::completed || verdict.ending == Verdict::Ending::accepted;
    if (good)
        window_.grow(begun.at);
    else if (overloaded(response))
        window_.shrink(begun.at, now);
    if (overloaded(response) && verdict.retry_after && verdict.retry_after->count() > 0)
        paused_until_ =
            std::max<Time>(paused_until_, now + std::min(longest_pause, *verdict.retry_after));
    // A job that never left is not charged while the endpoint is known to be down.
    if (verdict.ending == Verdict::Ending::failed && !response.sent && (opened_ || was_open))
        verdict.ending = Verdict::Ending::released;
    if (verdict.gone)
        gone_ = true;

    durations_.add(response.elapsed, good, now);
    ++(good ? succeeded_ : failed_);
    last_status_ = response.status;
    last_at_ = now;
    last_outcome_ = verdict.outcome;
    last_error_ = verdict.error;
    return verdict;
}

void Endpoint::abandon(const Begun& begun) {
    --in_flight_;
    breaker_.abandoned(begun.ticket);
}

Endpoint::Seen Endpoint::seen(Time now) const {
    Seen seen;
    seen.in_flight = in_flight_;
    seen.window = window_.size();
    seen.breaker = breaker_.state(now);
    if (seen.breaker != core::Breaker::State::closed)
        seen.probe_at = breaker_.probe_at();
    if (now < paused_until_)
        seen.paused_until = paused_until_;
    seen.succeeded = succeeded_;
    seen.failed = failed_;
    seen.recent_succeeded = durations_.succeeded(now);
    seen.recent_failed = durations_.failed(now);
    seen.median = durations_.quantile(0.5, now);
    seen.p99 = durations_.quantile(0.99, now);
    seen.last_status = last_status_;
    seen.last_at = last_at_;
    seen.last_outcome = last_outcome_;
    seen.last_error = last_error_;
    return seen;
}

} // namespace jobq::worker
