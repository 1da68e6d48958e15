#include "http/client.hpp"

#include <algorithm>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include <sys/epoll.h>

#include "http/curl.hpp"
#include "http/gate.hpp"
#include "http/lane.hpp"
#include "http/poller.hpp"
#include "http/transfer.hpp"

namespace jobq::http {

namespace {

constexpr int max_rounds = 16;

// libcurl looks for an idle connection by walking through all those to the same host, so one
// multi handle with thousands of them is slow (9,000 requests in flight to one host: 79 us of
// CPU each, and 28 us spread over 18 multis). With this many a lane is full, and the next begins.
constexpr std::size_t lane_requests = 512;
// Twice as many, so that idle connections to other hosts are not pushed out by the busy ones.
constexpr long lane_connections = 1024;

// Of max_sockets: libcurl has two for a connection while it tries a second address.
long connections_within(const Options& options) noexcept {
    if (options.max_sockets <= 0)
        return options.connections;
    return std::max(1L,
                    std::min(options.connections, options.max_sockets - options.max_sockets / 8));
}

} // namespace

Library::Library() {
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        throw std::runtime_error("could not initialize libcurl");
}

Library::~Library() {
    curl_global_cleanup();
}

// A transfer is always in exactly one of running, ended and idle, and they all have room for
// every transfer, so that none is ever lost for want of memory.
struct Client::Impl {
    // The first transfer is made at once: it shows whether this libcurl can do what is needed.
    explicit Impl(const Options& options)
        : common(options), connections(connections_within(options)) {
        idle_transfer();
    }
    ~Impl() {
        while (!running.empty())
            leave_running(*running.back(), Gate::End::cancelled);
    }

    Transfer& idle_transfer();
    bool limited() const noexcept { return common.options.max_sockets > 0; }
    Lane* lane_with_room();
    Lane* lane_for(Host& host);
    void run(Lane& lane, int socket, int events);
    bool run_due();
    void collect(Lane& lane);
    void start_over(Lane& lane, CURLMcode why);
    void begin(Transfer& t, Lane& lane) noexcept;
    bool begin_waiting() noexcept;
    void fail(Transfer& t, Outcome outcome, std::string_view error) noexcept;
    void leave_running(Transfer& t, Gate::End end) noexcept;
    template <class Condition>
    bool cancel_if(Condition condition) noexcept;

