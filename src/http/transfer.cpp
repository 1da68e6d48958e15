#include "http/transfer.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <ctime>
#include <new>
#include <system_error>
#include <utility>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/header.hpp"
#include "http/outcome.hpp"
#include "http/url.hpp"

namespace jobq::http {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

// libcurl keeps the headers of a response in memory: more than this is no answer.
constexpr std::size_t max_response_headers = std::size_t{128} << 10;
constexpr std::size_t max_content_type = 255;
// One for each request in flight, so not libcurl's 16 kB: answers to webhooks are short.
constexpr long receive_buffer = 4096;
// For the system's certificates libcurl reads and parses a quarter of a megabyte for each
// connection (20 ms), unless it may keep the result; changes are seen after this time.
constexpr long keep_ca_seconds = 3600;
// A file of one's own takes the place of the system's there, and what it says now counts: it is not
// kept, unless it is so long that to read it for each connection would hold up all others.
constexpr off_t short_ca_bytes = off_t{16} << 10;
constexpr long keep_long_ca_seconds = 10;
// The kernel gives a connection up whose peer has acknowledged nothing for this long. With HTTP/2
// one that is dead would otherwise be used by request after request, as none of them closes it.
constexpr milliseconds unacknowledged = seconds(20);
constexpr seconds longest_retry_after = std::chrono::hours(24 * 365);

long to_curl(milliseconds timeout) noexcept {
    // 0 would mean no limit, and libcurl keeps them in an int.
    constexpr milliseconds longest = std::chrono::hours(24 * 20);
    return static_cast<long>(std::clamp(timeout, milliseconds(1), longest).count());
}

// libcurl reads these files in step(): so they must be there, and not be something that has no end
// or that a read waits for.
// Returns its length.
off_t check_file(std::string_view what, const std::string& file) {
    constexpr off_t most_bytes = off_t{4} << 20;
    if (file.empty())
        return 0;
    const auto refuse = [&](const std::string& why) {
        const std::string text = "could not use " + std::string(what) + " \"" + file + "\": " + why;
        throw Refusal(Outcome::tls_error, text.c_str());
    };
    struct stat found {};
    if (::stat(file.c_str(), &found) != 0 || ::access(file.c_str(), R_OK) != 0)
        refuse(std::generic_category().message(errno));
    if (!S_ISREG(found.st_mode))
        refuse("it is not a regular file");
    if (found.st_size > most_bytes)
        refuse("it is longer than " + std::to_string(most_bytes) + " bytes");
    return found.st_size;
}

std::optional<core::Address> address_of(const sockaddr& generic) noexcept {
    if (generic.sa_family == AF_INET) {
        std::array<std::uint8_t, 4> bytes;
        std::memcpy(bytes.data(), &reinterpret_cast<const sockaddr_in&>(generic).sin_addr, 4);
        return core::Address::v4(bytes);
    }
    if (generic.sa_family == AF_INET6) {
        std::array<std::uint8_t, 16> bytes;
        std::memcpy(bytes.data(), &reinterpret_cast<const sockaddr_in6&>(generic).sin6_addr, 16);
        return core::Address::v6(bytes);
    }
    return std::nullopt;
}

// Of inet_ntop's text.
std::optional<core::Address> address_of(const char* text) noexcept {
    std::array<std::uint8_t, 4> four;
    if (::inet_pton(AF_INET, text, four.data()) == 1)
        return core::Address::v4(four);
    std::array<std::uint8_t, 16> sixteen;
    if (::inet_pton(AF_INET6, text, sixteen.data()) == 1)
        return core::Address::v6(sixteen);
    return std::nullopt;
}

// RFC 9110, 10.2.3: delay-seconds or an HTTP-date.
std::optional<seconds> parse_retry_after(const char* text) noexcept {
    const char* const end = text + std::strlen(text);
    const char* const digits_end =
        std::find_if_not(text, end, [](char c) { return c >= '0' && c <= '9'; });
    if (digits_end == end && text != end) {
        std::int64_t value = 0;
        const bool fits = std::from_chars(text, end, value).ec == std::errc();
        return fits ? std::min(seconds(value), longest_retry_after) : longest_retry_after;
    }
    const time_t date = curl_getdate(text, nullptr);
    if (date == -1)
        return std::nullopt;
    return std::clamp(seconds(date - std::time(nullptr)), seconds(0), longest_retry_after);
}

// Tells connections apart: two with the same have both ports in common, and most likely the
// address.
std::uint64_t connection_number(const char* ip, int port, int local_port) noexcept {
    const std::uint64_t address = std::hash<std::string_view>()(ip) & 0xffffffff;
    return address << 32 | static_cast<std::uint64_t>(port & 0xffff) << 16 |
           static_cast<std::uint64_t>(local_port & 0xffff);
}

} // namespace

