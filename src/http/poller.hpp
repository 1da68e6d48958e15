#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "http/fd.hpp"

namespace jobq::http {

// Many sockets and a timer behind one descriptor: an epoll with a timerfd in it. The descriptor
// is readable while a socket is ready or the timer has rung, so it can stand in somebody else's
// poll, epoll or WaitEventSet.
class Poller {
public:
    using Clock = std::chrono::steady_clock; // CLOCK_MONOTONIC, the timerfd's clock

    struct Ready {
        int socket;
        std::uint32_t owner;  // as given to watch
        std::uint32_t events; // EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP
    };

    // Throws std::system_error where the process has no descriptors left.
    Poller();

    int fd() const noexcept { return epoll_.get(); }

    // Listens for events (EPOLLIN, EPOLLOUT): of a socket that is new, or in place of those it
    // was watched for. The kernel may have no memory for it: such a socket is never reported,
    // and what waits for it ends by its own timeout.
    void watch(int socket, std::uint32_t events, std::uint32_t owner, bool is_new) noexcept;
    void forget(int socket) noexcept;

    // Makes fd() readable at that time or earlier. Called once before the caller sleeps, with
    // the nearest deadline: deadlines move several times a request, and the timer, a system
    // call each time, only when it would ring too late.
    void wake_by(Clock::time_point when) noexcept;

    // The sockets that are ready now, at most batch of them; never waits. Switches off the
    // timer if it has rung. Valid until the next call.
    static constexpr std::size_t batch = 64;
    std::span<const Ready> ready() noexcept;

private:
    Fd epoll_;
    Fd timer_;
    std::optional<Clock::time_point> armed_; // early is harmless, late is not
    std::array<Ready, batch> ready_{};
};

} // namespace jobq::http
