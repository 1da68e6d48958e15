// Times single jobs on an idle server: from the push, or from when a job is due, to the moment its
// body is received by a web server in this process. And what they are compared with: a NOTIFY from
// one connection to another, and a bare libcurl request to the same web server.
//
//   latency NAME JOBS PAUSE_MS DELAY_MS
//
// JOBS of each kind, one every PAUSE_MS; scheduled ones are pushed DELAY_MS before they are due.
// Connects by libpq's environment variables to a database that has jobq, and makes and drops a
// queue and an endpoint there. Prints one line of JSON: the times in milliseconds, in the order of
// pushes. Exits 1 if a job did not arrive, arrived before it was due, or arrived twice.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <curl/curl.h>
#include <libpq-fe.h>
#include <poll.h>

#include "payload.hpp"
#include "server.hpp"

namespace {

using bench::payload;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

[[noreturn]] void fail(const std::string& message) {
    std::fprintf(stderr, "latency: %s\n", message.c_str());
    std::_Exit(1);
}

std::int64_t ns(Clock::time_point time) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

// When each number arrived, in nanoseconds of Clock; 0: not yet.
class Arrivals {
public:
    explicit Arrivals(std::size_t count) : at_(count) {}
    void arrived(std::size_t number) {
        auto now = ns(Clock::now());
        std::int64_t none = 0;
        if (number >= at_.size() || !at_[number].compare_exchange_strong(none, now))
            ++unwanted_;
    }
    std::int64_t wait_for(std::size_t number) const {
        for (auto limit = Clock::now() + std::chrono::seconds(30); at_[number] == 0;) {
            if (Clock::now() > limit)
                fail("number " + std::to_string(number) + " did not arrive within 30 s");
            std::this_thread::sleep_for(std::chrono::microseconds(200));
        }
        return at_[number];
    }
    int unwanted() const { return unwanted_; }

private:
    std::vector<std::atomic<std::int64_t>> at_;
    std::atomic<int> unwanted_ = 0;
};

class Connection {
public:
    Connection() : connection_(PQconnectdb("")) {
        if (PQstatus(connection_.get()) != CONNECTION_OK)
            fail(PQerrorMessage(connection_.get()));
    }
    void run(const std::string& sql, const std::vector<std::string>& values = {}) {
        std::vector<const char*> texts;
        for (const auto& value : values)
            texts.push_back(value.c_str());
        check(PQexecParams(connection_.get(), sql.c_str(), static_cast<int>(values.size()), nullptr,
                           texts.data(), nullptr, nullptr, 0));
    }
    void prepare(const char* name, const char* sql) {
        check(PQprepare(connection_.get(), name, sql, 0, nullptr));
    }
    void run_prepared(const char* name, const std::vector<std::string>& values) {
        std::vector<const char*> texts;
        for (const auto& value : values)
            texts.push_back(value.c_str());
        check(PQexecPrepared(connection_.get(), name, static_cast<int>(values.size()), texts.data(),
                             nullptr, nullptr, 0));
    }
    PGconn* get() { return connection_.get(); }

private:
    void check(PGresult* result) {
        auto status = PQresultStatus(result);
        PQclear(result);
        if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK)
            fail(PQerrorMessage(connection_.get()));
    }
    struct Finish {
        void operator()(PGconn* connection) const { PQfinish(connection); }
    };
    std::unique_ptr<PGconn, Finish> connection_;
};

// The number in a payload.
std::size_t number_in(const std::string& body) {
    auto at = body.find(R"("n": ")");
    return at == std::string::npos ? ~std::size_t{0}
                                   : std::strtoull(body.c_str() + at + 6, nullptr, 10);
}

using Times = std::vector<double>; // ms

double ms_between(std::int64_t from, std::int64_t to) {
    return static_cast<double>(to - from) / 1e6;
}

// Calls send(i) every pause, count times; each returns when the way to be timed began.
template <class Send>
Times measure(std::size_t count, milliseconds pause, Arrivals& arrivals, std::size_t first,
              Send send) {
    std::vector<std::int64_t> began(count);
    auto next = Clock::now();
    for (std::size_t i = 0; i < count; ++i) {
        std::this_thread::sleep_until(next += pause);
        began[i] = send(first + i);
    }
    Times times;
    for (std::size_t i = 0; i < count; ++i)
        times.push_back(ms_between(began[i], arrivals.wait_for(first + i)));
    return times;
}

void print(const char* name, const Times& times, const char* end) {
    std::printf("\"%s\": [", name);
    for (std::size_t i = 0; i < times.size(); ++i)
        std::printf(i ? ",%.4f" : "%.4f", times[i]);
    std::printf("]%s", end);
}

struct Notifications {
    Times round;  // until the other's answer, a NOTIFY too, is back
    Times arrive; // until the other has it
};

// Waits up to 50 ms for what a connection is told, and returns the payloads.
std::vector<std::string> notices(Connection& connection) {
    pollfd ready{PQsocket(connection.get()), POLLIN, 0};
    std::vector<std::string> payloads;
    auto take = [&] {
        while (PGnotify* notice = PQnotifies(connection.get())) {
            payloads.push_back(notice->extra);
            PQfreemem(notice);
        }
    };
    take(); // what came with the result of a statement
    if (payloads.empty()) {
        ::poll(&ready, 1, 50);
        PQconsumeInput(connection.get());
        take();
    }
    return payloads;
}

