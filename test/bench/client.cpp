// The benchmark's client for every queue in SQL: libpq, prepared statements, a thread and a
// connection each for those that push and those that work. It counts what was really done.
//
//   client [--push SQL --bind KIND... [--pushers N] [--per JOBS] [--first N]
//              [--level JOBS --waiting JOBS]]
//          [--pull SQL --complete SQL [--workers N] [--each]]
//          (--jobs N | --seconds S) [--skip S] [--window S]
//
// --push with --bind: a statement that pushes --per jobs, and what is bound to its parameters:
//     payload     a JSON text of 200 bytes
//     payloads    an array of --per of them
//     spec:TEXT   a JSON array of --per times TEXT, with a payload in place of "@"
//     keys:K      an array of --per keys, going round K different ones
//     number      the job's number, bigint        uuid    a UUID version 7; uuids: an array of them
//     now         timestamptz                     =TEXT   that text
// --pull returns a row a job, its first column the id; its second, named "attempt", is given back
//     too. --complete takes arrays of these (with --each: the values, a statement a job) and
//     returns how many it completed. A pull that finds nothing is repeated after half a
//     millisecond.
// --first: the number of the first job that is pushed.
// --level: pushers wait while so many jobs are pushed and not completed, beginning with --waiting.
// --jobs: ends when so many were completed (without --pull: pushed). --seconds: ends after that
//     time, with what was pulled completed. The first --skip seconds do not count for the rates.
// --window: the first and the last S seconds apart.
//
// Connects by libpq's environment variables. Prints one line of JSON; times are milliseconds.
// Exits 1 on any error of SQL, and when nothing moves for a minute.

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <libpq-fe.h>

#include "payload.hpp"

namespace {

using bench::payload;
using Clock = std::chrono::steady_clock;
constexpr int uuid_oid = 2950, int8_oid = 20, timestamptz_oid = 1184;
constexpr std::size_t most_seconds = 3600;

struct Options {
    std::string push, pull, complete;
    std::vector<std::string> bind;
    std::size_t pushers = 1, workers = 1, per = 1;
    std::uint64_t first = 0, level = 0, waiting = 0, jobs = 0;
    double seconds = 0, skip = 0, window = 0;
    bool each = false;
};

[[noreturn]] void fail(const std::string& message) {
    std::fprintf(stderr, "client: %s\n", message.c_str());
    std::_Exit(1);
}

double seconds_since(Clock::time_point then) {
    return std::chrono::duration<double>(Clock::now() - then).count();
}

// ---- libpq

struct FreeResult {
    void operator()(PGresult* result) const { PQclear(result); }
};
using Result = std::unique_ptr<PGresult, FreeResult>;

struct Value {
    std::string bytes;
    int oid = 0; // 0: text, of the type that the statement wants
};

class Connection {
public:
    Connection() : connection_(PQconnectdb("")) {
        if (PQstatus(connection_.get()) != CONNECTION_OK)
            fail(PQerrorMessage(connection_.get()));
    }

    void prepare(const char* name, const std::string& sql, const std::vector<int>& oids = {}) {
        std::vector<Oid> types(oids.begin(), oids.end());
        check(Result(PQprepare(connection_.get(), name, sql.c_str(), static_cast<int>(types.size()),
                               types.data())));
    }

    Result run(const char* name, const std::vector<Value>& values = {}) {
        std::vector<const char*> texts;
        std::vector<int> lengths, formats;
        for (const Value& value : values) {
            texts.push_back(value.bytes.c_str());
            lengths.push_back(static_cast<int>(value.bytes.size()));
            formats.push_back(value.oid != 0);
        }
        return check(Result(PQexecPrepared(connection_.get(), name, static_cast<int>(values.size()),
                                           texts.data(), lengths.data(), formats.data(), 0)));
    }

private:
    Result check(Result result) {
        auto status = PQresultStatus(result.get());
        if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK)
            fail(PQerrorMessage(connection_.get()));
        return result;
    }

    struct Finish {
        void operator()(PGconn* connection) const { PQfinish(connection); }
    };
    std::unique_ptr<PGconn, Finish> connection_;
};

std::string big_endian(std::uint64_t value) {
    std::string bytes(8, '\0');
    for (int i = 7; i >= 0; --i, value >>= 8)
        bytes[static_cast<std::size_t>(i)] = static_cast<char>(value & 0xff);
    return bytes;
}

// ---- what is bound

std::string uuid7(std::mt19937_64& random) {
    auto now = std::chrono::system_clock::now().time_since_epoch();
    auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
    std::uint64_t high = static_cast<std::uint64_t>(ms) << 16 | 0x7000 | (random() & 0x0fff);
    std::uint64_t low = (random() & 0x3fffffffffffffff) | 0x8000000000000000;
    return big_endian(high) + big_endian(low);
}

