#include <algorithm>
#include <numeric>
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
// Of bodies in hand: no more is claimed beyond.
constexpr std::size_t most_bytes = std::size_t{64} << 20;
constexpr std::size_t least_body = 1024;
// Where all results are locked, each tried costs a lock_timeout.
constexpr int most_locked = 3;
struct TooMuch {}; // was claimed
// A JSON answer is no result if its text is much longer in PostgreSQL's notation: its numbers are
// what nobody wants to read.
constexpr std::size_t largest_result = std::size_t{1} << 20;

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

Deliveries::Deliveries()
    : client_({.user_agent = "jobq/" JOBQ_VERSION, .ca_file = {}}),
      usual_bytes_(static_cast<std::size_t>(pg::settings::max_payload())) {}

TimestampTz Deliveries::work(const Woken& woken) {
    TimestampTz now = pg::clock();
    if (woken.settings)
        load_settings();
    if (woken.scan_all)
        queue::bounds::forget_all();
    if (woken.scan_all || woken.queues.overflowed() || now >= scan_at()) {
        look_everywhere();
        if (delivers())
            end_leases();
        scanned_at_ = pg::clock();
        scan_cost_ = scanned_at_ - now;
    }
    if (now >= delete_at_ && delivers())
        delete_old(now);
    for (int32 id : woken.queues.ids())
        look_at(id);
    std::erase_if(busy_, [now](const auto& entry) { return entry.second->idle(now); });
    for (auto [id, queue] : busy_)
        if (queue->next_due && *queue->next_due <= now) {
            queue->look = true;
            // Found anew once somebody could look. Until then it is no reason to wake.
            queue->next_due.reset();
        }

    // What ends while results are recorded is recorded at once. Requests that were just started
    // make fd() readable, so that the last of them begin in the next call.
    bool more = true;
    for (int turn = 0; more && turn < most_turns; ++turn) {
        collect();
        more = record_and_claim(pg::clock());
        start_waiting();
        if (more) {
            client_.step();
            flush(XactLastCommitEnd);
        }
    }
    announce(pg::clock());
    return more ? pg::clock() : next_turn(pg::clock());
}

bool Deliveries::delivers() const {
    return home_ && pg::settings::deliver();
}

shared::State Deliveries::state() const {
    if (!home_)
        return shared::State::foreign;
    if (!pg::settings::deliver())
        return shared::State::off;
    // Then pushes tell those that LISTEN themselves.
    return announcing_ ? shared::State::failing : shared::State::running;
}

std::string Deliveries::trouble() const {
    for (const Trouble* trouble : {&recording_, &announcing_, &looking_, &deleting_})
        if (*trouble)
            return trouble->text();
    for (auto [id, queue] : busy_)
        for (const Trouble* trouble : {&queue->claiming, &queue->ending_leases})
            if (*trouble)
                return trouble->text();
    return {};
}

void Deliveries::look_at(int32 queue_id) {
    if (auto queue = queues_.find(queue_id); queue != queues_.end()) {
        queue->second.look = true;
        busy_.emplace(queue_id, &queue->second);
    }
}

// After claims that were rolled back.
void Deliveries::look_again() {
    for (auto& [id, queue] : queues_)
        if (queue.endpoint_id)
            look_at(id);
}

