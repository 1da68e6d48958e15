#include "http/lookups.hpp"

#include <new>

namespace jobq::http {

bool Lookups::may_begin(bool failing, Clock::time_point now) noexcept {
    while (!given_up_.empty() && given_up_.front() <= now)
        given_up_.pop_front();
    if (under_way() >= most || under_way() + given_up_.size() >= most_threads)
        return false;
    return !failing || failing_ + given_up_.size() < most_failing;
}

void Lookups::begin(bool failing) noexcept {
    ++(failing ? failing_ : healthy_);
}

void Lookups::end(bool failing) noexcept {
    --(failing ? failing_ : healthy_);
}

void Lookups::give_up(bool failing, Clock::time_point now) noexcept {
    end(failing);
    try {
        given_up_.push_back(now + thread_life);
    } catch (const std::bad_alloc&) {
        // A bound that is a little too wide is better than the end of the process.
    }
}

std::optional<Lookups::Clock::time_point> Lookups::next_change() const noexcept {
    if (given_up_.empty())
        return std::nullopt;
    return given_up_.front();
}

} // namespace jobq::http