std::string hex(const std::string& bytes) {
    std::string out;
    for (unsigned char c : bytes) {
        out += "0123456789abcdef"[c >> 4];
        out += "0123456789abcdef"[c & 15];
    }
    return out;
}

std::string now_in_postgres() {
    constexpr std::int64_t unix_to_2000 = 946684800;
    auto now = std::chrono::system_clock::now().time_since_epoch();
    auto us = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
    return big_endian(static_cast<std::uint64_t>(us - unix_to_2000 * 1'000'000));
}

// A PostgreSQL array of strings, none of which holds a backslash.
std::string array_of(std::size_t count, const std::function<std::string(std::size_t)>& element) {
    std::string out = "{";
    for (std::size_t i = 0; i < count; ++i) {
        out += i ? ",\"" : "\"";
        for (char c : element(i)) {
            if (c == '"')
                out += '\\';
            out += c;
        }
        out += '"';
    }
    return out += "}";
}

Value value_of(const std::string& kind, std::uint64_t first, std::size_t per,
               std::mt19937_64& random) {
    if (kind == "payload")
        return {payload(first)};
    if (kind == "payloads")
        return {array_of(per, [&](std::size_t i) { return payload(first + i); })};
    if (kind == "uuids")
        return {array_of(per, [&](std::size_t) { return hex(uuid7(random)); })};
    if (kind == "number")
        return {big_endian(first), int8_oid};
    if (kind == "uuid")
        return {uuid7(random), uuid_oid};
    if (kind == "now")
        return {now_in_postgres(), timestamptz_oid};
    if (kind.starts_with("="))
        return {kind.substr(1)};
    if (kind.starts_with("keys:")) {
        auto different = std::strtoull(kind.c_str() + 5, nullptr, 10);
        return {array_of(
            per, [&](std::size_t i) { return "key-" + std::to_string((first + i) % different); })};
    }
    if (kind.starts_with("spec:")) {
        auto at = kind.find('@');
        std::string before = kind.substr(5, at - 5), after = kind.substr(at + 1), out = "[";
        for (std::size_t i = 0; i < per; ++i)
            out += (i ? "," : "") + before + payload(first + i) + after;
        return {out + "]"};
    }
    fail("no such kind of value: " + kind);
}

int oid_of(const std::string& kind) {
    return kind == "number" ? int8_oid
           : kind == "uuid" ? uuid_oid
           : kind == "now"  ? timestamptz_oid
                            : 0;
}

// ---- what is counted

struct Sample {
    float at; // seconds since the start
    float ms;
};

struct Times {
    std::vector<Sample> samples;

    void add(Clock::time_point start, Clock::time_point from) {
        auto now = Clock::now();
        samples.push_back({std::chrono::duration<float>(now - start).count(),
                           std::chrono::duration<float, std::milli>(now - from).count()});
    }
};

// All threads' counts. Seconds beyond most_seconds fall into the last.
struct Counts {
    std::atomic<std::uint64_t> pushed = 0, pulled = 0, finished = 0, empty = 0;
    std::vector<std::atomic<std::uint32_t>> finished_in, pushed_in; // tenths of a second
    std::mutex mutex;
    Times push, pull, complete;
    double first_pull_ms = 0; // from connecting to the first job
    Clock::time_point start;

    Counts() : finished_in(most_seconds * 10), pushed_in(most_seconds * 10) {}

    void add(std::vector<std::atomic<std::uint32_t>>& series, std::uint64_t jobs) {
        auto tenth = static_cast<std::size_t>(seconds_since(start) * 10);
        series[std::min(tenth, series.size() - 1)] += static_cast<std::uint32_t>(jobs);
    }
    void merge(Times& into, Times& from) {
        std::lock_guard lock(mutex);
        into.samples.insert(into.samples.end(), from.samples.begin(), from.samples.end());
    }
};

// ---- the threads

// All threads are connected: the time begins.
struct Begin {
    Counts& counts;
    void operator()() noexcept { counts.start = Clock::now(); }
};
using Ready = std::barrier<Begin>;

bool over(const Options& o, const Counts& counts) {
    if (o.seconds > 0)
        return seconds_since(counts.start) >= o.seconds;
    return (o.pull.empty() ? counts.pushed : counts.finished) >= o.jobs;
}