// Does what may fail without harm to the rest.
void Deliveries::try_to(Trouble& trouble, std::string_view what,
                        const std::function<void()>& work) {
    if (trouble.waits(pg::clock()))
        return;
    try {
        work();
        trouble.over();
    } catch (const pg::Error& error) {
        pg::recover();
        trouble.met(what, error);
    }
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
                queue.claiming = was.claiming;
                queue.ending_leases = was.ending_leases;
            }
        }
        queues_ = std::move(queue_rows);
        busy_.clear();
        for (auto& [id, queue] : queues_)
            if (!queue.idle(pg::clock()))
                busy_.emplace(id, &queue);
        // One that is not there now is gone: its entry has no URL.
        for (int32 id : std::exchange(unknown_, {}))
            endpoints_[id];
    });
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
    try_to(looking_, "find the queues that have jobs", [this] {
        in_transaction([this](const pg::Spi& spi) {
            for (auto row : with_jobs.run(spi))
                look_at(row.int4(1));
        });
    });
    if (looking_)
        for (auto& [id, queue] : queues_)
            look_at(id);
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
            result.ending = Result::Ending::completed;
            result.outcome = "completed";
            result.json = !response.truncated && is_json(response.content_type);
        } else if (response.outcome == http::Outcome::answered) {
            result.outcome = fmt::format("http_{}", response.status);
            result.error = fmt::format("the endpoint answered with status {}", response.status);
        } else {
            result.outcome = http::name(response.outcome);
            result.error = std::move(response.error);
        }
        ++(result.ending == Result::Ending::completed ? delivered : failed);
        bytes_ -= held->second.bytes;
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
// Returns whether there may be more to do.
bool Deliveries::record_and_claim(TimestampTz now) {
    if (!unknown_.empty())
        load_settings();
    bool opened = std::any_of(endpoints_.begin(), endpoints_.end(),
                              [](const auto& entry) { return is_opened(entry.second); });
    bool looks = std::any_of(busy_.begin(), busy_.end(), [&](const auto& entry) {
        const Queue& queue = *entry.second;
        return queue.look && queue.endpoint_id && !queue.paused && !queue.claiming.waits(now);
    });
    bool wants = delivers() && !draining_ && (opened || looks);
    auto due_end = std::partition(results_.begin(), results_.end(),
                                  [&](const Result& result) { return result.not_before <= now; });
    auto due = static_cast<std::size_t>(due_end - results_.begin());
    if (!wants && due == 0)
        return false;

    std::vector<Job> claimed;
    std::vector<core::Uuid> left;
    XLogRecPtr durable_at = InvalidXLogRecPtr;
    claiming_.reset();
    requesting_ = false;
    try {
        in_transaction([&](const pg::Spi& spi) {
            if (due > 0)
                left = record(spi, {results_.data(), due});
            if (wants)
                claim(spi, now, claimed, durable_at);
            commit_without_flush();
        });
    } catch (const TooMuch&) {
        pg::recover();
        look_again();
        return true; // with fewer
    } catch (const pg::Error& error) {
        pg::recover();
        look_again();
        bool locked = error.sqlstate == ERRCODE_LOCK_NOT_AVAILABLE;
        if (claiming_)
            claim_failed(error, due);
        else if (due > 0 && (locked || !concerns_all(error)))
            record_one_by_one(due);
        else
            throw;
        return !locked;
    }
    recorded(due, left);
    if (wants)
        careful_ = false;
    bool any = !claimed.empty();
    flush(durable_at);
    start(std::move(claimed));
    return any;
}

// Records what it can. Returns, in their order, the ids of those that somebody has locked.
std::vector<core::Uuid> Deliveries::record(const pg::Spi& spi, std::span<const Result> results) {
    std::vector<queue::Completion> completions;
    std::vector<queue::Failure> failures;
    std::deque<std::string> texts; // views of which are kept below
    auto text = [&](const std::string& from) -> const std::string& {
        return texts.emplace_back(pg::from_utf8(from));
    };
    for (const Result& result : results) {
        auto status = result.status == 0 ? std::nullopt : std::optional<int32>(result.status);
        std::optional<Datum> json;
        if (result.json && !result.body.empty())
            json = pg::try_jsonb(result.body);
        std::size_t most = std::max(largest_result, 2 * result.body.size());
        if (json && pg::json_text_size(*json, most) > most)
            json.reset();
        auto response = json ? std::nullopt : unless_empty(text(result.body));
        if (result.ending == Result::Ending::completed)
            completions.push_back({.id = result.id,
                                   .attempt = result.attempt,
                                   .result = json,
                                   .outcome = result.outcome,
                                   .status_code = status,
                                   .response = response});
        else
            failures.push_back({.id = result.id,
                                .attempt = result.attempt,
                                .ending = result.ending == Result::Ending::failed
                                              ? queue::Ending::fail
                                              : queue::Ending::release,
                                .outcome = result.outcome,
                                .error = text(result.error),
                                .status_code = status,
                                .response = response});
    }
    auto ended = queue::complete(completions, OnLocked::skip);
    auto tried = queue::fail(spi, failures, OnLocked::skip);
    if (ended.size() + tried.size() == results.size())
        return {};
    // Of the rest, those whose lease is gone came too late: cancelled, or taken over.
    std::vector<core::Uuid> ids;
    std::vector<int32> attempts;
    for (const Result& result : results) {
        ids.push_back(result.id);
        attempts.push_back(result.attempt);
    }
    auto running = queue::still_running(spi, ids, attempts);
    std::sort(running.begin(), running.end());
    return running;
}

