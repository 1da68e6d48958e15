#include "http/client.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <deque>
#include <map>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include <curl/curl.h>
#include <sys/epoll.h>

#include "core/header.hpp"
#include "core/text.hpp"
#include "http/poller.hpp"

namespace jobq::http {

using std::chrono::microseconds;
using std::chrono::milliseconds;

namespace {

// libcurl keeps the headers of a response in memory: more than this is no answer.
constexpr std::size_t max_response_headers = std::size_t{128} << 10;
constexpr std::size_t max_content_type = 255;
// One for each request in flight, so not libcurl's 16 kB: answers to webhooks are short.
constexpr long receive_buffer = 4096;
constexpr int max_rounds = 16;

// libcurl looks for an idle connection by walking through all those to the same host, so one
// multi handle with thousands of them is slow (9,000 requests in flight to one host: 79 us of
// CPU each, and 28 us spread over 18 multis). With this many a lane is full, and the next begins.
constexpr std::size_t lane_requests = 512;
// Twice as many, so that idle connections to other hosts are not pushed out by the busy ones.
constexpr long lane_connections = 1024;

// Requests to a host that none has reached: of them so many connect at once, after a first one.
constexpr std::size_t most_to_unreached = 8;

struct EasyDeleter {
    void operator()(CURL* easy) const noexcept { curl_easy_cleanup(easy); }
};
struct MultiDeleter {
    void operator()(CURLM* multi) const noexcept { curl_multi_cleanup(multi); }
};
struct ShareDeleter {
    void operator()(CURLSH* share) const noexcept { curl_share_cleanup(share); }
};
using Share = std::unique_ptr<CURLSH, ShareDeleter>;
using Easy = std::unique_ptr<CURL, EasyDeleter>;
using Multi = std::unique_ptr<CURLM, MultiDeleter>;

// What ends a request before libcurl has it.
struct Refusal : std::runtime_error {
    Refusal(Outcome o, const char* reason) : std::runtime_error(reason), outcome(o) {}
    Outcome outcome;
};

// Options only fail for want of memory or because this libcurl was built without them.
template <class Value>
void set(CURL* easy, CURLoption option, Value value) {
    const CURLcode code = curl_easy_setopt(easy, option, value);
    if (code == CURLE_OUT_OF_MEMORY)
        throw std::bad_alloc();
    if (code != CURLE_OK)
        throw Refusal(Outcome::other_error, curl_easy_strerror(code));
}

template <class Value>
Value info(CURL* easy, CURLINFO what) noexcept {
    Value value{};
    curl_easy_getinfo(easy, what, &value);
    return value;
}

class SignalsBlocked {
public:
    SignalsBlocked() noexcept {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    SignalsBlocked(const SignalsBlocked&) = delete;
    SignalsBlocked& operator=(const SignalsBlocked&) = delete;

private:
    sigset_t before_;
};

long to_curl(milliseconds timeout) noexcept {
    // 0 would mean no limit, and libcurl keeps them in an int.
    constexpr milliseconds longest = std::chrono::hours(24 * 20);
    return static_cast<long>(std::clamp(timeout, milliseconds(1), longest).count());
}

Outcome outcome_of(CURLcode code, CURL* easy) noexcept {
    switch (code) {
    case CURLE_OK:
        return Outcome::answered;
    case CURLE_OPERATION_TIMEDOUT:
        return Outcome::timeout;
    case CURLE_COULDNT_RESOLVE_HOST:
        return Outcome::dns_error;
    case CURLE_COULDNT_CONNECT:
        return info<long>(easy, CURLINFO_OS_ERRNO) == ECONNREFUSED ? Outcome::connection_refused
                                                                   : Outcome::unreachable;
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_PARTIAL_FILE:
        return Outcome::connection_reset;
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_SSL_ENGINE_NOTFOUND:
    case CURLE_SSL_ENGINE_SETFAILED:
    case CURLE_SSL_ENGINE_INITFAILED:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CIPHER:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_USE_SSL_FAILED:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_SHUTDOWN_FAILED:
    case CURLE_SSL_CRL_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_SSL_PINNEDPUBKEYNOTMATCH:
    case CURLE_SSL_INVALIDCERTSTATUS:
        return Outcome::tls_error;
    case CURLE_UNSUPPORTED_PROTOCOL:
        // Said of a URL that is not HTTP, and of an answer that is not.
        return info<long>(easy, CURLINFO_REQUEST_SIZE) > 0 ? Outcome::bad_response
                                                           : Outcome::refused_request;
    case CURLE_WEIRD_SERVER_REPLY:
        return Outcome::bad_response;
    case CURLE_URL_MALFORMAT:
        return Outcome::refused_request;
    case CURLE_FILESIZE_EXCEEDED:
        return Outcome::response_too_large;
    case CURLE_OUT_OF_MEMORY:
        return Outcome::out_of_memory;
    default:
        return Outcome::other_error;
    }
}

// A multi handle: the transfers in it share its connections and its cache of names.
struct Lane {
    Lane(Poller& poller, std::uint32_t index, long connections);