void push(const Options& o, Counts& counts, std::atomic<std::uint64_t>& next, Ready& ready) {
    Connection db;
    std::vector<int> oids;
    for (const auto& kind : o.bind)
        oids.push_back(oid_of(kind));
    db.prepare("push", o.push, oids);
    std::mt19937_64 random(std::random_device{}());
    Times times;
    std::vector<Value> values(o.bind.size());
    ready.arrive_and_wait();
    while (!over(o, counts)) {
        if (o.level > 0 && counts.pushed + o.waiting >= counts.finished + o.level) {
            std::this_thread::sleep_for(std::chrono::microseconds(200));
            continue;
        }
        std::uint64_t first = next.fetch_add(o.per);
        if (o.pull.empty() && o.seconds == 0 && first >= o.first + o.jobs)
            break;
        for (std::size_t i = 0; i < values.size(); ++i)
            values[i] = value_of(o.bind[i], first, o.per, random);
        auto from = Clock::now();
        db.run("push", values);
        times.add(counts.start, from);
        counts.pushed += o.per;
        counts.add(counts.pushed_in, o.per);
    }
    counts.merge(counts.push, times);
}

// How many jobs a statement completed: the rows that a DELETE or UPDATE counts, or what a SELECT
// for many jobs says; one for one job fails or completes it.
std::uint64_t completed(const Result& result, bool each) {
    if (PQresultStatus(result.get()) == PGRES_COMMAND_OK)
        return std::strtoull(PQcmdTuples(result.get()), nullptr, 10);
    if (each || PQntuples(result.get()) == 0)
        return static_cast<std::uint64_t>(PQntuples(result.get()));
    return std::strtoull(PQgetvalue(result.get(), 0, 0), nullptr, 10);
}

void work(const Options& o, Counts& counts, Ready& ready) {
    auto born = Clock::now();
    Connection db;
    db.prepare("pull", o.pull);
    db.prepare("complete", o.complete);
    Times pulls, completes;
    bool any = false;
    ready.arrive_and_wait();
    while (!over(o, counts)) {
        auto from = Clock::now();
        Result rows = db.run("pull");
        int n = PQntuples(rows.get());
        if (n == 0) {
            ++counts.empty;
            std::this_thread::sleep_for(std::chrono::microseconds(500));
            continue;
        }
        pulls.add(counts.start, from);
        if (!std::exchange(any, true)) {
            std::lock_guard lock(counts.mutex);
            counts.first_pull_ms = seconds_since(born) * 1000;
        }
        counts.pulled += static_cast<std::uint64_t>(n);

        bool token =
            PQnfields(rows.get()) > 1 && std::strcmp(PQfname(rows.get(), 1), "attempt") == 0;
        auto cell = [&](int row, int column) {
            return std::string(PQgetvalue(rows.get(), row, column));
        };
        std::uint64_t finished = 0;
        from = Clock::now();
        if (o.each) {
            for (int row = 0; row < n; ++row) {
                std::vector<Value> values{{cell(row, 0)}};
                if (token)
                    values.push_back({cell(row, 1)});
                finished += completed(db.run("complete", values), true);
            }
        } else {
            auto column = [&](int which) {
                std::string array = "{";
                for (int row = 0; row < n; ++row)
                    (array += row ? "," : "") += PQgetvalue(rows.get(), row, which);
                return Value{array + "}"};
            };
            std::vector<Value> values{column(0)};
            if (token)
                values.push_back(column(1));
            finished = completed(db.run("complete", values), false);
        }
        completes.add(counts.start, from);
        counts.finished += finished;
        counts.add(counts.finished_in, finished);
    }
    counts.merge(counts.pull, pulls);
    counts.merge(counts.complete, completes);
}

// ---- the result

double quantile(std::vector<float>& values, double q) {
    if (values.empty())
        return 0;
    auto at = static_cast<std::ptrdiff_t>(q * static_cast<double>(values.size() - 1) + 0.5);
    std::nth_element(values.begin(), values.begin() + at, values.end());
    return values[static_cast<std::size_t>(at)];
}

std::string summary(const Times& times, double from, double to) {
    std::vector<float> ms;
    for (const Sample& sample : times.samples)
        if (sample.at >= from && sample.at < to)
            ms.push_back(sample.ms);
    char text[160];
    std::snprintf(text, sizeof text, R"({"count": %zu, "median": %.4f, "p99": %.4f, "max": %.4f})",
                  ms.size(), quantile(ms, 0.5), quantile(ms, 0.99), quantile(ms, 1));
    return text;
}

// Jobs a second between two points of time, which are whole tenths.
double rate(const std::vector<std::atomic<std::uint32_t>>& tenths, double from, double to) {
    double jobs = 0;
    for (auto i = static_cast<std::size_t>(from * 10 + 0.5);
         i < tenths.size() && static_cast<double>(i) < to * 10; ++i)
        jobs += tenths[i];
    return to > from ? jobs / (to - from) : 0;
}

std::string series(const std::vector<std::atomic<std::uint32_t>>& tenths, double seconds) {
    std::string out;
    for (double from = 0; from + 1 <= seconds; ++from)
        out += (out.empty() ? "" : ", ") +
               std::to_string(static_cast<int>(rate(tenths, from, from + 1)));
    return "[" + out + "]";
}

