#pragma once

#include <csignal>
#include <memory>
#include <new>
#include <stdexcept>

#include <curl/curl.h>

#include "http/client.hpp"

// libcurl's handles as owners, and its options and results with types. Only src/http sees it.
namespace jobq::http {

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

} // namespace jobq::http
