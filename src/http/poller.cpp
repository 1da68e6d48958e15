#include "http/poller.hpp"

#include <algorithm>
#include <cerrno>
#include <system_error>

#include <sys/epoll.h>
#include <sys/timerfd.h>

namespace jobq::http {

namespace {

Fd checked(int fd, const char* what) {
    if (fd < 0)
        throw std::system_error(errno, std::system_category(), what);
    return Fd(fd);
}

// The timer's mark: no socket's, whose lower half is never negative.
constexpr std::uint64_t timer_mark = ~std::uint64_t{0};

} // namespace

Poller::Poller()
    : epoll_(checked(::epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
      timer_(checked(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK),
                     "timerfd_create")) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = timer_mark;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, timer_.get(), &event) != 0)
        throw std::system_error(errno, std::system_category(), "epoll_ctl");
}

void Poller::watch(int socket, std::uint32_t events, std::uint32_t owner, bool is_new) noexcept {
    epoll_event event{};
    event.events = events;
    event.data.u64 = std::uint64_t{owner} << 32 | static_cast<std::uint32_t>(socket);
    ::epoll_ctl(epoll_.get(), is_new ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, socket, &event);
}

void Poller::forget(int socket) noexcept {
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, socket, nullptr);
}

void Poller::wake_by(Clock::time_point when) noexcept {
    using namespace std::chrono;
    if (armed_ && *armed_ <= when)
        return;
    // All zero would switch the timer off.
    const auto ns =
        std::max<std::int64_t>(duration_cast<nanoseconds>(when.time_since_epoch()).count(), 1);
    itimerspec spec{};
    spec.it_value.tv_sec = static_cast<time_t>(ns / 1'000'000'000);
    spec.it_value.tv_nsec = static_cast<long>(ns % 1'000'000'000);
    ::timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &spec, nullptr);
    armed_ = when;
}

std::span<const Poller::Ready> Poller::ready() noexcept {
    std::array<epoll_event, batch> events;
    const int found = ::epoll_wait(epoll_.get(), events.data(), batch, 0);
    std::size_t count = 0;
    for (int i = 0; i < found; ++i) {
        const std::uint64_t mark = events[i].data.u64;
        if (mark == timer_mark) {
            std::uint64_t expirations;
            [[maybe_unused]] const auto n = ::read(timer_.get(), &expirations, sizeof expirations);
            armed_.reset();
        } else {
            ready_[count++] = {static_cast<int>(static_cast<std::uint32_t>(mark)),
                               static_cast<std::uint32_t>(mark >> 32), events[i].events};
        }
    }
    return {ready_.data(), count};
}

} // namespace jobq::http
