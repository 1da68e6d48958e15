#include "core/breaker.hpp"

#include <algorithm>
#include <limits>

#include "core/slot.hpp"

namespace jobq::core {

using std::chrono::microseconds;

namespace {

void count(std::uint32_t& counter) noexcept {
    if (counter < std::numeric_limits<std::uint32_t>::max())
        ++counter;
}

microseconds later(microseconds time, microseconds by) noexcept {
    return time > microseconds::max() - by ? microseconds::max() : time + by;
}

} // namespace

bool Breaker::allows(const BreakerRules& rules, microseconds now) const noexcept {
    if (state_ == State::closed || rules.failures <= 0)
        return true;
    return state_ == State::open && now >= probe_at_;
}

Breaker::Ticket Breaker::began(const BreakerRules& rules, microseconds now) noexcept {
    if (rules.failures <= 0)
        close();
    if (state_ == State::open && now >= probe_at_) {
        state_ = State::half_open;
        return {period_, true};
    }
    // Of the period before, so that it counts for nothing even if it ends after a success of the
    // probe.
    return {state_ == State::closed ? period_ : period_ - 1, false};
}

void Breaker::succeeded(const BreakerRules& rules, microseconds now, Ticket ticket) noexcept {
    if (is_probe(ticket)) {
        close();
    } else if (state_ == State::closed && ticket.period == period_) {
        count(bucket(rules, now).succeeded);
        in_a_row_ = 0;
    }
}

void Breaker::failed(const BreakerRules& rules, microseconds now, Ticket ticket,
                     Failure failure) noexcept {
    const microseconds longest = std::max(rules.longest, microseconds::zero());
    if (is_probe(ticket)) {
        open(now, wait_ > longest / 2 ? longest : wait_ * 2);
    } else if (state_ == State::closed && ticket.period == period_) {
        count(bucket(rules, now).failed);
        if (failure == Failure::of_endpoint)
            count(in_a_row_);
        if (enough(rules))
            open(now, std::clamp(rules.first, microseconds::zero(), longest));
    }
}

void Breaker::abandoned(Ticket ticket) noexcept {
    if (is_probe(ticket))
        state_ = State::open; // its wait is over: the next may begin at once
}

Breaker::State Breaker::state(microseconds now) const noexcept {
    return state_ == State::open && now >= probe_at_ ? State::half_open : state_;
}

bool Breaker::is_probe(Ticket ticket) const noexcept {
    return ticket.probe && state_ == State::half_open && ticket.period == period_;
}

// The bucket of now, after those that the window has left are emptied.
Breaker::Bucket& Breaker::bucket(const BreakerRules& rules, microseconds now) noexcept {
    constexpr std::size_t size = std::tuple_size_v<decltype(buckets_)>;
    const microseconds width =
        std::max(rules.window / static_cast<microseconds::rep>(size), microseconds{1});
    const std::uint64_t number = slot_of(now, width);
    if (width != width_ || number >= newest_ + size) {
        buckets_.fill({});
        width_ = width;
        newest_ = number;
    }
    while (newest_ < number)
        buckets_[++newest_ % size] = {};
    return buckets_[newest_ % size];
}

bool Breaker::enough(const BreakerRules& rules) const noexcept {
    std::uint64_t succeeded = 0, failed = 0;
    for (const Bucket& bucket : buckets_) {
        succeeded += bucket.succeeded;
        failed += bucket.failed;
    }
    if (rules.failures <= 0)
        return false;
    const auto enough = static_cast<std::uint64_t>(rules.failures);
    return failed >= enough && (failed >= succeeded || in_a_row_ >= enough);
}

void Breaker::close() noexcept {
    state_ = State::closed;
    buckets_.fill({});
    in_a_row_ = 0;
}

void Breaker::open(microseconds now, microseconds wait) noexcept {
    state_ = State::open;
    wait_ = wait;
    probe_at_ = later(now, wait);
    ++period_;
}

} // namespace jobq::core