    // Puts a fresh multi in place of one that broke down. Throws std::bad_alloc.
    void renew();

    static int on_socket(CURL*, curl_socket_t socket, int what, void* self, void* known) noexcept;
    static int on_timer(CURLM*, long timeout_ms, void* self) noexcept;

    Poller& poller;
    std::uint32_t index; // in Impl::lanes
    long connections;
    std::size_t requests = 0;                          // running in it
    std::optional<Poller::Clock::time_point> deadline; // when libcurl wants to be called
    Multi multi;                                       // goes first: it calls back until it is gone
};

Lane::Lane(Poller& p, std::uint32_t i, long c) : poller(p), index(i), connections(c) {
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

struct Transfer;

// The requests that are running to one host: scheme, name and port.
struct Host {
    std::size_t requests = 0;   // those that wait included
    std::size_t connecting = 0; // begun, and not connected
    bool reached = false;       // the last to try has connected
    bool failed = false;        // the last to try has not
    std::deque<Transfer*> waiting;

    bool open() const noexcept { return reached || connecting < (failed ? most_to_unreached : 1); }
};

// The URL up to its path.
std::string_view host_part(std::string_view url) noexcept {
    const std::size_t scheme = url.find("://");
    return url.substr(0, url.find_first_of("/?#", scheme == url.npos ? 0 : scheme + 3));
}

// One request on its way, with the libcurl handle that carries it. Handles are used again for
// later requests: what never changes is set once.
struct Transfer {
    Transfer(const Options& options, CURLSH* share);

    // Gives libcurl the request. Throws Refusal or std::bad_alloc.
    void prepare();
    // Each lets go of the request: the handle must be out of the multi. end() fills in the
    // response, forget() drops that too.
    void end(CURLcode code) noexcept;
    void end(Outcome outcome, std::string_view error) noexcept;
    void forget() noexcept;

    static std::size_t on_header(char*, std::size_t, std::size_t bytes, void* self) noexcept;
    static std::size_t on_body(char* data, std::size_t, std::size_t bytes, void* self) noexcept;
    static int on_connected(void* self, char*, char*, int, int) noexcept;

    Easy easy;
    Host* host = nullptr;    // while it is running
    Lane* lane = nullptr;    // while libcurl has it
    bool connecting = false; // counted by the host
    Request request;
    Response response;
    std::vector<curl_slist> headers; // nodes that point into the request: nothing is copied
    std::size_t max_response;
    std::size_t header_bytes = 0;
    std::size_t body_bytes = 0;
    std::optional<Outcome> broken_off; // why a callback stopped libcurl
    std::array<char, CURL_ERROR_SIZE> error{};
    std::size_t position = 0; // in Impl::running
};

Transfer::Transfer(const Options& options, CURLSH* share)
    : easy(curl_easy_init()), max_response(options.max_response) {
    CURL* const e = easy.get();
    if (!e)
        throw std::bad_alloc();
    set(e, CURLOPT_PRIVATE, this);
    set(e, CURLOPT_ERRORBUFFER, error.data());
    set(e, CURLOPT_SHARE, share);
    set(e, CURLOPT_PREREQFUNCTION, &Transfer::on_connected);
    set(e, CURLOPT_PREREQDATA, this);
    set(e, CURLOPT_HEADERFUNCTION, &Transfer::on_header);
    set(e, CURLOPT_HEADERDATA, this);
    set(e, CURLOPT_WRITEFUNCTION, &Transfer::on_body);
    set(e, CURLOPT_WRITEDATA, this);
    set(e, CURLOPT_MAXFILESIZE_LARGE, static_cast<curl_off_t>(max_response));
    set(e, CURLOPT_BUFFERSIZE, receive_buffer);
    set(e, CURLOPT_USERAGENT, options.user_agent.c_str());
    if (!options.ca_file.empty())
        set(e, CURLOPT_CAINFO, options.ca_file.c_str());

    set(e, CURLOPT_PROTOCOLS_STR, "http,https");
    set(e, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
    set(e, CURLOPT_FOLLOWLOCATION, 0L);
    set(e, CURLOPT_PROXY, "");    // not even the one in the environment
    set(e, CURLOPT_NOSIGNAL, 1L); // no SIGALRM for name lookups
    // Otherwise a lookup that times out blocks the thread until getaddrinfo returns.
    set(e, CURLOPT_QUICK_EXIT, 1L);
    set(e, CURLOPT_TCP_NODELAY, 1L);
}

void Transfer::prepare() {
    CURL* const e = easy.get();
    if (!core::is_header_name(request.method))
        throw Refusal(Outcome::refused_request, "method is malformed");

    // A header without a value switches off the one that libcurl would add by itself: it would
    // call the body a form, and wait for the receiver's consent to send a large one.
    static char no_content_type[] = "Content-Type:";
    static char no_expect[] = "Expect:";
    headers.clear();
    headers.reserve(request.headers.size() + 2);
    for (std::string& header : request.headers) {
        const std::size_t colon = std::min(header.find(':'), header.size());
        if (colon == header.size() ||
            !core::is_header_name(std::string_view(header).substr(0, colon)) ||
            !core::is_header_value(std::string_view(header).substr(colon)))
            throw Refusal(Outcome::refused_request, "header is malformed");
        // For the same reason an empty one has its own notation.
        if (header.find_first_not_of(" \t", colon + 1) == std::string::npos)
            header.replace(colon, std::string::npos, ";");
        headers.push_back({header.data(), nullptr});
    }
    headers.push_back({no_content_type, nullptr});
    headers.push_back({no_expect, nullptr});
    for (std::size_t i = 1; i < headers.size(); ++i)
        headers[i - 1].next = &headers[i];

    set(e, CURLOPT_URL, request.url.c_str());
    set(e, CURLOPT_HTTPHEADER, headers.data());
    set(e, CURLOPT_CONNECTTIMEOUT_MS, to_curl(request.connect_timeout));
    set(e, CURLOPT_TIMEOUT_MS, to_curl(request.timeout));
    const bool plain_get = request.method == "GET" && request.body.empty();
    const bool head = request.method == "HEAD";
    if (plain_get) {
        set(e, CURLOPT_HTTPGET, 1L);
    } else if (head) {
        set(e, CURLOPT_NOBODY, 1L);
    } else {
        set(e, CURLOPT_POST, 1L);
        set(e, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
        set(e, CURLOPT_POSTFIELDS, request.body.data()); // not copied
    }
    set(e, CURLOPT_CUSTOMREQUEST,
        plain_get || head || request.method == "POST" ? nullptr : request.method.c_str());

    header_bytes = 0;
    body_bytes = 0;
    broken_off.reset();
    error[0] = '\0';
}

void Transfer::end(CURLcode code) noexcept {
    CURL* const e = easy.get();
    response.status = static_cast<int>(info<long>(e, CURLINFO_RESPONSE_CODE));
    response.elapsed = microseconds(info<curl_off_t>(e, CURLINFO_TOTAL_TIME_T));
    if (const char* type = info<const char*>(e, CURLINFO_CONTENT_TYPE)) {
        try {
            response.content_type = std::string_view(type).substr(0, max_content_type);
        } catch (const std::bad_alloc&) {
            // An answer without its type is better than none.
        }
    }
    if (broken_off == Outcome::response_too_large)
        end(*broken_off, "response is too large");
    else if (broken_off)
        end(*broken_off, "out of memory");
    else if (code == CURLE_OK)
        end(Outcome::answered, "");
    else
        end(outcome_of(code, e), error[0] ? error.data() : curl_easy_strerror(code));
}

void Transfer::end(Outcome outcome, std::string_view text) noexcept {
    response.outcome = outcome;
    try {
        response.error = text;
    } catch (const std::bad_alloc&) {
        // The outcome says enough.
    }
    request = Request();
}

void Transfer::forget() noexcept {
    request = Request();
    response = Response();
}

std::size_t Transfer::on_header(char*, std::size_t, std::size_t bytes, void* self) noexcept {
    auto& t = *static_cast<Transfer*>(self);
    t.header_bytes += bytes;
    if (t.header_bytes <= max_response_headers)
        return bytes;
    t.broken_off = Outcome::response_too_large;
    return 0;
}

std::size_t Transfer::on_body(char* data, std::size_t, std::size_t bytes, void* self) noexcept {
    auto& t = *static_cast<Transfer*>(self);
    t.body_bytes += bytes;
    if (t.body_bytes > t.max_response) {
        t.broken_off = Outcome::response_too_large;
        return 0;
    }
    const std::size_t room = t.request.keep_response - t.response.body.size();
    t.response.truncated = t.response.truncated || bytes > room;
    try {
        t.response.body.append(data, std::min(bytes, room));
    } catch (...) { // bad_alloc; or length_error, of a keep_response beyond all memory
        t.broken_off = Outcome::out_of_memory;
        return 0;
    }
    return bytes;
}

// Also where a connection is used again.
int Transfer::on_connected(void* self, char*, char*, int, int) noexcept {
    auto& t = *static_cast<Transfer*>(self);
    t.host->reached = true;
    t.host->failed = false;
    if (std::exchange(t.connecting, false))
        --t.host->connecting;
    return CURL_PREREQFUNC_OK;
}

} // namespace

std::string_view name(Outcome outcome) noexcept {
    switch (outcome) {
    case Outcome::answered:
        return "answered";
    case Outcome::timeout:
        return "timeout";
    case Outcome::dns_error:
        return "dns_error";
    case Outcome::connection_refused:
        return "connection_refused";
    case Outcome::unreachable:
        return "unreachable";
    case Outcome::connection_reset:
        return "connection_reset";
    case Outcome::tls_error:
        return "tls_error";
    case Outcome::bad_response:
        return "bad_response";
    case Outcome::response_too_large:
        return "response_too_large";
    case Outcome::refused_request:
        return "refused_request";
    case Outcome::out_of_memory:
        return "out_of_memory";
    case Outcome::other_error:
        break;
    }
    return "other_error";
}

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
    explicit Impl(const Options& o) : options(o), names(curl_share_init()) {
        if (!names)
            throw std::bad_alloc();
        curl_share_setopt(names.get(), CURLSHOPT_SHARE, CURL_LOCK_DATA_DNS);
        idle_transfer();
    }
    ~Impl() {
        while (!running.empty())
            leave_running(*running.back());
    }

    Transfer& idle_transfer();
    Host& host_of(std::string_view url);
    Lane& lane_with_room();
    void run(Lane& lane, int socket, int events);
    bool run_due();
    void collect(Lane& lane);
    void start_over(Lane& lane, CURLMcode why);
    void begin(Transfer& t) noexcept;
    bool begin_waiting() noexcept;
    void fail(Transfer& t, Outcome outcome, std::string_view error) noexcept;
    void leave_running(Transfer& t) noexcept;
    template <class Condition>
    bool cancel_if(Condition condition) noexcept;

    Options options;
    Poller poller;
    Share names; // looked up for one lane, known to all
    std::map<std::string, Host, std::less<>> hosts;
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
        transfers.push_back(std::make_unique<Transfer>(options, names.get()));
        idle.push_back(transfers.back().get());
    }
    return *idle.back();
}

Host& Client::Impl::host_of(std::string_view url) {
    const std::string_view part = host_part(url);
    const auto known = hosts.find(part);
    return known != hosts.end() ? known->second : hosts[std::string(part)];
}

// The first with room, so that few requests share few connections.
Lane& Client::Impl::lane_with_room() {
    for (const auto& lane : lanes)
        if (lane->requests < lane_requests)
            return *lane;
    // So many that options.connections is what all of them keep.
    const long most = std::max(1L, (options.connections + lane_connections - 1) / lane_connections);
    if (static_cast<long>(lanes.size()) < most) {
        lanes.push_back(std::make_unique<Lane>(poller, static_cast<std::uint32_t>(lanes.size()),
                                               std::max(1L, options.connections / most)));
        return *lanes.back();
    }
    return **std::min_element(lanes.begin(), lanes.end(), [](const auto& a, const auto& b) {
        return a->requests < b->requests;
    });
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
        if (t.connecting) {
            t.host->reached = false;
            t.host->failed = true;
        }
        leave_running(t);
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
void Client::Impl::begin(Transfer& t) noexcept {
    try {
        Lane& lane = lane_with_room();
        const CURLMcode code = curl_multi_add_handle(lane.multi.get(), t.easy.get());
        if (code != CURLM_OK)
            return fail(t, Outcome::other_error, curl_multi_strerror(code));
        ++lane.requests;
        t.lane = &lane;
        t.connecting = true;
        ++t.host->connecting;
        poller.wake_by(Poller::Clock::now());
    } catch (const std::bad_alloc&) {
        fail(t, Outcome::out_of_memory, "out of memory");
    }
}

// Whether any that waited for its host to be reached began.
bool Client::Impl::begin_waiting() noexcept {
    bool any = false;
    for (auto& [url, host] : hosts)
        while (!host.waiting.empty() && host.open()) {
            Transfer& t = *host.waiting.front();
            host.waiting.pop_front();
            begin(t);
            any = true;
        }
    std::erase_if(hosts, [](const auto& entry) { return entry.second.requests == 0; });
    return any;
}

void Client::Impl::fail(Transfer& t, Outcome outcome, std::string_view text) noexcept {
    leave_running(t);
    t.end(outcome, text);
    ended.push_back(&t);
    poller.wake_by(Poller::Clock::now());
}

void Client::Impl::leave_running(Transfer& t) noexcept {
    Host& host = *std::exchange(t.host, nullptr);
    if (t.lane) {
        curl_multi_remove_handle(t.lane->multi.get(), t.easy.get());
        --t.lane->requests;
        t.lane = nullptr;
    } else {
        std::erase(host.waiting, &t);
    }
    if (std::exchange(t.connecting, false))
        --host.connecting;
    --host.requests;
    if (!host.waiting.empty())
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
        leave_running(t);
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

void Client::start(Request&& request) {
    Transfer& t = impl_->idle_transfer();
    impl_->idle.pop_back();
    t.request = std::move(request);
    t.response = Response();
    t.response.tag = t.request.tag;
    try {
        t.prepare();
        Host& host = impl_->host_of(t.request.url);
        const bool open = host.open();
        if (!open)
            host.waiting.push_back(&t);
        ++host.requests;
        t.host = &host;
        t.position = impl_->running.size();
        impl_->running.push_back(&t);
        if (open)
            impl_->begin(t);
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

void Client::cancel_all() noexcept {
    impl_->cancel_if([](const Transfer&) { return true; });
}

std::size_t Client::in_flight() const noexcept {
    return impl_->running.size();
}

} // namespace jobq::http
