#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>

namespace jobq::http {

// How many names are being looked up, and whether one more may be. libcurl starts a thread for each
// lookup, which getaddrinfo keeps for as long as it likes: also when libcurl has given it up.
class Lookups {
public:
    using Clock = std::chrono::steady_clock;

    static constexpr std::size_t most = 256;
    // Of them for hosts whose last lookup failed, those given up counted too. So those fill up a
    // quarter of most_threads at worst, and the rest is for hosts that nothing is known of.
    static constexpr std::size_t most_failing = most / 2;
    static constexpr std::size_t most_threads = 4 * most;
    // How long one that was given up counts: three servers asked twice, five seconds each, as
    // resolv.conf(5) has it.
    static constexpr Clock::duration thread_life = std::chrono::seconds(30);

    bool may_begin(bool failing, Clock::time_point now) noexcept;
    void begin(bool failing) noexcept;
    // failing: as it began.
    void end(bool failing) noexcept;
    // In place of end: its thread goes on.
    void give_up(bool failing, Clock::time_point now) noexcept;

    // When more may begin though nothing ends; nothing if never.
    std::optional<Clock::time_point> next_change() const noexcept;

    std::size_t under_way() const noexcept { return healthy_ + failing_; }

private:
    std::size_t healthy_ = 0, failing_ = 0;
    std::deque<Clock::time_point> given_up_; // until when each counts
};

} // namespace jobq::http