Notifications notifications(std::size_t count, milliseconds pause) {
    constexpr const char* notify = "SELECT pg_notify($1, $2)";
    Connection one, other;
    Arrivals arrivals(count);
    std::atomic<bool> done = false;
    one.run("LISTEN bench_back");
    one.prepare("notify", notify);
    other.run("LISTEN bench_there");
    other.prepare("notify", notify);
    std::thread thread([&] {
        while (!done)
            for (const auto& text : notices(other)) {
                arrivals.arrived(std::strtoull(text.c_str(), nullptr, 10));
                other.run_prepared("notify", {"bench_back", text});
            }
    });
    Notifications out;
    out.arrive = measure(count, pause, arrivals, 0, [&](std::size_t number) {
        auto from = ns(Clock::now());
        one.run_prepared("notify", {"bench_there", std::to_string(number)});
        while (notices(one).empty())
            if (ns(Clock::now()) - from > 30'000'000'000)
                fail("a NOTIFY was not answered within 30 s");
        out.round.push_back(ms_between(from, ns(Clock::now())));
        return from;
    });
    done = true;
    thread.join();
    return out;
}

struct Requests {
    Times whole;  // until the response
    Times arrive; // until the body is received
};

Requests requests(std::size_t count, milliseconds pause, const std::string& url, Arrivals& arrivals,
                  std::size_t first) {
    Requests out;
    CURL* easy = curl_easy_init();
    curl_slist* headers = curl_slist_append(nullptr, "content-type: application/json");
    curl_easy_setopt(easy, CURLOPT_URL, url.c_str());
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_PROXY, "");
    out.arrive = measure(count, pause, arrivals, first, [&](std::size_t number) {
        auto body = payload(number);
        curl_easy_setopt(easy, CURLOPT_POSTFIELDS, body.c_str());
        curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE, static_cast<long>(body.size()));
        auto from = ns(Clock::now());
        if (curl_easy_perform(easy) != CURLE_OK)
            fail("a bare request failed");
        out.whole.push_back(ms_between(from, ns(Clock::now())));
        return from;
    });
    curl_slist_free_all(headers);
    curl_easy_cleanup(easy);
    return out;
}

// A timestamptz, and the same moment by Clock.
std::pair<std::string, std::int64_t> moment_in(milliseconds delay) {
    auto system = std::chrono::system_clock::now();
    auto steady = Clock::now();
    auto due = std::chrono::floor<std::chrono::microseconds>(system + delay);
    auto seconds = std::chrono::floor<std::chrono::seconds>(due);
    std::time_t whole = std::chrono::system_clock::to_time_t(seconds);
    std::tm utc{};
    gmtime_r(&whole, &utc);
    char date[32], text[64];
    std::strftime(date, sizeof date, "%Y-%m-%d %H:%M:%S", &utc);
    std::snprintf(text, sizeof text, "%s.%06lld+00", date,
                  static_cast<long long>((due - seconds).count()));
    return {text, ns(steady + std::chrono::duration_cast<Clock::duration>(due - system))};
}

} // namespace

int main(int argc, char** argv) {
    if (argc != 5) {
        std::fprintf(stderr, "latency NAME JOBS PAUSE_MS DELAY_MS\n");
        return 1;
    }
    const std::size_t jobs = std::strtoul(argv[2], nullptr, 10);
    const milliseconds pause(std::atoi(argv[3])), delay(std::atoi(argv[4]));
    const std::size_t warm_up = 5;
    curl_global_init(CURL_GLOBAL_ALL);

    Arrivals arrivals(3 * jobs + warm_up);
    test::Server server([&](const test::Received& request) {
        arrivals.arrived(number_in(request.body));
        return test::Answer{};
    });
    server.keep_nothing();

    Connection db;
    const std::string name = argv[1];
    db.run("SELECT jobq.create_endpoint($1, $2)", {name, server.url("/")});
    db.run("SELECT jobq.create_queue($1, endpoint => $1)", {name});
    db.prepare("push", "SELECT jobq.push($1, $2)");
    db.prepare("schedule", "SELECT jobq.push($1, $2, run_at => $3)");
    auto push = [&](std::size_t number) {
        auto text = payload(number);
        auto from = ns(Clock::now());
        db.run_prepared("push", {name, text});
        return from;
    };
    measure(warm_up, pause, arrivals, 3 * jobs, push);

    Notifications notified = notifications(jobs, pause);
    Requests bare = requests(jobs, pause, server.url("/"), arrivals, 0);
    Times pushed = measure(jobs, pause, arrivals, jobs, push);
    Times scheduled = measure(jobs, pause, arrivals, 2 * jobs, [&](std::size_t number) {
        auto [text, due] = moment_in(delay);
        db.run_prepared("schedule", {name, payload(number), text});
        return due;
    });
    if (arrivals.unwanted() > 0)
        fail(std::to_string(arrivals.unwanted()) + " bodies arrived twice or were not ours");
    if (!scheduled.empty() && *std::min_element(scheduled.begin(), scheduled.end()) < 0)
        fail("a scheduled job arrived before it was due");

    std::printf("{");
    print("notify", notified.arrive, ", ");
    print("notify_round", notified.round, ", ");
    print("request", bare.whole, ", ");
    print("request_arrival", bare.arrive, ", ");
    print("push", pushed, ", ");
    print("schedule", scheduled, "}\n");
}