Common::Common(const Options& o) : options(o), names(curl_share_init()) {
    const Easy easy(curl_easy_init());
    if (!names || !easy)
        throw std::bad_alloc();
    curl_share_setopt(names.get(), CURLSHOPT_SHARE, CURL_LOCK_DATA_DNS);
    if (const char* const file = info<const char*>(easy.get(), CURLINFO_CAINFO))
        system_ca_file = file;
    if (const char* const path = info<const char*>(easy.get(), CURLINFO_CAPATH))
        system_ca_path = path;
    if (options.max_sockets > 0)
        most_sockets = static_cast<std::size_t>(options.max_sockets);
}

Transfer::Transfer(Common& c)
    : common(c), easy(curl_easy_init()), ca_file_{CURLOPT_CAINFO, nullptr, {}},
      proxy_ca_file_{CURLOPT_PROXY_CAINFO, nullptr, {}}, client_cert_{CURLOPT_SSLCERT, nullptr, {}},
      client_key_{CURLOPT_SSLKEY, nullptr, {}}, proxy_{CURLOPT_PROXY, "", {}} {
    CURL* const e = easy.get();
    if (!e)
        throw std::bad_alloc();
    set(e, CURLOPT_PRIVATE, this);
    set(e, CURLOPT_ERRORBUFFER, error.data());
    set(e, CURLOPT_SHARE, common.names.get());
    set(e, CURLOPT_OPENSOCKETFUNCTION, &Transfer::on_open_socket);
    set(e, CURLOPT_OPENSOCKETDATA, this);
    set(e, CURLOPT_CLOSESOCKETFUNCTION, &Transfer::on_close_socket);
    set(e, CURLOPT_CLOSESOCKETDATA, &common); // a connection outlives the transfer that opened it
    set(e, CURLOPT_RESOLVER_START_FUNCTION, &Transfer::on_lookup);
    set(e, CURLOPT_RESOLVER_START_DATA, this);
    set(e, CURLOPT_PREREQFUNCTION, &Transfer::on_connected);
    set(e, CURLOPT_PREREQDATA, this);
    set(e, CURLOPT_HEADERFUNCTION, &Transfer::on_header);
    set(e, CURLOPT_HEADERDATA, this);
    set(e, CURLOPT_WRITEFUNCTION, &Transfer::on_body);
    set(e, CURLOPT_WRITEDATA, this);
    set(e, CURLOPT_MAXFILESIZE_LARGE, static_cast<curl_off_t>(common.options.max_response));
    set(e, CURLOPT_BUFFERSIZE, receive_buffer);
    set(e, CURLOPT_USERAGENT, common.options.user_agent.c_str());

    set(e, CURLOPT_PROTOCOLS_STR, "http,https");
    set(e, CURLOPT_FOLLOWLOCATION, 0L);
    set(e, CURLOPT_NOPROXY, ""); // as with the proxy: not the environment's
    set(e, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    set(e, CURLOPT_DNS_CACHE_TIMEOUT, static_cast<long>(common.options.keep_names.count()));
    set(e, CURLOPT_NOSIGNAL, 1L); // no SIGALRM for name lookups
    // Otherwise a lookup that times out blocks the thread until getaddrinfo returns.
    set(e, CURLOPT_QUICK_EXIT, 1L);
    set(e, CURLOPT_TCP_NODELAY, 1L);
    // OpenSSL would ask at the terminal for that of an encrypted key.
    set(e, CURLOPT_KEYPASSWD, "");

    // libcurl keeps what it has read of a file, but not where there is a directory too.
    if (!common.system_ca_file.empty()) {
        set(e, CURLOPT_CAPATH, nullptr);
        set(e, CURLOPT_PROXY_CAPATH, nullptr);
        ca_file_.unset = proxy_ca_file_.unset = common.system_ca_file.c_str();
    }
}

void Transfer::keep(Kept& kept, const std::string& text) {
    if (kept.last == text)
        return;
    kept.last.reset();
    set(easy.get(), kept.option, text.empty() ? kept.unset : text.c_str());
    kept.last = text;
}

// What libcurl compares before it uses a connection again, but for the key, which belongs to its
// certificate.
void Transfer::prepare_connection() {
    CURL* const e = easy.get();
    if (!request.proxy.empty())
        if (const auto wrong = check_proxy(request.proxy))
            throw Refusal(Outcome::refused_request, wrong->c_str());
    keep(proxy_, request.proxy);
    off_t ca_bytes = 0;
    if (is_https(request.url)) {
        ca_bytes = check_file("ca_file", request.ca_file);
        check_file("client_cert_file", request.client_cert_file);
        check_file("client_key_file", request.client_key_file);
    }

    long version = CURL_HTTP_VERSION_1_1;
    if (request.version != Version::http_1_1 && is_https(request.url))
        version = CURL_HTTP_VERSION_2TLS;
    else if (request.version == Version::http_2)
        version = CURL_HTTP_VERSION_2_PRIOR_KNOWLEDGE;
    set(e, CURLOPT_HTTP_VERSION, version);

    if (ca_file_.last != request.ca_file && common.system_ca_file.empty() &&
        !common.system_ca_path.empty()) {
        ca_file_.last.reset(); // not known until all of it is set
        const char* const path = request.ca_file.empty() ? common.system_ca_path.c_str() : nullptr;
        set(e, CURLOPT_CAPATH, path);
        set(e, CURLOPT_PROXY_CAPATH, path);
    }
    keep(ca_file_, request.ca_file);
    keep(proxy_ca_file_, request.ca_file);
    set(e, CURLOPT_CA_CACHE_TIMEOUT,
        request.ca_file.empty()     ? keep_ca_seconds
        : ca_bytes > short_ca_bytes ? keep_long_ca_seconds
                                    : 0L);
    keep(client_cert_, request.client_cert_file);
    keep(client_key_, request.client_key_file);
}

void Transfer::prepare() {
    CURL* const e = easy.get();
    begun_again_ = 0;
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
    prepare_connection();
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
}

void Transfer::begin() noexcept {
    header_bytes = 0;
    body_bytes = 0;
    broken_off.reset();
    address.reset();
    address_refused = false;
    tried_address = false;
    turned_away = false;
    connected = false;
    error[0] = '\0';
}

bool Transfer::may_begin_again(CURLcode code) noexcept {
    constexpr int most = 3;
    const microseconds elapsed(info<curl_off_t>(easy.get(), CURLINFO_TOTAL_TIME_T));
    return code == CURLE_SEND_ERROR && std::strstr(error.data(), "Connection died") != nullptr &&
           elapsed < request.timeout / (most + 1) && begun_again_++ < most;
}

void Transfer::end(CURLcode code) noexcept {
    CURL* const e = easy.get();
    response.status = static_cast<int>(info<long>(e, CURLINFO_RESPONSE_CODE));
    response.elapsed = microseconds(info<curl_off_t>(e, CURLINFO_TOTAL_TIME_T));
    // What was sent to a proxy before is counted too, hence the other condition.
    response.sent = connected && info<long>(e, CURLINFO_REQUEST_SIZE) > 0;
    if (response.status != 0)
        read_headers();
    std::string text;
    try {
        if (address)
            response.address = core::to_string(*address);
        if (address_refused)
            text = "address of " + std::string(request.proxy.empty() ? "host" : "proxy") + " \"" +
                   std::string(host_name(request.proxy.empty() ? request.url : request.proxy)) +
                   "\" is not allowed";
    } catch (const std::bad_alloc&) {
        // The outcome says enough.
    }
    if (address_refused && code != CURLE_OK)
        end(Outcome::address_not_allowed, text);
    else if (broken_off == Outcome::response_too_large)
        end(*broken_off, "response is too large");
    else if (broken_off)
        end(*broken_off, "out of memory");
    else if (code == CURLE_OK)
        end(Outcome::answered, "");
    else
        end(refused_certificate(code) ? Outcome::tls_error : outcome_of(code, e, connected),
            error[0] ? error.data() : curl_easy_strerror(code));
}

// With TLS 1.3 the handshake is over for the client before the server has seen its certificate:
// what the server thinks of it comes in place of an answer, and only libcurl's text tells.
bool Transfer::refused_certificate(CURLcode code) const noexcept {
    return (code == CURLE_RECV_ERROR || code == CURLE_SEND_ERROR) && response.status == 0 &&
           std::strstr(error.data(), " alert ") != nullptr;
}

void Transfer::read_headers() noexcept {
    CURL* const e = easy.get();
    switch (info<long>(e, CURLINFO_HTTP_VERSION)) {
    case CURL_HTTP_VERSION_1_0:
        response.http_version = 10;
        break;
    case CURL_HTTP_VERSION_1_1:
        response.http_version = 11;
        break;
    case CURL_HTTP_VERSION_2_0:
        response.http_version = 20;
        break;
    }
    if (const char* type = info<const char*>(e, CURLINFO_CONTENT_TYPE)) {
        try {
            response.content_type = std::string_view(type).substr(0, max_content_type);
        } catch (const std::bad_alloc&) {
            // An answer without its type is better than none.
        }
    }
    const auto value_of = [e](const char* name) -> const char* {
        curl_header* found = nullptr;
        constexpr int last_request = -1;
        return curl_easy_header(e, name, 0, CURLH_HEADER, last_request, &found) == CURLHE_OK
                   ? found->value
                   : nullptr;
    };
    if (const char* const wait = value_of("retry-after"))
        response.retry_after = parse_retry_after(wait);
    if (const char* const no = value_of("jobq-no-retry"))
        response.no_retry = ::strcasecmp(no, "true") == 0 || std::strcmp(no, "1") == 0;
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
    if (t.body_bytes > t.common.options.max_response) {
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

// Called also for a name that needs no lookup, but not for one that libcurl has kept.
int Transfer::on_lookup(void*, void*, void* self) noexcept {
    auto& t = *static_cast<Transfer*>(self);
    if (t.common.gate.may_look_up(t, Gate::Clock::now()))
        return 0;
    t.turned_away = true;
    return 1;
}

// libcurl goes on with the next address where it gets no socket.
curl_socket_t Transfer::on_open_socket(void* self, curlsocktype, curl_sockaddr* to) noexcept {
    auto& t = *static_cast<Transfer*>(self);
    t.common.gate.found(t);
    const auto address = address_of(to->addr);
    if (t.common.allowed && !(address && t.common.allowed(*address))) {
        if (!t.tried_address) {
            t.address = address;
            t.address_refused = true;
        }
        return CURL_SOCKET_BAD;
    }
    if (t.common.sockets >= t.common.most_sockets) {
        t.turned_away = !t.tried_address;
        t.common.starved = true;
        return CURL_SOCKET_BAD;
    }
    const int socket = ::socket(to->family, to->socktype | SOCK_CLOEXEC, to->protocol);
    t.address = address;
    t.address_refused = false;
    t.turned_away = false;
    t.tried_address = true;
    if (socket < 0)
        return CURL_SOCKET_BAD;
    ++t.common.sockets;
    constexpr unsigned milliseconds = unacknowledged.count();
    ::setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, sizeof milliseconds);
    return socket;
}

int Transfer::on_close_socket(void* common, curl_socket_t socket) noexcept {
    auto& c = *static_cast<Common*>(common);
    --c.sockets;
    c.starved = false;
    return ::close(socket);
}

// Also where a connection is used again, which may have been opened when more was allowed.
int Transfer::on_connected(void* self, char* ip, char*, int port, int local_port) noexcept {
    auto& t = *static_cast<Transfer*>(self);
    t.address = address_of(ip);
    if (t.common.allowed && !(t.address && t.common.allowed(*t.address))) {
        t.address_refused = true;
        return CURL_PREREQFUNC_ABORT;
    }
    t.address_refused = false;
    t.connected = true;
    t.common.gate.connected(t, connection_number(ip, port, local_port));
    return CURL_PREREQFUNC_OK;
}

} // namespace jobq::http