// Something is the matter with one of the first `due` results, be it a lock that an open
// transaction holds (a push of its unique key): the others do not wait with it.
void Deliveries::record_one_by_one(std::size_t due) {
    std::vector<core::Uuid> left;
    int locked = 0;
    for (std::size_t i = 0; i < due; ++i)
        try {
            if (locked == most_locked || !record_alone(results_[i]))
                left.push_back(results_[i].id);
        } catch (const pg::Error& error) {
            pg::recover();
            if (error.sqlstate != ERRCODE_LOCK_NOT_AVAILABLE)
                throw;
            ++locked;
            left.push_back(results_[i].id);
        }
    std::sort(left.begin(), left.end());
    recorded(due, left);
}

// False: it is to be tried again.
bool Deliveries::record_alone(Result& result) {
    bool recorded = false;
    auto try_it = [&] {
        in_transaction([&](const pg::Spi& spi) {
            recorded = record(spi, {&result, 1}).empty();
            commit_without_flush();
        });
    };
    try {
        try_it();
        return recorded;
    } catch (const pg::Error& error) {
        if (concerns_all(error))
            throw;
        pg::recover();
        // Perhaps it is what the receiver said.
        result.json = false;
        result.body.clear();
        result.error = error.message;
    }
    try {
        try_it();
    } catch (const pg::Error& error) {
        if (concerns_all(error))
            throw;
        pg::recover();
        recording_.met(fmt::format("record the outcome of job {}", core::to_string(result.id)),
                       error);
        result.not_before = recording_.retry_at();
        result.stuck = true;
    }
    return recorded;
}

// The first `due` results are recorded, or came too late, but for those that are left.
void Deliveries::recorded(std::size_t due, const std::vector<core::Uuid>& left) {
    TimestampTz now = pg::clock();
    std::size_t kept = 0;
    for (std::size_t i = 0; i < results_.size(); ++i) {
        Result& result = results_[i];
        if (i < due) {
            if (!std::binary_search(left.begin(), left.end(), result.id)) {
                // Unless it was claimed again since: an error may have kept us from hearing of the
                // end.
                auto held = in_hand_.find(result.id);
                if (held != in_hand_.end() && held->second == result.attempt)
                    in_hand_.erase(held);
                continue;
            }
            result.not_before = std::max(result.not_before, now + retry_locked_after);
        }
        if (kept != i)
            results_[kept] = std::move(result);
        ++kept;
    }
    results_.resize(kept);
    if (recording_ && std::none_of(results_.begin(), results_.end(),
                                   [](const Result& result) { return result.stuck; }))
        recording_.over();
}

// A job of which no request could be made is found by making each in a subtransaction. Else the
// queue is passed over for a while. The `due` results that were to be recorded with it
// are not lost.
void Deliveries::claim_failed(const pg::Error& error, std::size_t due) {
    if (requesting_ && !careful_) {
        careful_ = true;
        return;
    }
    auto queue = queues_.find(*claiming_);
    if (concerns_all(error) || queue == queues_.end()) {
        record_one_by_one(due);
        throw error;
    }
    queue->second.claiming.met(fmt::format("claim from queue \"{}\"", queue->second.name), error);
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
            look_at(after);
        }
    }
}

std::size_t Deliveries::bytes_of(const std::vector<Job>& jobs) {
    return std::accumulate(
        jobs.begin(), jobs.end(), std::size_t{0},
        [](std::size_t bytes, const Job& job) { return bytes + job.request.body.size(); });
}

std::size_t Deliveries::usual_bytes(const std::vector<Job>& jobs) {
    return std::max(bytes_of(jobs) / jobs.size(), least_body);
}

