#include "http/lane.hpp"

#include <new>

#include <sys/epoll.h>

#include "http/gate.hpp"

namespace jobq::http {

using std::chrono::milliseconds;

Lane::Lane(Poller& p, std::uint32_t i, long c, bool l)
    : poller(p), index(i), connections(c), limited(l) {
    renew();
}

void Lane::renew() {
    multi.reset();
    deadline.reset();
    multi.reset(curl_multi_init());
    CURLM* const m = multi.get();
    if (!m)
        throw std::bad_alloc();
    curl_multi_setopt(m, CURLMOPT_SOCKETFUNCTION, &Lane::on_socket);
    curl_multi_setopt(m, CURLMOPT_SOCKETDATA, this);
    curl_multi_setopt(m, CURLMOPT_TIMERFUNCTION, &Lane::on_timer);
    curl_multi_setopt(m, CURLMOPT_TIMERDATA, this);
    // By default libcurl closes idle connections beyond four for each request in flight, which
    // at the end of a burst is nearly all of them.
    curl_multi_setopt(m, CURLMOPT_MAXCONNECTS, connections);
    if (limited)
        curl_multi_setopt(m, CURLMOPT_MAX_TOTAL_CONNECTIONS, connections);
    curl_multi_setopt(m, CURLMOPT_PIPELINING, static_cast<long>(CURLPIPE_MULTIPLEX));
    curl_multi_setopt(m, CURLMOPT_MAX_CONCURRENT_STREAMS, static_cast<long>(most_streams));
}

// The callbacks are called from C: nothing may be thrown through it.

int Lane::on_socket(CURL*, curl_socket_t socket, int what, void* self, void* known) noexcept {
    auto& lane = *static_cast<Lane*>(self);
    if (what == CURL_POLL_REMOVE) {
        lane.poller.forget(socket);
        return 0;
    }
    const std::uint32_t events = (what & CURL_POLL_IN ? EPOLLIN : 0U) | //
                                 (what & CURL_POLL_OUT ? EPOLLOUT : 0U);
    lane.poller.watch(socket, events, lane.index, !known);
    if (!known)
        curl_multi_assign(lane.multi.get(), socket, self); // any pointer but null
    return 0;
}

int Lane::on_timer(CURLM*, long timeout_ms, void* self) noexcept {
    auto& deadline = static_cast<Lane*>(self)->deadline;
    if (timeout_ms < 0)
        deadline.reset();
    else
        deadline = Poller::Clock::now() + milliseconds(timeout_ms);
    return 0;
}

} // namespace jobq::http
