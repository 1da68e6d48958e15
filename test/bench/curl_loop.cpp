// The physical limit of deliveries: a bare libcurl multi loop that POSTs the bodies and headers
// that jobq sends, without a database.
//
//   curl_loop URL REQUESTS CONNECTIONS
//
// Prints one line of JSON. Exits 1 if a request failed or was not answered with 2xx.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <curl/curl.h>
#include <sys/epoll.h>
#include <sys/resource.h>

#include "payload.hpp"

namespace {

struct Loop {
    CURLM* multi = curl_multi_init();
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    long timeout = 0; // ms; -1: none
};

int on_socket(CURL*, curl_socket_t socket, int what, void* loop, void* known) {
    auto& l = *static_cast<Loop*>(loop);
    epoll_event event{};
    event.data.fd = socket;
    if (what & CURL_POLL_IN)
        event.events |= EPOLLIN;
    if (what & CURL_POLL_OUT)
        event.events |= EPOLLOUT;
    if (what == CURL_POLL_REMOVE) {
        epoll_ctl(l.epoll, EPOLL_CTL_DEL, socket, nullptr);
    } else if (known) {
        epoll_ctl(l.epoll, EPOLL_CTL_MOD, socket, &event);
    } else {
        epoll_ctl(l.epoll, EPOLL_CTL_ADD, socket, &event);
        curl_multi_assign(l.multi, socket, &l);
    }
    return 0;
}

int on_timer(CURLM*, long timeout, void* loop) {
    static_cast<Loop*>(loop)->timeout = timeout;
    return 0;
}

std::size_t ignore(char*, std::size_t size, std::size_t count, void*) {
    return size * count;
}

struct Request {
    CURL* easy = nullptr;
    curl_slist* headers = nullptr;
    std::string body;
};

void set(Request& r, const char* url, std::uint64_t number) {
    char text[96];
    curl_slist_free_all(r.headers);
    r.headers = curl_slist_append(nullptr, "content-type: application/json");
    std::snprintf(text, sizeof text, "webhook-id: 01900000-0000-7000-8000-%012llu",
                  static_cast<unsigned long long>(number));
    r.headers = curl_slist_append(r.headers, text);
    for (const char* header : {"jobq-queue: bench", "jobq-attempt: 1", "Expect:"})
        r.headers = curl_slist_append(r.headers, header);
    r.body = bench::payload(number);
    curl_easy_setopt(r.easy, CURLOPT_URL, url);
    curl_easy_setopt(r.easy, CURLOPT_HTTPHEADER, r.headers);
    curl_easy_setopt(r.easy, CURLOPT_POSTFIELDS, r.body.c_str());
    curl_easy_setopt(r.easy, CURLOPT_POSTFIELDSIZE, static_cast<long>(r.body.size()));
}

double cpu_seconds() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

} // namespace

int main(int argc, char** argv) {
    if (argc != 4) {
        std::fprintf(stderr, "curl_loop URL REQUESTS CONNECTIONS\n");
        return 1;
    }
    const char* url = argv[1];
    const std::uint64_t total = std::strtoull(argv[2], nullptr, 10);
    const std::size_t connections = std::strtoul(argv[3], nullptr, 10);
    curl_global_init(CURL_GLOBAL_ALL);
    Loop loop;
    curl_multi_setopt(loop.multi, CURLMOPT_SOCKETFUNCTION, on_socket);
    curl_multi_setopt(loop.multi, CURLMOPT_SOCKETDATA, &loop);
    curl_multi_setopt(loop.multi, CURLMOPT_TIMERFUNCTION, on_timer);
    curl_multi_setopt(loop.multi, CURLMOPT_TIMERDATA, &loop);
    curl_multi_setopt(loop.multi, CURLMOPT_MAXCONNECTS, static_cast<long>(connections));

    std::uint64_t started = 0, answered = 0, failed = 0;
    std::vector<Request> requests(connections);
    const auto began = std::chrono::steady_clock::now();
    const double cpu_before = cpu_seconds();
    for (Request& r : requests) {
        if (started == total)
            break;
        r.easy = curl_easy_init();
        curl_easy_setopt(r.easy, CURLOPT_PRIVATE, &r);
        curl_easy_setopt(r.easy, CURLOPT_WRITEFUNCTION, ignore);
        curl_easy_setopt(r.easy, CURLOPT_NOSIGNAL, 1L);
        curl_easy_setopt(r.easy, CURLOPT_PROXY, "");
        curl_easy_setopt(r.easy, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1);
        set(r, url, ++started);
        curl_multi_add_handle(loop.multi, r.easy);
    }
    std::vector<epoll_event> events(connections + 1);
    while (answered + failed < total) {
        int running = 0;
        int n = epoll_wait(loop.epoll, events.data(), static_cast<int>(events.size()),
                           static_cast<int>(loop.timeout));
        if (n <= 0) {
            loop.timeout = -1;
            curl_multi_socket_action(loop.multi, CURL_SOCKET_TIMEOUT, 0, &running);
        }
        for (int i = 0; i < n; ++i) {
            const epoll_event& event = events[static_cast<std::size_t>(i)];
            int what = (event.events & EPOLLIN ? CURL_CSELECT_IN : 0) |
                       (event.events & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
                       (event.events & (EPOLLERR | EPOLLHUP) ? CURL_CSELECT_ERR : 0);
            curl_multi_socket_action(loop.multi, event.data.fd, what, &running);
        }
        int left = 0;
        while (CURLMsg* message = curl_multi_info_read(loop.multi, &left)) {
            CURL* easy = message->easy_handle;
            long status = 0;
            Request* request = nullptr;
            curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
            curl_easy_getinfo(easy, CURLINFO_PRIVATE, &request);
            ++(message->data.result == CURLE_OK && status / 100 == 2 ? answered : failed);
            curl_multi_remove_handle(loop.multi, easy);
            if (started < total) {
                set(*request, url, ++started);
                curl_multi_add_handle(loop.multi, easy);
            }
        }
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    std::printf(
        R"({"requests": %llu, "failed": %llu, "seconds": %.4f, "rate": %.2f, "cpu_us": %.2f})"
        "\n",
        static_cast<unsigned long long>(answered), static_cast<unsigned long long>(failed),
        took.count(), static_cast<double>(answered) / took.count(),
        (cpu_seconds() - cpu_before) / static_cast<double>(total) * 1e6);
    for (Request& r : requests) {
        curl_easy_cleanup(r.easy);
        curl_slist_free_all(r.headers);
    }
    curl_multi_cleanup(loop.multi);
    return failed == 0 ? 0 : 1;
}
