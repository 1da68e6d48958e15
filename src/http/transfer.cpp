#include "http/transfer.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "core/header.hpp"
#include "http/outcome.hpp"

namespace jobq::http {

using std::chrono::microseconds;
using std::chrono::milliseconds;

namespace {

// libcurl keeps the headers of a response in memory: more than this is no answer.
constexpr std::size_t max_response_headers = std::size_t{128} << 10;
constexpr std::size_t max_content_type = 255;
// One for each request in flight, so not libcurl's 16 kB: answers to webhooks are short.
constexpr long receive_buffer = 4096;

long to_curl(milliseconds timeout) noexcept {
    // 0 would mean no limit, and libcurl keeps them in an int.
    constexpr milliseconds longest = std::chrono::hours(24 * 20);
    return static_cast<long>(std::clamp(timeout, milliseconds(1), longest).count());
}

} // namespace

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

} // namespace jobq::http
