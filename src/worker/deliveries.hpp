// What a dispatcher does: claims due jobs of queues with an endpoint, POSTs them, records the
// outcomes; tells workers that LISTEN of arrivals in the other queues; and keeps house.
//
// One turn, work():
//   1. requests move on; those that ended become results
//   2. one transaction: results are recorded, then the freed places are claimed again
//   3. after its commit, and once the pushes are flushed: requests for what was claimed
//   4. announcements and housekeeping, each in a transaction of its own
// No transaction is open while a request is under way. What an error interrupts is kept in memory
// and tried again in the next turn: results until they are recorded, queues until they were looked
// at.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/uuid.hpp"
#include "http/client.hpp"
#include "queue/claim.hpp"
#include "queue/wake.hpp"
#include "worker/shared.hpp"

namespace jobq::worker {

class Deliveries {
public:
    Deliveries();

    // Readable when work() has something to do.
    int fd() const { return client_.fd(); }

    struct Woken {
        decltype(queue::wake::Wakeup::queues) queues;
        bool settings = false, scan_all = false;
    };
    // Does all that can be done now, and returns when to be called again at the latest. Throws
    // pg::Error with the transaction aborted.
    TimestampTz work(const Woken& woken);

    // Queues that work() will look at when it is called next, whatever is pushed to them.
    shared::ExpectedQueues expected() const;

    // Jobs that are claimed and not recorded as ended.
    std::size_t in_flight() const;
    // Stops claiming.
    void begin_drain() { draining_ = true; }
    // Drops what is under way and gives back every job that is held, uncharged.
    void give_back();

private:
    struct Job {
        core::Uuid id;
        int32 attempt;
        int32 queue_id, endpoint_id;
        http::Request request;
    };
    struct Endpoint {
        std::string name, url;
        std::vector<std::pair<std::string, std::string>> headers;
        std::size_t max_in_flight = 0;
        std::chrono::milliseconds timeout{}, connect_timeout{};
        std::size_t keep_response = 0;
        bool enabled = false;
        std::size_t in_flight = 0;
        bool passed_over = false; // by claims, while it was closed
        std::deque<Job> waiting;  // claimed, and no place for them yet
    };
    struct Queue {
        std::string name;
        std::optional<int32> endpoint_id;
        bool paused = false;
        std::chrono::microseconds lease{};
        std::optional<int32> max_running;
        bool look = true;                    // it may have due jobs
        std::optional<TimestampTz> next_due; // when it will have one at the latest known
        TimestampTz announce_at = 0;         // not before: announcements are throttled
    };
    struct Held {
        core::Uuid id;
        int32 attempt;
        int32 endpoint_id;
    };
    struct Result {
        core::Uuid id;
        int32 attempt;
        bool completed = false;
        bool json = false;
        std::string outcome = {}, error = {}, body = {};
        int status = 0;
    };

    void load_settings();
    void look_everywhere();
    void collect();
    bool record_and_claim(TimestampTz now);
    void record(const pg::Spi& spi, std::vector<Result>& results);
    void record_one_by_one();
    void recorded_but(std::vector<Result> left);
    // Takes no more jobs that name it.
    static bool is_closed(const Endpoint& e) {
        return !e.enabled || e.waiting.size() >= e.max_in_flight;
    }
    static bool is_opened(const Endpoint& e) { return e.passed_over && !is_closed(e); }
    void look_behind_opened(const pg::Spi& spi);
    void claim(const pg::Spi& spi, TimestampTz now, std::vector<Job>& claimed,
               XLogRecPtr& durable_at);
    void claim_from(int32 id, Queue& queue, Endpoint& endpoint, TimestampTz now, std::size_t& free,
                    std::vector<Job>& claimed, XLogRecPtr& durable_at);
    http::Request request_for(const queue::ClaimedJob& job, const Queue& queue,
                              const Endpoint& endpoint, std::uint64_t tag);
    void start(std::vector<Job> jobs);
    void start_waiting();
    void announce(TimestampTz now);
    void end_leases();
    void delete_old(TimestampTz now);
    TimestampTz scan_at() const;
    TimestampTz next_turn(TimestampTz now) const;
    std::size_t waiting() const;

    http::Library library_;
    http::Client client_;
    std::map<int32, Endpoint> endpoints_;
    std::map<int32, Queue> queues_;
    std::unordered_map<std::uint64_t, Held> held_; // by the request's tag
    // Every attempt that is claimed and not recorded as ended.
    std::unordered_map<core::Uuid, int32, core::UuidHash> in_hand_;
    std::vector<Result> results_; // ended, not recorded
    std::vector<http::Response> responses_;
    std::uint64_t last_tag_ = 0;
    int32 last_queue_ = 0; // where the last round of claims ended: the next begins behind it
    bool home_ = true, draining_ = false;
    TimestampTz record_at_ = 0; // results that are locked: not before
    TimestampTz scanned_at_ = 0, scan_cost_ = 0, delete_at_ = 0;
};

} // namespace jobq::worker
