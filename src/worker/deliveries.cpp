#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "core/names.hpp"
#include "core/text.hpp"
#include "pg/call.hpp"
#include "pg/settings.hpp"
#include "pg/xact.hpp"
#include "queue/bounds.hpp"
#include "queue/finish.hpp"
#include "worker/deliveries.hpp"
#include "worker/shared.hpp"

extern "C" {
#include "access/xlog.h"
#include "commands/async.h"
#include "utils/guc.h"
}

namespace jobq::worker {

using queue::ClaimedJob;
using Column = queue::JobColumn;
using queue::OnLocked;

namespace {

// At most so many announcements a second for a queue: a listener that pulls until nothing is left
// needs no more.
constexpr TimestampTz announce_every = 10 * 1000; // µs
constexpr int most_turns = 16;
constexpr TimestampTz retry_locked_after = 100 * 1000;
constexpr TimestampTz delete_every = 60 * USECS_PER_SEC;
// Scans take at most one part in so many of the time.
constexpr int scan_share = 100;
constexpr std::size_t housekeeping_batch = 1000;
constexpr std::size_t most_rows_looked_at = 10000;
// Over the longest a delivery can take: it ends by its timeout, not by its lease.
constexpr std::chrono::microseconds lease_margin = std::chrono::minutes(1);
constexpr std::size_t most_claimed_at_once = 500;

template <class Function>
void in_transaction(Function&& function) {
    pg::Transaction transaction;
    {
        pg::Spi spi;
        pg::FreshSnapshot snapshot; // for values that are stored apart
        function(spi);
    }
    transaction.commit();
}

void set_synchronous_commit(const char* value) {
    pg::guarded([value] {
        set_config_option("synchronous_commit", value, PGC_USERSET, PGC_S_SESSION, GUC_ACTION_LOCAL,
                          true, 0, false);
    });
}

// Losing an outcome in a crash means a second delivery, which receivers are told to expect.
void commit_without_flush() {
    set_synchronous_commit("off");
}

// No webhook for a push that a crash would undo: before requests leave, the commits that made their
// jobs due are flushed. A push that waited for its own flush costs nothing here; only one that was
// committed asynchronously is waited for. The claim is flushed when the requests are on their way:
// lost in between, the job is delivered again under the same attempt number.
void flush(XLogRecPtr to) {
    pg::guarded([to] {
        if (!XLogRecPtrIsInvalid(to))
            XLogFlush(to);
    });
}

bool same_name(std::string_view a, std::string_view b) {
    return a.size() == b.size() && pg_strncasecmp(a.data(), b.data(), a.size()) == 0;
}

bool is_json(std::string_view content_type) {
    std::string type(content_type.substr(0, content_type.find(';')));
    while (!type.empty() && type.back() == ' ')
        type.pop_back();
    return same_name(type, "application/json") ||
           (type.size() > 5 && same_name(std::string_view(type).substr(type.size() - 5), "+json"));
}

std::optional<std::string_view> unless_empty(const std::string& text) {
    return text.empty() ? std::nullopt : std::optional<std::string_view>(text);
}

} // namespace

Deliveries::Deliveries() : client_({.user_agent = "jobq/" JOBQ_VERSION, .ca_file = {}}) {}

TimestampTz Deliveries::work(const Woken& woken) {
    TimestampTz now = pg::clock();
    if (woken.settings)
        load_settings();
    if (woken.scan_all)
        queue::bounds::forget_all();
    if (woken.scan_all || woken.queues.overflowed() || now >= scan_at()) {
        look_everywhere();
        end_leases();
        scanned_at_ = pg::clock();
        scan_cost_ = scanned_at_ - now;
    }
    if (now >= delete_at_)
        delete_old(now);
    for (int32 id : woken.queues.ids())
        if (auto queue = queues_.find(id); queue != queues_.end())
            queue->second.look = true;
    for (auto& [id, queue] : queues_)
        if (queue.next_due && *queue.next_due <= now)
            queue.look = true;

    // What ends while results are recorded is recorded at once. Requests that were just started
    // make fd() readable, so that the last of them begin in the next call.
    for (int turn = 0; turn < most_turns; ++turn) {
        collect();
        if (!record_and_claim(pg::clock()))
            break;
        start_waiting();
        client_.step();
        flush(XactLastCommitEnd);
    }
    start_waiting();
    announce(pg::clock());
    return next_turn(pg::clock());
}

void Deliveries::load_settings() {
    static pg::Statement endpoints("SELECT e.id, e.name, e.url, e.headers, e.max_in_flight, "
                                   "e.timeout, e.connect_timeout, e.keep_response,"
                                   "       e.enabled FROM jobq.endpoint AS e");
    static pg::Statement queues(
        "SELECT q.id, q.name, q.endpoint_id, q.paused, q.lease, "
        "q.max_running, q.home = jobq.this_database() FROM jobq.queue AS q");
    using std::chrono::duration_cast;
    using std::chrono::milliseconds;

    in_transaction([&](const pg::Spi& spi) {
        std::map<int32, Endpoint> endpoint_rows;
        for (auto row : endpoints.run(spi)) {
            Endpoint& endpoint = endpoint_rows[row.int4(1)];
            endpoint.name = row.text(2);
            endpoint.url = row.text(3);
            for (const auto& header :
                 pg::json_object(row.datum(4)).value_or(std::vector<pg::JsonField>()))
                endpoint.headers.emplace_back(header.key, header.text);
            endpoint.max_in_flight = static_cast<std::size_t>(row.int4(5));
            endpoint.timeout = duration_cast<milliseconds>(pg::length_of(row.datum(6)));
            endpoint.connect_timeout = duration_cast<milliseconds>(pg::length_of(row.datum(7)));
            endpoint.keep_response = static_cast<std::size_t>(row.int4(8));
            endpoint.enabled = row.boolean(9);
        }
        // What is under way to an endpoint that is gone goes on; its entry stays for the count.
        for (auto& [id, old] : endpoints_)
            if (old.in_flight > 0 || !old.waiting.empty() || endpoint_rows.contains(id)) {
                Endpoint& endpoint = endpoint_rows[id];
                endpoint.in_flight = old.in_flight;
                endpoint.waiting = std::move(old.waiting);
                endpoint.passed_over = old.passed_over;
            }
        endpoints_ = std::move(endpoint_rows);

        std::map<int32, Queue> queue_rows;
        home_ = true;
        for (auto row : queues.run(spi)) {
            home_ &= row.boolean(7);
            Queue& queue = queue_rows[row.int4(1)];
            queue.name = row.text(2);
            queue.endpoint_id = row.null(3) ? std::nullopt : std::optional(row.int4(3));
            queue.paused = row.boolean(4);
            queue.lease = pg::length_of(row.datum(5));
            queue.max_running = row.null(6) ? std::nullopt : std::optional(row.int4(6));
            // One that is as it was need not be looked at again.
            if (auto old = queues_.find(row.int4(1)); old != queues_.end()) {
                const Queue& was = old->second;
                queue.look = was.look || was.endpoint_id != queue.endpoint_id ||
                             was.paused != queue.paused || was.max_running != queue.max_running;
                queue.next_due = was.next_due;
                queue.announce_at = was.announce_at;
            }
        }
        queues_ = std::move(queue_rows);
    });
    shared::foreign(!home_);
    shared::message(home_ ? ""
                          : "the queues belong to another database: SELECT jobq.adopt() makes this "
                            "one their home");
}

void Deliveries::look_everywhere() {
    // From one queue's entries to the next one's: as many steps as there are queues with jobs.
    static pg::Statement with_jobs(R"(
        WITH RECURSIVE present AS (
            (SELECT j.queue_id FROM jobq.job AS j ORDER BY j.queue_id LIMIT 1)
            UNION ALL
            SELECT (SELECT j.queue_id FROM jobq.job AS j WHERE j.queue_id > p.queue_id ORDER BY j.queue_id LIMIT 1)
            FROM present AS p WHERE p.queue_id IS NOT NULL
        )
        SELECT p.queue_id FROM present AS p WHERE p.queue_id IS NOT NULL)");
    in_transaction([&](const pg::Spi& spi) {
        for (auto row : with_jobs.run(spi))
            if (auto queue = queues_.find(row.int4(1)); queue != queues_.end())
                queue->second.look = true;
    });
}

// Turns the responses that have come into results.
void Deliveries::collect() {
    client_.step();
    client_.take(responses_);
    int64 delivered = 0, failed = 0;
    for (http::Response& response : responses_) {
        auto held = held_.find(response.tag);
        if (held == held_.end())
            continue;
        Result result{.id = held->second.id, .attempt = held->second.attempt};
        result.status = response.status;
        result.body = std::move(response.body);
        if (response.outcome == http::Outcome::answered && response.status / 100 == 2) {
            result.completed = true;
            result.outcome = "completed";
            result.json = !response.truncated && is_json(response.content_type);
        } else if (response.outcome == http::Outcome::answered) {
            result.outcome = fmt::format("http_{}", response.status);
            result.error = fmt::format("the endpoint answered with status {}", response.status);
        } else {
            result.outcome = http::name(response.outcome);
            result.error = std::move(response.error);
        }
        ++(result.completed ? delivered : failed);
        if (auto endpoint = endpoints_.find(held->second.endpoint_id); endpoint != endpoints_.end())
            --endpoint->second.in_flight;
        held_.erase(held);
        results_.push_back(std::move(result));
    }
    responses_.clear();
    if (delivered + failed > 0)
        shared::count(delivered, failed);
}

// One transaction for both, so that places freed by results are claimed again with one commit.
// Returns whether anything was claimed.
bool Deliveries::record_and_claim(TimestampTz now) {
    bool opened = std::any_of(endpoints_.begin(), endpoints_.end(),
                              [](const auto& entry) { return is_opened(entry.second); });
    bool looks = std::any_of(queues_.begin(), queues_.end(), [](const auto& entry) {
        const Queue& queue = entry.second;
        return queue.look && queue.endpoint_id && !queue.paused;
    });
    bool wants = home_ && !draining_ && (opened || looks);
    bool records = !results_.empty() && now >= record_at_;
    if (!wants && !records)
        return false;

    std::vector<Job> claimed;
    std::vector<Result> left;
    XLogRecPtr durable_at = InvalidXLogRecPtr;
    try {
        in_transaction([&](const pg::Spi& spi) {
            if (records) {
                left = results_;
                record(spi, left);
            }
            if (wants)
                claim(spi, now, claimed, durable_at);
            commit_without_flush();
        });
    } catch (const pg::Error& error) {
        if (error.sqlstate != ERRCODE_LOCK_NOT_AVAILABLE || !records || results_.size() == 1)
            throw;
        record_one_by_one();
        return false;
    }
    if (records) {
        recorded_but(std::move(left));
        if (!results_.empty())
            record_at_ = now + retry_locked_after;
    }
    bool any = !claimed.empty();
    flush(durable_at);
    start(std::move(claimed));
    return any;
}

// Records what it can and leaves the results whose jobs somebody has locked.
void Deliveries::record(const pg::Spi& spi, std::vector<Result>& results) {
    std::vector<queue::Completion> completions;
    std::vector<queue::Failure> failures;
    for (Result& result : results) {
        result.error = pg::from_utf8(result.error);
        auto status = result.status == 0 ? std::nullopt : std::optional<int32>(result.status);
        std::optional<Datum> json;
        if (result.json && !result.body.empty())
            json = pg::try_jsonb(result.body);
        if (!json)
            result.body = pg::from_utf8(result.body);
        if (result.completed)
            completions.push_back({.id = result.id,
                                   .attempt = result.attempt,
                                   .result = json,
                                   .outcome = result.outcome,
                                   .status_code = status,
                                   .response = json ? std::nullopt : unless_empty(result.body)});
        else
            failures.push_back({.id = result.id,
                                .attempt = result.attempt,
                                .outcome = result.outcome,
                                .error = result.error,
                                .status_code = status,
                                .response = unless_empty(result.body)});
    }
    auto ended = queue::complete(completions, OnLocked::skip);
    auto tried = queue::fail(spi, failures, OnLocked::skip);
    ended.insert(ended.end(), tried.begin(), tried.end());
    if (ended.size() == results.size()) {
        results.clear();
        return;
    }
    // Of the rest, those whose lease is gone came too late: cancelled, or taken over.
    std::vector<core::Uuid> ids;
    std::vector<int32> attempts;
    for (const Result& result : results) {
        ids.push_back(result.id);
        attempts.push_back(result.attempt);
    }
    auto running = queue::still_running(spi, ids, attempts);
    std::sort(running.begin(), running.end());
    std::erase_if(results, [&](const Result& result) {
        return !std::binary_search(running.begin(), running.end(), result.id);
    });
}

// One result waits for a lock that an open transaction holds (a push of its unique key): the others
// do not wait with it.
void Deliveries::record_one_by_one() {
    std::vector<Result> left;
    for (Result& result : results_) {
        std::vector<Result> one{result};
        try {
            in_transaction([&](const pg::Spi& spi) {
                record(spi, one);
                commit_without_flush();
            });
        } catch (const pg::Error& error) {
            if (error.sqlstate != ERRCODE_LOCK_NOT_AVAILABLE)
                throw;
            one = {result};
        }
        left.insert(left.end(), one.begin(), one.end());
    }
    recorded_but(std::move(left));
    record_at_ = pg::clock() + retry_locked_after;
}

// The results are recorded, or came too late, but for those that are left.
void Deliveries::recorded_but(std::vector<Result> left) {
    for (const Result& result : results_)
        in_hand_.erase(result.id);
    for (const Result& result : left)
        in_hand_.emplace(result.id, result.attempt);
    results_ = std::move(left);
}

std::size_t Deliveries::waiting() const {
    std::size_t waiting = 0;
    for (const auto& [id, endpoint] : endpoints_)
        waiting += endpoint.waiting.size();
    return waiting;
}

std::size_t Deliveries::in_flight() const {
    return held_.size() + waiting() + results_.size();
}

// Jobs that name an endpoint were passed over while it was closed: their queues are to be looked
// at.
void Deliveries::look_behind_opened(const pg::Spi& spi) {
    static pg::Statement next(R"(
        SELECT j.queue_id FROM jobq.job AS j WHERE j.endpoint_id = $1 AND j.queue_id > $2
        ORDER BY j.endpoint_id, j.queue_id LIMIT 1)");
    for (auto& [id, endpoint] : endpoints_) {
        if (!is_opened(endpoint))
            continue;
        endpoint.passed_over = false;
        int32 after = 0;
        for (;;) {
            auto rows = next.run(spi, {pg::param(id), pg::param(after)});
            if (rows.empty())
                break;
            after = rows[0].int4(1);
            if (auto queue = queues_.find(after); queue != queues_.end())
                queue->second.look = true;
        }
    }
}

// Goes once around the queues, from behind the one where the last round ended.
void Deliveries::claim(const pg::Spi& spi, TimestampTz now, std::vector<Job>& claimed,
                       XLogRecPtr& durable_at) {
    auto limit = static_cast<std::size_t>(pg::settings::max_in_flight());
    std::size_t used = held_.size() + waiting();
    std::size_t free = std::min(used < limit ? limit - used : 0, most_claimed_at_once);
    look_behind_opened(spi);
    auto next = queues_.upper_bound(last_queue_);
    for (std::size_t i = 0; i < queues_.size() && free > 0; ++i) {
        if (next == queues_.end())
            next = queues_.begin();
        auto& [id, queue] = *next++;
        if (!queue.look || !queue.endpoint_id || queue.paused)
            continue;
        auto endpoint = endpoints_.find(*queue.endpoint_id);
        if (endpoint == endpoints_.end() || !endpoint->second.enabled)
            continue;
        claim_from(id, queue, endpoint->second, now, free, claimed, durable_at);
        last_queue_ = id;
    }
}

void Deliveries::claim_from(int32 id, Queue& queue, Endpoint& endpoint, TimestampTz now,
                            std::size_t& free, std::vector<Job>& claimed, XLogRecPtr& durable_at) {
    auto mine = [&](const Job& job) { return job.endpoint_id == *queue.endpoint_id; };
    std::size_t used =
        endpoint.in_flight + endpoint.waiting.size() +
        static_cast<std::size_t>(std::count_if(claimed.begin(), claimed.end(), mine));
    std::size_t limit =
        std::min(free, used < endpoint.max_in_flight ? endpoint.max_in_flight - used : 0);
    if (limit == 0)
        return;
    auto lease = std::max<std::chrono::microseconds>(queue.lease, endpoint.timeout) + lease_margin;
    std::vector<int32> closed;
    for (auto& [other, e] : endpoints_)
        if (other != *queue.endpoint_id && is_closed(e)) {
            closed.push_back(other);
            e.passed_over = true;
        }
    auto [jobs, durable, next_due, blocked] =
        queue::claim({.queue_id = id,
                      .queue = queue.name,
                      .limit = limit,
                      .max_running = queue.max_running,
                      .due = now,
                      .lease_until = now + lease.count(),
                      .delivery = true,
                      .closed = std::move(closed),
                      .in_hand = [this](const core::Uuid& job, int32 attempt) {
                          auto found = in_hand_.find(job);
                          return found != in_hand_.end() && found->second == attempt;
                      }});
    durable_at = std::max(durable_at, durable);
    for (const ClaimedJob& job : jobs) {
        int32 to = job.row.null(Column::endpoint_id) ? *queue.endpoint_id
                                                     : job.row.int4(Column::endpoint_id);
        static const Endpoint none;
        auto endpoint_of_job = endpoints_.find(to);
        claimed.push_back(
            {job.id, job.attempt, id, to,
             request_for(job, queue,
                         endpoint_of_job == endpoints_.end() ? none : endpoint_of_job->second,
                         ++last_tag_)});
    }
    free -= jobs.size();
    if (jobs.size() < limit) {
        queue.look = false;
        queue.next_due = next_due;
        if (blocked)
            queue.next_due = std::min(queue.next_due.value_or(DT_NOEND), now + retry_locked_after);
    }
}

http::Request Deliveries::request_for(const ClaimedJob& job, const Queue& queue,
                                      const Endpoint& endpoint, std::uint64_t tag) {
    http::Request request;
    request.tag = tag;
    request.url = endpoint.url;
    request.connect_timeout = endpoint.connect_timeout;
    request.timeout = endpoint.timeout;
    request.keep_response = endpoint.keep_response;

    std::vector<std::pair<std::string_view, std::string_view>> headers;
    auto set = [&](std::string_view name, std::string_view value) {
        for (auto& header : headers)
            if (same_name(header.first, name)) {
                header.second = value;
                return;
            }
        headers.emplace_back(name, value);
    };
    set("content-type", job.row.maybe_text(Column::content_type).value_or("application/json"));
    for (const auto& [name, value] : endpoint.headers)
        set(name, value);
    if (auto own = job.row.maybe(Column::headers))
        for (const auto& field : pg::json_object(*own).value_or(std::vector<pg::JsonField>()))
            set(field.key, field.text);

    request.headers.reserve(headers.size() + 4);
    request.headers.push_back("webhook-id: " + core::to_string(job.id));
    request.headers.push_back(fmt::format("jobq-queue: {}", pg::to_utf8(queue.name)));
    if (auto type = job.row.maybe_text(Column::type))
        request.headers.push_back(fmt::format("jobq-type: {}", pg::to_utf8(*type)));
    request.headers.push_back(fmt::format("jobq-attempt: {}", job.attempt));
    for (const auto& [name, value] : headers)
        request.headers.push_back(fmt::format("{}: {}", name, pg::to_utf8(value)));

    if (auto payload = job.row.maybe(Column::payload))
        request.body = pg::to_utf8(pg::json_text(*payload));
    else if (auto body = job.row.maybe(Column::body))
        request.body = pg::bytea_of(*body);
    return request;
}

void Deliveries::start(std::vector<Job> jobs) {
    for (Job& job : jobs) {
        in_hand_.insert_or_assign(job.id, job.attempt);
        Endpoint& endpoint = endpoints_[job.endpoint_id];
        if (endpoint.url.empty()) { // dropped since the job was pushed
            results_.push_back({.id = job.id,
                                .attempt = job.attempt,
                                .outcome = "no_endpoint",
                                .error = "the endpoint does not exist any more",
                                .body = {}});
            continue;
        }
        endpoint.waiting.push_back(std::move(job));
    }
}

// A job may name another endpoint than its queue's, whose places are not counted when it is
// claimed.
void Deliveries::start_waiting() {
    for (auto& [id, endpoint] : endpoints_)
        while (!endpoint.waiting.empty() &&
               endpoint.in_flight < std::max<std::size_t>(endpoint.max_in_flight, 1)) {
            Job& job = endpoint.waiting.front();
            std::uint64_t tag = job.request.tag;
            held_.emplace(tag, Held{job.id, job.attempt, id});
            client_.start(std::move(job.request));
            ++endpoint.in_flight;
            endpoint.waiting.pop_front();
        }
}

// Queues without an endpoint: says on their channels that there is something to pull.
void Deliveries::announce(TimestampTz now) {
    bool any = std::any_of(queues_.begin(), queues_.end(), [&](const auto& entry) {
        const Queue& queue = entry.second;
        return queue.look && !queue.endpoint_id && now >= queue.announce_at;
    });
    if (!any)
        return;
    in_transaction([&](const pg::Spi&) {
        for (auto& [id, queue] : queues_) {
            if (!queue.look || queue.endpoint_id || now < queue.announce_at)
                continue;
            if (!queue.paused && queue::has_due(id, now)) {
                std::string channel = core::channel_of(queue.name);
                pg::guarded([&] { Async_Notify(channel.c_str(), ""); });
            }
            queue.next_due = queue::next_due(id, now);
            queue.announce_at = now + announce_every;
            queue.look = false;
        }
        commit_without_flush();
    });
}

// Of pulled jobs, where nobody pulls who would do it.
void Deliveries::end_leases() {
    in_transaction([this](const pg::Spi&) {
        for (auto& [id, queue] : queues_)
            if (queue.look && !queue.endpoint_id)
                queue::end_leases(id, housekeeping_batch, most_rows_looked_at);
    });
}

void Deliveries::delete_old(TimestampTz now) {
    std::size_t deleted = 0;
    in_transaction([&](const pg::Spi& spi) {
        deleted = queue::delete_old(spi, housekeeping_batch);
        commit_without_flush();
    });
    delete_at_ = deleted < housekeeping_batch ? now + delete_every : now;
}

TimestampTz Deliveries::scan_at() const {
    TimestampTz wait = pg::settings::scan_interval() / std::chrono::microseconds(1);
    return scanned_at_ + std::max(wait, scan_cost_ * scan_share);
}

TimestampTz Deliveries::next_turn(TimestampTz now) const {
    TimestampTz next = std::min(scan_at(), delete_at_);
    if (!results_.empty())
        next = std::min(next, record_at_);
    for (const auto& [id, queue] : queues_) {
        if (queue.next_due)
            next = std::min(next, *queue.next_due);
        if (!queue.endpoint_id && (queue.look || queue.announce_at > now))
            next = std::min(next, queue.announce_at);
    }
    return std::max(next, now);
}

// Of those to pull from, the ones that were announced a moment ago; of the others, those that have
// more due jobs than places.
shared::ExpectedQueues Deliveries::expected() const {
    shared::ExpectedQueues queues;
    std::size_t room = queues.capacity;
    TimestampTz now = pg::clock();
    for (const auto& [id, queue] : queues_)
        if (room > 0 && (queue.endpoint_id ? queue.look : queue.announce_at > now)) {
            queues.add(id);
            --room;
        }
    return queues;
}

void Deliveries::give_back() {
    draining_ = true;
    collect();
    client_.cancel_all();
    in_transaction([&](const pg::Spi& spi) {
        auto results = results_;
        record(spi, results);
        std::vector<queue::Failure> items;
        auto release = [&](const core::Uuid& id, int32 attempt) {
            items.push_back({.id = id,
                             .attempt = attempt,
                             .ending = queue::Ending::release,
                             .outcome = "interrupted",
                             .error = "the dispatcher ended before the request did"});
        };
        for (const auto& [tag, held] : held_)
            release(held.id, held.attempt);
        for (const auto& [id, endpoint] : endpoints_)
            for (const Job& job : endpoint.waiting)
                release(job.id, job.attempt);
        queue::fail(spi, items, OnLocked::skip);
    });
    held_.clear();
    results_.clear();
    in_hand_.clear();
    for (auto& [id, endpoint] : endpoints_) {
        endpoint.waiting.clear();
        endpoint.in_flight = 0;
    }
}

} // namespace jobq::worker
