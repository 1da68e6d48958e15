#include "worker/deliveries.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <sys/resource.h>

#include "core/header.hpp"
#include "pg/settings.hpp"
#include "queue/bounds.hpp"
#include "queue/finish.hpp"
#include "worker/endpoint_states.hpp"
#include "worker/request.hpp"
#include "worker/transaction.hpp"

extern "C" {
#include "access/xlog.h"
}

namespace jobq::worker {

using core::Stream;
using queue::ClaimedJob;
using std::chrono::microseconds;

namespace {

constexpr int most_turns = 16;
constexpr TimestampTz retry_locked_after = 100 * 1000;
// So long before a job is due an idle dispatcher looks for it, in vain, and has what it needs in
// the caches when the time comes.
constexpr TimestampTz head_start = 300;
constexpr TimestampTz delete_every = 60 * USECS_PER_SEC;
// Scans take at most one part in so many of the time.
constexpr int scan_share = 100;
constexpr std::size_t deleted_at_once = 1000;
// Over the longest a delivery can take: it ends by its timeout, not by its lease.
constexpr microseconds lease_margin = std::chrono::minutes(1);
constexpr std::size_t most_claimed_at_once = 500;
// Where many streams wait, each gets at least so many places: a claim of one costs nearly as much.
constexpr std::size_t least_share = 16;
// Of bodies in hand: no more is claimed beyond.
constexpr std::size_t most_bytes = std::size_t{64} << 20;
constexpr std::size_t least_body = 1024;
struct TooMuch {}; // was claimed

// Left for PostgreSQL's own files.
constexpr rlim_t files_for_others = 200;

microseconds time_of(TimestampTz at) {
    return microseconds(at);
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

bool is_json(std::string_view content_type) {
    std::string type(content_type.substr(0, content_type.find(';')));
    while (!type.empty() && type.back() == ' ')
        type.pop_back();
    return core::same_name(type, "application/json") ||
           (type.size() > 5 &&
            core::same_name(std::string_view(type).substr(type.size() - 5), "+json"));
}

std::size_t most_sockets() {
    rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return 0;
    return std::max<rlim_t>(limit.rlim_cur, 2 * files_for_others) - files_for_others;
}

} // namespace

Deliveries::Deliveries()
    : client_(
          {.user_agent = "jobq/" JOBQ_VERSION, .max_sockets = static_cast<long>(most_sockets())}),
      usual_bytes_(static_cast<std::size_t>(pg::settings::max_payload())) {}

TimestampTz Deliveries::work(const Woken& woken) {
    TimestampTz now = pg::clock();
    if (networks_ != pg::settings::allowed_networks()) {
        networks_ = pg::settings::allowed_networks();
        client_.allow([networks = networks_](const core::Address& address) {
            return networks->allows(address);
        });
    }
    if (woken.settings)
        load_settings();
    if (woken.scan_all)
        queue::bounds::forget_all();
    bool scan = woken.scan_all || woken.streams.overflowed() || now >= scan_at();
    if (scan) {
        look_everywhere();
        if (delivers())
            announcements_.end_leases(queues_);
        scanned_at_ = pg::clock();
        scan_cost_ = scanned_at_ - now;
    }
    if (now >= delete_at_ && delivers())
        delete_old(now);
    for (const Stream& stream : woken.streams.streams())
        look_at(stream);

    rehearse(now);
    // What ends while results are recorded is recorded at once. Requests that were just started
    // make fd() readable, so that the last of them begin in the next call.
    bool more = true;
    for (int turn = 0; more && turn < most_turns; ++turn) {
        collect();
        more = record_and_claim(pg::clock());
        if (more) {
            client_.step();
            flush(XactLastCommitEnd);
        }
    }
    for (const auto& [stream, at] : results_.take_lease_ends())
        lease_ends_.look_at(stream, at);
    TimestampTz announced_from = pg::clock();
    announcements_.announce(queues_, announced_from);
    if (scan) // of all that it found
        scan_cost_ += pg::clock() - announced_from;
    publish(pg::clock());
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
    return announcements_.trouble() ? shared::State::failing : shared::State::running;
}

std::string Deliveries::trouble() const {
    for (const Trouble* trouble :
         {&results_.trouble(), &announcements_.trouble(), &looking_, &deleting_})
        if (*trouble)
            return trouble->text();
    if (!troubles_.empty())
        return troubles_.begin()->second.text();
    if (const Trouble* trouble = announcements_.trouble_with_leases())
        return trouble->text();
    return {};
}

void Deliveries::look_at(Stream stream) {
    auto queue = queues_.find(stream.queue);
    if (queue == queues_.end())
        return;
    if (!queue->second.delivered())
        announcements_.look_at(stream.queue);
    else if (!stream.is_any())
        agenda_.look_at(stream);
    else
        wide_.insert(stream.queue);
}

void Deliveries::load_settings() {
    in_transaction([&](const pg::Spi& spi) {
        auto rows = read_endpoints(spi);
        microseconds now = time_of(pg::clock());
        std::erase_if(endpoints_, [&](const auto& entry) {
            auto& [id, endpoint] = entry;
            return !rows.contains(id) && endpoint.in_flight() == 0 && !unknown_.contains(id);
        });
        for (auto& [id, endpoint] : endpoints_)
            if (!rows.contains(id))
                endpoint.set({}, now); // what is under way goes on
        for (auto& [id, settings] : rows)
            endpoints_[id].set(std::move(settings), now);

        auto queues = read_queues(spi, home_);
        std::swap(queues_, queues);
        for (const auto& [id, queue] : queues_) {
            auto old = queues.find(id);
            // One that is as it was need not be looked at again.
            if (old != queues.end() && old->second == queue)
                continue;
            announcements_.forget(id);
            look_at({id, Stream::any});
        }
    });
    stale_settings_ = false;
    agenda_.unblock_all(); // of those too whose endpoint is gone, and its queue has another
    for (const auto& [id, endpoint] : endpoints_)
        changed_.insert(id);
    reopening_.clear();
    reopen_at_.clear();
}

void Deliveries::look_everywhere() {
    try_to(looking_, "find the queues that have jobs", [this] {
        in_transaction([this](const pg::Spi&) {
            for (const Stream& stream : queue::streams())
                if (stream.endpoint != queue::no_route)
                    look_at(stream);
        });
    });
    if (looking_)
        for (const auto& [id, queue] : queues_)
            look_at({id});
}

void Deliveries::send_test(const test_mail::TestOrder& order) {
    auto endpoint = endpoints_.find(order.endpoint);
    if (endpoint == endpoints_.end() || endpoint->second.settings().gone()) {
        test_mail::TestResult result;
        result.outcome = "no_endpoint";
        result.error = "the dispatcher does not know the endpoint: it is not committed";
        test_mail::answer(order.ticket, result);
        return;
    }
    http::Request request;
    try {
        in_transaction([&](const pg::Spi&) { // for what has to be converted to UTF-8
            request =
                make_test_request(endpoint->second.settings(), fmt::format("test_{}", order.ticket),
                                  pg::unix_time(pg::clock()));
        });
    } catch (const pg::Error& error) {
        pg::recover();
        test_mail::TestResult result;
        result.outcome = "bad_request";
        result.error = "no request can be made: " + error.message;
        test_mail::answer(order.ticket, result);
        return;
    }
    request.tag = ++last_tag_;
    tests_.emplace(request.tag, order.ticket);
    client_.start(std::move(request));
}

void Deliveries::test_ended(http::Response& response) {
    auto test = tests_.extract(response.tag);
    EndpointSettings plain; // 202 is fine here
    Verdict verdict = judge(plain, response);
    test_mail::TestResult result;
    result.ok = verdict.ending == Verdict::Ending::completed;
    result.status = response.status;
    result.duration = response.elapsed.count();
    result.outcome = verdict.outcome;
    result.http_version = response.http_version == 20   ? "2"
                          : response.http_version == 11 ? "1.1"
                          : response.http_version == 10 ? "1.0"
                                                        : "";
    result.address = response.address;
    result.error = verdict.error;
    result.response = response.body;
    test_mail::answer(test.mapped(), result);
}

// Turns the responses that have come into results.
void Deliveries::collect() {
    client_.step();
    client_.take(responses_);
    for (http::Response& response : responses_) {
        if (auto held = held_.extract(response.tag); !held.empty())
            ended(std::move(held.mapped()), response);
        else if (tests_.contains(response.tag))
            test_ended(response);
    }
    responses_.clear();
}

void Deliveries::ended(Held&& held, http::Response& response) {
    auto found = endpoints_.find(held.endpoint_id);
    bytes_ -= held.bytes;
    if (found == endpoints_.end())
        return;
    Endpoint& endpoint = found->second;
    bool was_open = endpoint.open();
    Verdict verdict = endpoint.end(held.begun, response, time_of(pg::clock()));
    bool good =
        verdict.ending == Verdict::Ending::completed || verdict.ending == Verdict::Ending::accepted;
    shared::count(good ? 1 : 0, good ? 0 : 1);
    if (verdict.gone)
        pg::guarded([&] {
            ereport(LOG,
                    errmsg("jobq dispatcher: endpoint \"%s\" answered 410 and is disabled",
                           endpoint.settings().name.c_str()),
                    errhint("jobq.alter_endpoint with options {\"enabled\": true} enables it."));
        });
    if (endpoint.open() && !was_open)
        drop_waiting(held.endpoint_id);
    look_at_room(held.endpoint_id, endpoint);
    changed_.insert(held.endpoint_id);
    results_.add({.id = held.id,
                  .attempt = held.attempt,
                  .verdict = std::move(verdict),
                  .status = response.status,
                  .body = std::move(response.body),
                  .json = !response.truncated && is_json(response.content_type),
                  .endpoint = held.endpoint_id});
}

// Its breaker has opened: what has not left yet goes back.
void Deliveries::drop_waiting(int32 endpoint_id) {
    Endpoint& endpoint = endpoints_.at(endpoint_id);
    std::vector<std::uint64_t> dropped;
    client_.cancel_waiting(
        [&](std::uint64_t tag) {
            auto held = held_.find(tag);
            return held != held_.end() && held->second.endpoint_id == endpoint_id;
        },
        dropped);
    for (std::uint64_t tag : dropped) {
        Held held = held_.extract(tag).mapped();
        endpoint.abandon(held.begun);
        bytes_ -= held.bytes;
        refuse({held.id, held.attempt, endpoint_id, {}}, Verdict::Ending::released, "breaker_open",
               "the endpoint is down");
    }
}

// One transaction for both, so that places freed by results are claimed again with one commit.
// Returns whether there may be more to do.
bool Deliveries::record_and_claim(TimestampTz now) {
    if (stale_settings_)
        load_settings();
    lease_ends_.ring(now);
    while (auto stream = lease_ends_.next()) {
        lease_ends_.done(*stream);
        agenda_.look_at(*stream);
    }
    agenda_.ring(now);
    reopen(now);
    bool wants = delivers() && !draining_ && (agenda_.ready() > 0 || !wide_.empty());
    std::size_t due = results_.due(now);
    if (!wants && due == 0)
        return false;

    Claimed claimed;
    std::vector<core::Uuid> left;
    claiming_.reset();
    requesting_ = false;
    try {
        in_transaction([&](const pg::Spi& spi) {
            if (due > 0)
                left = results_.record(spi, due);
            if (wants)
                claim(now, claimed);
            commit_without_flush();
        });
    } catch (const TooMuch&) {
        pg::recover();
        roll_back(claimed);
        return true; // with fewer
    } catch (const pg::Error& error) {
        pg::recover();
        roll_back(claimed);
        bool locked = error.sqlstate == ERRCODE_LOCK_NOT_AVAILABLE;
        if (claiming_)
            claim_failed(error, due);
        else if (due > 0 && (locked || !concerns_all(error)))
            results_.record_one_by_one(due);
        else
            throw;
        return !locked;
    } catch (const std::exception&) { // out of memory
        roll_back(claimed);
        throw;
    }
    results_.recorded(due, left);
    if (wants)
        careful_ = false;
    flush(claimed.durable_at);
    bool any = !claimed.jobs.empty();
    start(std::move(claimed.jobs));
    return any || claimed.more || stale_settings_;
}

void Deliveries::roll_back(const Claimed& claimed) {
    for (auto& [id, endpoint] : endpoints_)
        endpoint.unreserve();
    agenda_.unblock_all();
    for (const Stream& stream : claimed.visited)
        agenda_.look_at(stream);
}

// A job of which no request could be made is found by making each in a subtransaction. Else the
// stream is passed over for a while. The `due` results that were to be recorded with it are not
// lost.
void Deliveries::claim_failed(const pg::Error& error, std::size_t due) {
    if (requesting_ && !careful_) {
        careful_ = true;
        return;
    }
    auto queue = queues_.find(claiming_->queue);
    if (concerns_all(error) || queue == queues_.end()) {
        results_.record_one_by_one(due);
        throw error;
    }
    Trouble& trouble = troubles_[*claiming_];
    trouble.met(fmt::format("claim from queue \"{}\"", queue->second.name), error);
    agenda_.done(*claiming_, trouble.retry_at());
}

// Before its time comes.
void Deliveries::rehearse(TimestampTz now) {
    auto at = agenda_.next_time();
    if (!at || *at - head_start > now || rehearsed_ == at || in_flight() > 0 || !delivers())
        return;
    rehearsed_ = at;
    if (*at <= now)
        return;
    try {
        in_transaction([&](const pg::Spi&) { queue::has_due(*agenda_.next_timed(), now); });
    } catch (const pg::Error&) {
        pg::recover(); // the claim will say what is wrong
    }
}

// Which streams of these queues have jobs.
void Deliveries::look_into_wide() {
    for (int32 id : wide_)
        for (const Stream& stream : queue::streams(id))
            if (stream.endpoint != queue::no_route)
                look_at(stream);
    wide_.clear();
}

// Goes around the ready streams, each once.
void Deliveries::claim(TimestampTz now, Claimed& claimed) {
    auto limit = static_cast<std::size_t>(pg::settings::max_in_flight());
    std::size_t free =
        std::min(held_.size() < limit ? limit - held_.size() : 0, most_claimed_at_once);
    std::size_t room = bytes_ < most_bytes ? most_bytes - bytes_ : 0;
    free = std::min(free, room == 0 ? 0 : std::max<std::size_t>(room / usual_bytes_, 1));
    look_into_wide();
    std::size_t share = std::max(free / std::max<std::size_t>(agenda_.ready(), 1), least_share);
    for (std::size_t left = agenda_.ready(); left > 0 && free > 0; --left) {
        Stream stream = *agenda_.next();
        claimed.visited.push_back(stream);
        auto queue = queues_.find(stream.queue);
        if (queue == queues_.end() || !queue->second.delivered() || queue->second.paused) {
            agenda_.forget(stream);
            continue;
        }
        int32 endpoint_id = stream.endpoint == Stream::own
                                ? queue->second.endpoint_id.value_or(queue::no_route)
                                : stream.endpoint;
        auto endpoint = endpoints_.find(endpoint_id);
        if (endpoint_id == queue::no_route) {
            agenda_.forget(stream);
            continue;
        }
        if (endpoint == endpoints_.end()) {
            // Created with the job, perhaps, and after the settings were read. One that is not
            // there then is gone.
            endpoints_[endpoint_id];
            unknown_.insert(endpoint_id);
            stale_settings_ = true;
            continue;
        }
        std::size_t places = std::min({free, share, endpoint->second.room(time_of(now))});
        if (places == 0) {
            agenda_.block(stream, endpoint_id);
            look_at_room(endpoint_id, endpoint->second);
            continue;
        }
        claiming_ = stream;
        std::size_t taken =
            claim_from(stream, queue->second, endpoint->second, endpoint_id, places, now, claimed);
        free -= taken;
        troubles_.erase(stream);
        if (taken == places && endpoint->second.room(time_of(now)) == 0) { // it may have more
            agenda_.block(stream, endpoint_id);
            look_at_room(endpoint_id, endpoint->second);
        }
    }
    claiming_.reset();
    claimed.more = free > 0 && agenda_.ready() > 0;
    if (!claimed.jobs.empty())
        usual_bytes_ = std::max(claimed.bytes / claimed.jobs.size(), least_body);
}

// Returns how many it claimed.
std::size_t Deliveries::claim_from(Stream stream, const QueueSettings& queue, Endpoint& endpoint,
                                   int32 endpoint_id, std::size_t limit, TimestampTz now,
                                   Claimed& claimed) {
    microseconds lease = std::max<microseconds>(queue.lease, endpoint.settings().timeout);
    lease += lease_margin;
    auto [jobs, durable, next_due, blocked, lease_end] =
        queue::claim({.stream = stream,
                      .limit = limit,
                      .max_running = queue.max_running,
                      .due = now,
                      .lease_until = now + lease.count(),
                      .delivery = true,
                      .in_hand = [this](const core::Uuid& job, int32 attempt) {
                          return results_.holds(job, attempt);
                      }});
    endpoint.reserve(jobs.size());
    claimed.durable_at = std::max(claimed.durable_at, durable);
    requesting_ = true;
    for (const ClaimedJob& job : jobs) {
        Job& made = claimed.jobs.emplace_back(Job{job.id, job.attempt, endpoint_id, {}});
        make_request(job, queue, endpoint.settings(), made);
        claimed.bytes += made.request.body.size();
        if (bytes_ + claimed.bytes > most_bytes && claimed.jobs.size() > 1) {
            usual_bytes_ = std::max(claimed.bytes / claimed.jobs.size(), least_body);
            throw TooMuch();
        }
    }
    requesting_ = false;
    if (lease_end)
        lease_ends_.look_at(stream, *lease_end);
    if (jobs.size() < limit) {
        if (blocked)
            next_due = std::min(next_due.value_or(DT_NOEND), now + retry_locked_after);
        agenda_.done(stream, next_due);
    }
    return jobs.size();
}

// Whether streams that its endpoint blocks may go on, now or at a time.
void Deliveries::look_at_room(int32 endpoint_id, const Endpoint& endpoint) {
    microseconds now = time_of(pg::clock());
    std::size_t room = endpoint.room(now);
    auto at = room > 0 ? std::optional(now) : endpoint.opens_at(now);
    if (auto old = reopen_at_.find(endpoint_id); old != reopen_at_.end()) {
        reopening_.erase({old->second, endpoint_id});
        reopen_at_.erase(old);
    }
    if (at && *at <= now) {
        agenda_.unblock(endpoint_id, std::max<std::size_t>(room, 1));
    } else if (at) {
        reopen_at_.emplace(endpoint_id, at->count());
        reopening_.emplace(at->count(), endpoint_id);
    }
}

void Deliveries::reopen(TimestampTz now) {
    while (!reopening_.empty() && reopening_.begin()->first <= now) {
        int32 id = reopening_.begin()->second;
        changed_.insert(id);
        look_at_room(id, endpoints_.at(id));
    }
}

void Deliveries::make_request(const ClaimedJob& claimed, const QueueSettings& queue,
                              const EndpointSettings& endpoint, Job& job) {
    if (endpoint.gone())
        return; // see start()
    auto make = [&] {
        job.request = worker::make_request(claimed, queue, endpoint, pg::unix_time(pg::clock()));
        job.request.tag = ++last_tag_;
    };
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

void Deliveries::refuse(const Job& job, Verdict::Ending ending, const char* outcome,
                        std::string error) {
    results_.add({.id = job.id,
                  .attempt = job.attempt,
                  .verdict = {.ending = ending, .outcome = outcome, .error = std::move(error)}});
}

void Deliveries::start(std::vector<Job> jobs) {
    using Ending = Verdict::Ending;
    for (Job& job : jobs)
        endpoints_.at(job.endpoint_id).unreserve();
    for (Job& job : jobs) {
        results_.hold(job.id, job.attempt);
        Endpoint& endpoint = endpoints_.at(job.endpoint_id);
        if (endpoint.settings().gone()) {
            refuse(job, Ending::failed, "no_endpoint", "the endpoint does not exist any more");
        } else if (!job.unfit.empty()) {
            refuse(job, Ending::failed, "bad_request",
                   "no request can be made of it: " + job.unfit);
        } else {
            std::uint64_t tag = job.request.tag;
            std::size_t bytes = job.request.body.size();
            held_.emplace(tag, Held{job.id, job.attempt, job.endpoint_id, bytes,
                                    endpoint.begin(time_of(pg::clock()))});
            bytes_ += bytes;
            client_.start(std::move(job.request));
            changed_.insert(job.endpoint_id);
            continue;
        }
        look_at_room(job.endpoint_id, endpoint);
    }
}

void Deliveries::delete_old(TimestampTz now) {
    std::size_t deleted = 0;
    try_to(deleting_, "delete old jobs", [&] {
        in_transaction([&](const pg::Spi& spi) {
            deleted = queue::delete_old(spi, deleted_at_once);
            commit_without_flush();
        });
    });
    if (deleting_)
        delete_at_ = deleting_.retry_at();
    else
        delete_at_ = deleted < deleted_at_once ? now + delete_every : now;
}

void Deliveries::publish(TimestampTz now) {
    using endpoint_states::EndpointState;
    for (int32 id : std::exchange(changed_, {})) {
        auto found = endpoints_.find(id);
        if (found == endpoints_.end() || found->second.settings().gone())
            continue;
        auto seen = found->second.seen(time_of(now));
        auto or_zero = [](const auto& time) { return time ? time->count() : 0; };
        auto or_none = [](const auto& duration) { return duration ? duration->count() : -1; };
        EndpointState state;
        state.endpoint = id;
        state.in_flight = static_cast<int32>(seen.in_flight);
        state.window = static_cast<int32>(seen.window);
        state.breaker =
            seen.breaker == core::Breaker::State::closed ? EndpointState::Breaker::closed
            : seen.breaker == core::Breaker::State::open ? EndpointState::Breaker::open
                                                         : EndpointState::Breaker::half_open;
        state.breaker_until = or_zero(seen.probe_at);
        state.paused_until = or_zero(seen.paused_until);
        state.succeeded = seen.succeeded;
        state.failed = seen.failed;
        state.recent_succeeded = static_cast<int64>(seen.recent_succeeded);
        state.recent_failed = static_cast<int64>(seen.recent_failed);
        state.p50 = or_none(seen.median);
        state.p99 = or_none(seen.p99);
        state.last_status = seen.last_status;
        state.last_at = or_zero(seen.last_at);
        state.last_outcome = seen.last_outcome;
        state.last_error = seen.last_error;
        endpoint_states::publish(state);
    }
}

TimestampTz Deliveries::scan_at() const {
    TimestampTz wait = pg::settings::scan_interval() / microseconds(1);
    return scanned_at_ + std::max(wait, scan_cost_ * scan_share);
}

TimestampTz Deliveries::next_turn(TimestampTz now) const {
    TimestampTz next = std::min({scan_at(), results_.next(), announcements_.next()});
    if (delivers()) {
        next = std::min(next, delete_at_);
        if (auto at = agenda_.next_time())
            next = std::min(next, rehearsed_ == at || in_flight() > 0 ? *at : *at - head_start);
        next = std::min(next, lease_ends_.next_time().value_or(DT_NOEND));
        if (!reopening_.empty())
            next = std::min(next, reopening_.begin()->first);
    }
    return std::max(next, now);
}

// Of those to pull from, the ones that were announced a moment ago; of the others, those that have
// more due jobs than places.
shared::Expected Deliveries::expected() const {
    shared::Expected expected;
    for (const Stream& stream : agenda_.wanting(expected.capacity))
        expected.add(stream);
    std::size_t room = expected.capacity - expected.streams().size();
    for (const Stream& stream : announcements_.expected(pg::clock(), room))
        expected.add(stream);
    return expected;
}

void Deliveries::give_back() {
    draining_ = true;
    collect();
    client_.cancel_all();
    try {
        results_.record_one_by_one(results_.size());
    } catch (const pg::Error&) {
        pg::recover(); // they are delivered again
    }
    in_transaction([&](const pg::Spi& spi) {
        std::vector<queue::Failure> items;
        for (const auto& [tag, held] : held_)
            items.push_back(queue::interrupted(held.id, held.attempt));
        queue::fail(spi, items, queue::OnLocked::skip);
    });
    held_.clear();
    results_.clear();
    bytes_ = 0;
}

} // namespace jobq::worker
