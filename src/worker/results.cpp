#include "worker/results.hpp"

#include <algorithm>
#include <deque>
#include <span>

#include <fmt/format.h>

#include "worker/transaction.hpp"

namespace jobq::worker {

using queue::OnLocked;

namespace {

constexpr TimestampTz retry_locked_after = 100 * 1000; // µs
// Where all results are locked, each tried costs a lock_timeout.
constexpr int most_locked = 3;
// A JSON answer is no result if its text is much longer in PostgreSQL's notation: its numbers are
// what nobody wants to read.
constexpr std::size_t largest_result = std::size_t{1} << 20;

std::optional<std::string_view> unless_empty(const std::string& text) {
    return text.empty() ? std::nullopt : std::optional<std::string_view>(text);
}

std::optional<Datum> result_of(const Result& result) {
    if (!result.json || result.body.empty())
        return std::nullopt;
    auto json = pg::try_jsonb(result.body);
    std::size_t most = std::max(largest_result, 2 * result.body.size());
    return json && pg::json_text_size(*json, most) <= most ? json : std::nullopt;
}

queue::Ending ending_of(Verdict::Ending ending) {
    switch (ending) {
    case Verdict::Ending::released:
        return queue::Ending::release;
    case Verdict::Ending::buried:
        return queue::Ending::bury;
    default:
        return queue::Ending::fail;
    }
}

std::optional<Datum> delay_of(const Verdict& verdict) {
    return verdict.again_in ? std::optional(pg::interval_param(*verdict.again_in).value)
                            : std::nullopt;
}

// Records what it can. Returns, in their order, the ids of those that somebody has locked. Adds the
// leases of those that were accepted.
std::vector<core::Uuid> record_all(const pg::Spi& spi, std::span<const Result> results,
                                   std::vector<queue::LeaseEnd>& lease_ends) {
    std::vector<queue::Completion> completions;
    std::vector<queue::Failure> failures;
    std::vector<queue::Attempt> accepted;
    std::vector<core::Uuid> left;
    std::deque<std::string> texts; // views of which are kept below
    auto text = [&](const std::string& from) -> const std::string& {
        return texts.emplace_back(pg::from_utf8(from));
    };
    for (const Result& result : results) {
        // Not recorded without: the dispatcher sends nothing there, and the row would not say so.
        if (result.verdict.gone &&
            !queue::disable_endpoint(spi, result.endpoint, text(result.verdict.error))) {
            left.push_back(result.id);
            continue;
        }
        if (result.verdict.ending == Verdict::Ending::accepted) {
            accepted.push_back({result.id, result.attempt});
            continue;
        }
        auto status = result.status == 0 ? std::nullopt : std::optional<int32>(result.status);
        auto json = result_of(result);
        auto response = json ? std::nullopt : unless_empty(text(result.body));
        if (result.verdict.ending == Verdict::Ending::completed)
            completions.push_back({.id = result.id,
                                   .attempt = result.attempt,
                                   .result = json,
                                   .outcome = result.verdict.outcome,
                                   .status_code = status,
                                   .response = response});
        else
            failures.push_back({.id = result.id,
                                .attempt = result.attempt,
                                .ending = ending_of(result.verdict.ending),
                                .outcome = result.verdict.outcome,
                                .error = text(result.verdict.error),
                                .retry_in = delay_of(result.verdict),
                                .retry_after = result.verdict.retry_after,
                                .status_code = status,
                                .response = response});
    }
    std::size_t done = queue::complete(completions, OnLocked::skip).size();
    done += queue::fail(spi, failures, OnLocked::skip).size();
    auto handed_over = queue::hand_over(spi, accepted);
    lease_ends.insert(lease_ends.end(), handed_over.begin(), handed_over.end());
    done += handed_over.size();
    std::sort(left.begin(), left.end());
    if (done + left.size() == results.size())
        return left;
    // Of the rest, those whose lease is gone came too late: cancelled, or taken over.
    std::vector<core::Uuid> ids;
    std::vector<int32> attempts;
    for (const Result& result : results) {
        ids.push_back(result.id);
        attempts.push_back(result.attempt);
    }
    auto running = queue::still_running(spi, ids, attempts);
    running.insert(running.end(), left.begin(), left.end());
    std::sort(running.begin(), running.end());
    return running;
}

} // namespace

bool Results::holds(const core::Uuid& id, int32 attempt) const {
    auto found = in_hand_.find(id);
    return found != in_hand_.end() && found->second == attempt;
}

std::size_t Results::due(TimestampTz now) {
    auto end = std::partition(results_.begin(), results_.end(),
                              [&](const Result& result) { return result.not_before <= now; });
    return static_cast<std::size_t>(end - results_.begin());
}

std::vector<core::Uuid> Results::record(const pg::Spi& spi, std::size_t due) {
    return record_all(spi, {results_.data(), due}, lease_ends_);
}

void Results::record_one_by_one(std::size_t due) {
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
bool Results::record_alone(Result& result) {
    bool recorded = false;
    auto try_it = [&] {
        in_transaction([&](const pg::Spi& spi) {
            recorded = record_all(spi, {&result, 1}, lease_ends_).empty();
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
        result.verdict.error = error.message;
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
void Results::recorded(std::size_t due, const std::vector<core::Uuid>& left) {
    TimestampTz now = pg::clock();
    std::size_t kept = 0;
    for (std::size_t i = 0; i < results_.size(); ++i) {
        Result& result = results_[i];
        if (i < due) {
            if (!std::binary_search(left.begin(), left.end(), result.id)) {
                // Unless it was claimed again since: an error may have kept us from hearing of the
                // end.
                if (holds(result.id, result.attempt))
                    in_hand_.erase(result.id);
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

TimestampTz Results::next() const {
    TimestampTz next = DT_NOEND;
    for (const Result& result : results_)
        next = std::min(next, result.not_before);
    return next;
}

void Results::clear() {
    results_.clear();
    in_hand_.clear();
    lease_ends_.clear();
}

} // namespace jobq::worker