    Common common;
    const long connections; // that all lanes keep
    Poller poller;
    std::vector<std::unique_ptr<Transfer>> transfers;
    std::vector<Transfer*> idle, running, ended;
    std::vector<std::unique_ptr<Lane>> lanes;
};

// Leaves it among the idle, so that a failure after it changes nothing.
Transfer& Client::Impl::idle_transfer() {
    if (idle.empty()) {
        if (transfers.size() == transfers.capacity()) {
            const std::size_t room = std::max<std::size_t>(64, 2 * transfers.size());
            for (auto* list : {&idle, &running, &ended})
                list->reserve(room);
            transfers.reserve(room);
        }
        transfers.push_back(std::make_unique<Transfer>(common));
        idle.push_back(transfers.back().get());
    }
    return *idle.back();
}

// The first with room, so that few requests share few connections; or none, if limited. Throws
// std::bad_alloc.
Lane* Client::Impl::lane_with_room() {
    for (const auto& lane : lanes)
        if (lane->requests < lane_requests && lane->has_room())
            return lane.get();
    // So many that connections is what all of them keep.
    const long most = std::max(1L, (connections + lane_connections - 1) / lane_connections);
    if (static_cast<long>(lanes.size()) < most) {
        lanes.push_back(std::make_unique<Lane>(poller, static_cast<std::uint32_t>(lanes.size()),
                                               std::max(1L, connections / most), limited()));
        return lanes.back().get();
    }
    Lane* best = nullptr;
    for (const auto& lane : lanes)
        if (lane->has_room() && (!best || lane->requests < best->requests))
            best = lane.get();
    return best;
}

// Connections that many requests share are in one lane, whatever its number of requests.
Lane* Client::Impl::lane_for(Host& host) {
    if (host.speaks == Host::Speaks::serial)
        return lane_with_room();
    if (host.begun == 1 || !host.lane || !host.lane->has_room())
        host.lane = lane_with_room();
    return host.lane;
}

void Client::Impl::run(Lane& lane, int socket, int events) {
    int still_running = 0;
    const CURLMcode code =
        curl_multi_socket_action(lane.multi.get(), socket, events, &still_running);
    collect(lane);
    if (code != CURLM_OK)
        start_over(lane, code);
}

// Whether any lane was due.
bool Client::Impl::run_due() {
    const auto now = Poller::Clock::now();
    bool any = false;
    for (const auto& lane : lanes) {
        if (!lane->deadline || *lane->deadline > now)
            continue;
        // It rings once: libcurl sets the next one, but does not say that there is none.
        lane->deadline.reset();
        run(*lane, CURL_SOCKET_TIMEOUT, 0);
        any = true;
    }
    return any;
}

// Called after each action, while libcurl's list of the ended is short: it walks that list to
// take a handle out.
void Client::Impl::collect(Lane& lane) {
    int left = 0;
    while (const CURLMsg* message = curl_multi_info_read(lane.multi.get(), &left)) {
        if (message->msg != CURLMSG_DONE)
            continue;
        const CURLcode code = message->data.result; // the message dies with the next call
        auto& t = *info<Transfer*>(message->easy_handle, CURLINFO_PRIVATE);
        if (t.turned_away && code != CURLE_OK) {
            curl_multi_remove_handle(lane.multi.get(), t.easy.get());
            common.gate.turned_away(t);
            --lane.requests;
            t.lane = nullptr;
            continue;
        }
        if (t.may_begin_again(code)) {
            curl_multi_remove_handle(lane.multi.get(), t.easy.get());
            t.begin();
            if (curl_multi_add_handle(lane.multi.get(), t.easy.get()) == CURLM_OK)
                continue;
        }
        Gate::End end = Gate::End::not_connected;
        if (t.connected)
            end = Gate::End::connected;
        else if (code == CURLE_COULDNT_RESOLVE_HOST || code == CURLE_COULDNT_RESOLVE_PROXY)
            end = Gate::End::name_not_found;
        const long version = info<long>(t.easy.get(), CURLINFO_HTTP_VERSION);
        if (t.connected && version != CURL_HTTP_VERSION_NONE)
            common.gate.answered(t, version == CURL_HTTP_VERSION_2_0);
        leave_running(t, end);
        t.end(code);
        ended.push_back(&t);
    }
}

// An error of the multi is not about one transfer, and libcurl does not recover from some.
void Client::Impl::start_over(Lane& lane, CURLMcode why) {
    // From the end, because leave_running moves the last one into the gap.
    for (std::size_t i = running.size(); i-- > 0;) {
        Transfer& t = *running[i];
        if (t.lane != &lane)
            continue;
        fail(t, why == CURLM_OUT_OF_MEMORY ? Outcome::out_of_memory : Outcome::other_error,
             curl_multi_strerror(why));
    }
    lane.renew();
}

// Gives libcurl a transfer that is running.
void Client::Impl::begin(Transfer& t, Lane& lane) noexcept {
    t.begin();
    t.lane = &lane;
    ++lane.requests;
    ++lane.claims;
    const CURLMcode code = curl_multi_add_handle(lane.multi.get(), t.easy.get());
    if (code != CURLM_OK)
        return fail(t, Outcome::other_error, curl_multi_strerror(code));
    poller.wake_by(Poller::Clock::now());
}

// Whether any began.
bool Client::Impl::begin_waiting() noexcept {
    bool any = false;
    while (!common.starved && common.gate.any_ready()) {
        try {
            if (limited() && !lane_with_room())
                break;
        } catch (const std::bad_alloc&) {
            // Then the next one fails for the same reason.
        }
        Transfer* const t = common.gate.next(Poller::Clock::now());
        if (!t)
            break;
        try {
            begin(*t, *lane_for(*t->place.host));
        } catch (const std::bad_alloc&) {
            fail(*t, Outcome::out_of_memory, "out of memory");
        }
        any = true;
    }
    return any;
}

void Client::Impl::fail(Transfer& t, Outcome outcome, std::string_view text) noexcept {
    leave_running(t, Gate::End::cancelled);
    t.end(outcome, text);
    ended.push_back(&t);
    poller.wake_by(Poller::Clock::now());
}

void Client::Impl::leave_running(Transfer& t, Gate::End end) noexcept {
    if (t.lane)
        curl_multi_remove_handle(t.lane->multi.get(), t.easy.get());
    common.gate.leave(t, end, Poller::Clock::now());
    if (t.lane) {
        --t.lane->requests;
        t.lane = nullptr;
    }
    if (common.gate.any_ready())
        poller.wake_by(Poller::Clock::now());
    running[t.position] = running.back();
    running[t.position]->position = t.position;
    running.pop_back();
}

template <class Condition>
bool Client::Impl::cancel_if(Condition condition) noexcept {
    const std::size_t idle_before = idle.size();
    // From the end, because leave_running moves the last one into the gap.
    for (std::size_t i = running.size(); i-- > 0;) {
        Transfer& t = *running[i];
        if (!condition(t))
            continue;
        leave_running(t, Gate::End::cancelled);
        t.forget();
        idle.push_back(&t);
    }
    std::erase_if(ended, [&](Transfer* t) {
        if (!condition(*t))
            return false;
        t->forget();
        idle.push_back(t);
        return true;
    });
    return idle.size() > idle_before;
}

Client::Client(const Options& options) : impl_(std::make_unique<Impl>(options)) {}
Client::~Client() = default;

void Client::allow(std::function<bool(const core::Address&)> allowed) noexcept {
    impl_->common.allowed = std::move(allowed);
}

void Client::start(Request&& request) {
    Transfer& t = impl_->idle_transfer();
    impl_->idle.pop_back();
    t.request = std::move(request);
    t.response = Response();
    t.response.tag = t.request.tag;
    try {
        t.prepare();
        impl_->common.gate.enter(t);
        t.position = impl_->running.size();
        impl_->running.push_back(&t);
        impl_->begin_waiting();
        return;
    } catch (const Refusal& refusal) {
        t.end(refusal.outcome, refusal.what());
    } catch (const std::bad_alloc&) {
        t.end(Outcome::out_of_memory, "out of memory");
    }
    impl_->ended.push_back(&t);
    impl_->poller.wake_by(Poller::Clock::now());
}

int Client::fd() const noexcept {
    return impl_->poller.fd();
}

void Client::wake_by(std::chrono::steady_clock::time_point when) noexcept {
    impl_->poller.wake_by(when);
}

void Client::step() {
    const SignalsBlocked signals_blocked;
    for (int round = 0; round < max_rounds; ++round) {
        const auto ready = impl_->poller.ready();
        for (const Poller::Ready& each : ready) {
            // An error or a hangup is not passed on as such: libcurl would give up without
            // reading what came before it, and without the reason.
            const std::uint32_t broken = each.events & (EPOLLERR | EPOLLHUP);
            const int in = each.events & EPOLLIN || broken ? CURL_CSELECT_IN : 0;
            const int out = each.events & EPOLLOUT || broken ? CURL_CSELECT_OUT : 0;
            impl_->run(*impl_->lanes[each.owner], each.socket, in | out);
        }
        // After the sockets: an answer that came in time has not timed out.
        const bool any_due = impl_->run_due();
        const bool any_begun = impl_->begin_waiting();
        if (!any_due && !any_begun && ready.size() < Poller::batch - 1) // one less: the timer
            break;
    }
    for (const auto& lane : impl_->lanes)
        if (lane->deadline)
            impl_->poller.wake_by(*lane->deadline);
    if (const auto change = impl_->common.gate.next_change())
        impl_->poller.wake_by(*change);
}

void Client::take(std::vector<Response>& responses) {
    responses.clear();
    responses.reserve(impl_->ended.size());
    for (Transfer* t : impl_->ended) {
        responses.push_back(std::move(t->response));
        impl_->idle.push_back(t);
    }
    impl_->ended.clear();
}

bool Client::cancel(std::uint64_t tag) noexcept {
    return impl_->cancel_if([&](const Transfer& t) { return t.response.tag == tag; });
}

void Client::cancel_waiting(const std::function<bool(std::uint64_t tag)>& which,
                            std::vector<std::uint64_t>& ended) {
    std::vector<std::uint64_t> found;
    for (const Transfer* t : impl_->running)
        if (t->lane == nullptr && which(t->response.tag))
            found.push_back(t->response.tag);
    ended.insert(ended.end(), found.begin(), found.end());
    std::sort(found.begin(), found.end());
    impl_->cancel_if([&](const Transfer& t) {
        return t.lane == nullptr && std::binary_search(found.begin(), found.end(), t.response.tag);
    });
}

void Client::cancel_all() noexcept {
    impl_->cancel_if([](const Transfer&) { return true; });
}

std::size_t Client::in_flight() const noexcept {
    return impl_->running.size();
}

} // namespace jobq::http
