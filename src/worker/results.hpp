// Attempts in the dispatcher's hands, from their claim until their outcome is recorded.
//
// Outcomes are kept here until they are recorded, whatever errors come in between. Many are
// recorded with one transaction; where that fails, one by one, so that one that cannot be recorded
// (or whose job somebody has locked) holds up no other.
#pragma once

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/uuid.hpp"
#include "pg/spi.hpp"
#include "queue/finish.hpp"
#include "worker/endpoint.hpp"
#include "worker/trouble.hpp"

namespace jobq::worker {

struct Result {
    core::Uuid id;
    int32 attempt;
    Verdict verdict;
    int status = 0;
    std::string body = {};
    bool json = false;          // the body says that it is
    int32 endpoint = 0;         // to be disabled, if verdict.gone
    TimestampTz not_before = 0; // of its next try to be recorded
    bool stuck = false;         // it could not be, alone
};

class Results {
public:
    // A claimed attempt.
    void hold(const core::Uuid& id, int32 attempt) { in_hand_.insert_or_assign(id, attempt); }
    bool holds(const core::Uuid& id, int32 attempt) const;

    void add(Result&& result) { results_.push_back(std::move(result)); }
    std::size_t size() const { return results_.size(); }

    // Puts those that are to be recorded now in front, and returns how many they are.
    std::size_t due(TimestampTz now);
    // Records the first `due` in the caller's transaction. Returns the ids of those that somebody
    // has locked, in order.
    std::vector<core::Uuid> record(const pg::Spi& spi, std::size_t due);
    // That transaction is committed.
    void recorded(std::size_t due, const std::vector<core::Uuid>& left);
    // It failed: each in a transaction of its own. Throws what concerns them all.
    void record_one_by_one(std::size_t due);

    // When the leases end of those that were recorded as accepted, each told once.
    std::vector<queue::LeaseEnd> take_lease_ends() { return std::exchange(lease_ends_, {}); }

    // When the next one is to be tried; DT_NOEND if there is none.
    TimestampTz next() const;
    const Trouble& trouble() const { return recording_; }
    // All of them, and what is in hand, are dropped.
    void clear();

private:
    bool record_alone(Result& result);

    // Every attempt that is claimed and not recorded as ended.
    std::unordered_map<core::Uuid, int32, core::UuidHash> in_hand_;
    std::vector<Result> results_;
    std::vector<queue::LeaseEnd> lease_ends_; // some perhaps of what was rolled back
    Trouble recording_;
};

} // namespace jobq::worker