// Goes once around the queues, from behind the one where the last round ended.
void Deliveries::claim(const pg::Spi& spi, TimestampTz now, std::vector<Job>& claimed,
                       XLogRecPtr& durable_at) {
    auto limit = static_cast<std::size_t>(pg::settings::max_in_flight());
    std::size_t used = held_.size() + waiting();
    std::size_t free = std::min(used < limit ? limit - used : 0, most_claimed_at_once);
    std::size_t room = bytes_ < most_bytes ? most_bytes - bytes_ : 0;
    free = std::min(free, room == 0 ? 0 : std::max<std::size_t>(room / usual_bytes_, 1));
    look_behind_opened(spi);
    auto next = busy_.upper_bound(last_queue_);
    for (std::size_t i = 0; i < busy_.size() && free > 0; ++i) {
        if (next == busy_.end())
            next = busy_.begin();
        auto [id, found] = *next++;
        Queue& queue = *found;
        if (!queue.look || !queue.endpoint_id || queue.paused || queue.claiming.waits(now))
            continue;
        auto endpoint = endpoints_.find(*queue.endpoint_id);
        if (endpoint == endpoints_.end() || !endpoint->second.enabled)
            continue;
        claiming_ = id;
        claim_from(id, queue, endpoint->second, now, free, claimed, durable_at);
        queue.claiming.over();
        last_queue_ = id;
    }
    claiming_.reset();
    if (!claimed.empty())
        usual_bytes_ = usual_bytes(claimed);
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
    // Its jobs may name any endpoint.
    std::chrono::microseconds lease = queue.lease;
    std::vector<int32> closed;
    for (auto& [other, e] : endpoints_) {
        lease = std::max<std::chrono::microseconds>(lease, e.timeout);
        if (other != *queue.endpoint_id && is_closed(e)) {
            closed.push_back(other);
            e.passed_over = true;
        }
    }
    lease += lease_margin;
    auto [jobs, durable, next_due, blocked] =
        queue::claim({.queue_id = id,
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
    requesting_ = true;
    std::size_t bytes = bytes_of(claimed);
    for (const ClaimedJob& job : jobs) {
        int32 to = job.row.null(Column::endpoint_id) ? *queue.endpoint_id
                                                     : job.row.int4(Column::endpoint_id);
        claimed.push_back({job.id, job.attempt, id, to, {}});
        make_request(job, queue, claimed.back());
        bytes += claimed.back().request.body.size();
        if (bytes_ + bytes > most_bytes && claimed.size() > 1) {
            usual_bytes_ = usual_bytes(claimed);
            throw TooMuch();
        }
    }
    requesting_ = false;
    free -= jobs.size();
    if (jobs.size() < limit) {
        queue.look = false;
        queue.next_due = next_due;
        if (blocked)
            queue.next_due = std::min(queue.next_due.value_or(DT_NOEND), now + retry_locked_after);
    }
}

void Deliveries::make_request(const ClaimedJob& claimed, const Queue& queue, Job& job) {
    auto endpoint = endpoints_.find(job.endpoint_id);
    if (endpoint == endpoints_.end() || is_gone(endpoint->second))
        return; // see start()
    auto make = [&] { job.request = request_for(claimed, queue, endpoint->second, ++last_tag_); };
    if (!careful_)
        return make();
    try {
        pg::Subtransaction sub;
        make();
        sub.commit();
    } catch (const pg::Error& error) {
        if (ERRCODE_TO_CATEGORY(error.sqlstate) == ERRCODE_OPERATOR_INTERVENTION)
            throw;
        job.unfit = error.message;
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
    using Ending = Result::Ending;
    for (Job& job : jobs) {
        in_hand_.insert_or_assign(job.id, job.attempt);
        auto refuse = [&](Ending ending, const char* outcome, std::string error) {
            results_.push_back({.id = job.id,
                                .attempt = job.attempt,
                                .ending = ending,
                                .outcome = outcome,
                                .error = std::move(error)});
        };
        auto endpoint = endpoints_.find(job.endpoint_id);
        if (endpoint == endpoints_.end()) {
            // Created with the job, perhaps, and after the settings were read.
            unknown_.insert(job.endpoint_id);
            refuse(Ending::released, "no_endpoint", "the endpoint is not known yet");
        } else if (is_gone(endpoint->second)) {
            refuse(Ending::failed, "no_endpoint", "the endpoint does not exist any more");
        } else if (!job.unfit.empty()) {
            refuse(Ending::failed, "bad_request", "no request can be made of it: " + job.unfit);
        } else {
            bytes_ += job.request.body.size();
            endpoint->second.waiting.push_back(std::move(job));
        }
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
            held_.emplace(tag, Held{job.id, job.attempt, id, job.request.body.size()});
            client_.start(std::move(job.request));
            ++endpoint.in_flight;
            endpoint.waiting.pop_front();
        }
}

// Queues without an endpoint: says on their channels that there is something to pull.
void Deliveries::announce(TimestampTz now) {
    bool any = std::any_of(busy_.begin(), busy_.end(), [&](const auto& entry) {
        const Queue& queue = *entry.second;
        return queue.look && !queue.endpoint_id && now >= queue.announce_at;
    });
    if (!any || announcing_.waits(now))
        return;
    try_to(announcing_, "announce what can be pulled", [&] {
        in_transaction([&](const pg::Spi&) {
            for (auto [id, queue] : busy_)
                if (queue->look && !queue->endpoint_id && now >= queue->announce_at)
                    announce(id, *queue, now);
            commit_without_flush();
        });
        for (auto [id, queue] : busy_)
            if (queue->announce_at == now + announce_every)
                queue->look = false;
    });
}

void Deliveries::announce(int32 id, Queue& queue, TimestampTz now) {
    if (!queue.paused && queue::has_due(id, now)) {
        std::string channel = core::channel_of(queue.name);
        pg::guarded([&] { Async_Notify(channel.c_str(), ""); });
    }
    queue.next_due = queue::next_due(id, now);
    queue.announce_at = now + announce_every;
}

// Of pulled jobs, where nobody pulls who would do it.
void Deliveries::end_leases() {
    for (auto [id, busy] : busy_) {
        Queue& queue = *busy;
        if (!queue.look || queue.endpoint_id)
            continue;
        int32 queue_id = id;
        try_to(queue.ending_leases, fmt::format("end leases of queue \"{}\"", queue.name), [&] {
            in_transaction([&](const pg::Spi&) {
                queue::end_leases(queue_id, housekeeping_batch, most_rows_looked_at);
            });
        });
    }
}

void Deliveries::delete_old(TimestampTz now) {
    std::size_t deleted = 0;
    try_to(deleting_, "delete old jobs", [&] {
        in_transaction([&](const pg::Spi& spi) {
            deleted = queue::delete_old(spi, housekeeping_batch);
            commit_without_flush();
        });
    });
    if (deleting_)
        delete_at_ = deleting_.retry_at();
    else
        delete_at_ = deleted < housekeeping_batch ? now + delete_every : now;
}

TimestampTz Deliveries::scan_at() const {
    TimestampTz wait = pg::settings::scan_interval() / std::chrono::microseconds(1);
    return scanned_at_ + std::max(wait, scan_cost_ * scan_share);
}

TimestampTz Deliveries::next_turn(TimestampTz now) const {
    TimestampTz next = scan_at();
    if (delivers())
        next = std::min(next, delete_at_);
    for (const Result& result : results_)
        next = std::min(next, result.not_before);
    for (auto [id, busy] : busy_) {
        const Queue& queue = *busy;
        if (queue.next_due)
            next = std::min(next, *queue.next_due);
        if (!queue.endpoint_id && (queue.look || queue.announce_at > now))
            next = std::min(next, announcing_ ? std::max(queue.announce_at, announcing_.retry_at())
                                              : queue.announce_at);
        if (queue.endpoint_id && queue.look && queue.claiming.waits(now))
            next = std::min(next, queue.claiming.retry_at());
    }
    return std::max(next, now);
}

// Of those to pull from, the ones that were announced a moment ago; of the others, those that have
// more due jobs than places.
shared::ExpectedQueues Deliveries::expected() const {
    shared::ExpectedQueues queues;
    std::size_t room = queues.capacity;
    TimestampTz now = pg::clock();
    for (auto [id, queue] : busy_)
        if (room > 0 && (queue->endpoint_id ? queue->look : queue->announce_at > now)) {
            queues.add(id);
            --room;
        }
    return queues;
}

void Deliveries::give_back() {
    draining_ = true;
    collect();
    client_.cancel_all();
    try {
        record_one_by_one(results_.size());
    } catch (const pg::Error&) {
        pg::recover(); // they are delivered again
    }
    in_transaction([&](const pg::Spi& spi) {
        std::vector<queue::Failure> items;
        for (const auto& [tag, held] : held_)
            items.push_back(queue::interrupted(held.id, held.attempt));
        for (const auto& [id, endpoint] : endpoints_)
            for (const Job& job : endpoint.waiting)
                items.push_back(queue::interrupted(job.id, job.attempt));
        queue::fail(spi, items, OnLocked::skip);
    });
    held_.clear();
    results_.clear();
    in_hand_.clear();
    bytes_ = 0;
    for (auto& [id, endpoint] : endpoints_) {
        endpoint.waiting.clear();
        endpoint.in_flight = 0;
    }
}

} // namespace jobq::worker