void print(const Options& o, const Counts& counts, double seconds) {
    // Only whole tenths count in a run by time, so that both ends of it are the same for all.
    double from = o.skip, to = o.seconds > 0 ? o.seconds : seconds;
    std::printf(
        R"({"seconds": %.4f, "pushed": %llu, "pulled": %llu, "finished": %llu, "empty": %llu, )",
        seconds, static_cast<unsigned long long>(counts.pushed),
        static_cast<unsigned long long>(counts.pulled),
        static_cast<unsigned long long>(counts.finished),
        static_cast<unsigned long long>(counts.empty));
    std::printf(R"("push_rate": %.2f, "rate": %.2f, "first_pull_ms": %.3f, )",
                rate(counts.pushed_in, from, to), rate(counts.finished_in, from, to),
                counts.first_pull_ms);
    std::printf(R"("push": %s, "pull": %s, "complete": %s, "series": %s)",
                summary(counts.push, from, to).c_str(), summary(counts.pull, from, to).c_str(),
                summary(counts.complete, from, to).c_str(), series(counts.finished_in, to).c_str());
    if (o.window > 0) {
        auto window = [&](double begin, double end) {
            std::printf(R"({"rate": %.2f, "pull": %s})", rate(counts.finished_in, begin, end),
                        summary(counts.pull, begin, end).c_str());
        };
        std::printf(R"(, "first": )");
        window(from, from + o.window);
        std::printf(R"(, "last": )");
        window(to - o.window, to);
    }
    std::printf("}\n");
}

Options read_options(int argc, char** argv) {
    Options o;
    auto count = [](const char* text) { return std::strtoull(text, nullptr, 10); };
    std::map<std::string_view, std::function<void(const char*)>> known{
        {"--push", [&](const char* v) { o.push = v; }},
        {"--bind", [&](const char* v) { o.bind.push_back(v); }},
        {"--pull", [&](const char* v) { o.pull = v; }},
        {"--complete", [&](const char* v) { o.complete = v; }},
        {"--pushers", [&](const char* v) { o.pushers = count(v); }},
        {"--workers", [&](const char* v) { o.workers = count(v); }},
        {"--per", [&](const char* v) { o.per = count(v); }},
        {"--first", [&](const char* v) { o.first = count(v); }},
        {"--level", [&](const char* v) { o.level = count(v); }},
        {"--waiting", [&](const char* v) { o.waiting = count(v); }},
        {"--jobs", [&](const char* v) { o.jobs = count(v); }},
        {"--seconds", [&](const char* v) { o.seconds = std::atof(v); }},
        {"--skip", [&](const char* v) { o.skip = std::atof(v); }},
        {"--window", [&](const char* v) { o.window = std::atof(v); }},
    };
    for (int i = 1; i < argc; ++i) {
        if (std::string_view(argv[i]) == "--each") {
            o.each = true;
            continue;
        }
        auto option = known.find(argv[i]);
        if (option == known.end() || i + 1 == argc)
            fail(std::string("unknown option, or one without its value: ") + argv[i]);
        option->second(argv[++i]);
    }
    if ((o.push.empty() && o.pull.empty()) || o.pull.empty() != o.complete.empty() ||
        (o.jobs == 0) == (o.seconds == 0))
        fail("the options do not fit together: see the top of client.cpp");
    if (o.push.empty())
        o.pushers = 0;
    if (o.pull.empty())
        o.workers = 0;
    return o;
}

} // namespace

int main(int argc, char** argv) {
    const Options o = read_options(argc, argv);
    Counts counts;
    std::atomic<std::uint64_t> next = o.first;
    Ready ready(static_cast<std::ptrdiff_t>(o.pushers + o.workers), Begin{counts});
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < o.pushers; ++i)
        threads.emplace_back([&] { push(o, counts, next, ready); });
    for (std::size_t i = 0; i < o.workers; ++i)
        threads.emplace_back([&] { work(o, counts, ready); });

    std::atomic<bool> done = false;
    std::thread watch([&] {
        std::uint64_t before = 0;
        auto moved = Clock::now();
        while (!done) {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            if (std::uint64_t now = counts.pushed + counts.finished; now != before) {
                before = now;
                moved = Clock::now();
            } else if (seconds_since(moved) > 60) {
                fail("nothing moved for a minute: " + std::to_string(counts.pushed) + " pushed, " +
                     std::to_string(counts.finished) + " completed");
            }
        }
    });
    for (auto& thread : threads)
        thread.join();
    double seconds = seconds_since(counts.start);
    done = true;
    watch.join();
    print(o, counts, seconds);
}
