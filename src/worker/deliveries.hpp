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
//
// What fails alone stops nothing else (worker/trouble.hpp). A piece of housekeeping waits for its
// next try. Results are recorded one by one when they cannot be recorded together. A job of which
// no request can be made is a failed attempt, "bad_request". A queue that cannot be claimed from is
// passed over for a while.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/uuid.hpp"
#include "http/client.hpp"
#include "queue/claim.hpp"
#include "queue/wake.hpp"
#include "worker/shared.hpp"
#include "worker/trouble.hpp"

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

    // What to tell of in jobq.status(), last of all found by work().
    shared::State state() const;
    std::string trouble() const;

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
        std::string unfit = {}; // why there is no request
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
        Trouble claiming, ending_leases;

        // Nothing is to be done for it until somebody says so.
        bool idle(TimestampTz now) const {
            return !look && !next_due && announce_at <= now && !claiming && !ending_leases;
        }
    };
    struct Held {
        core::Uuid id;
        int32 attempt;
        int32 endpoint_id;
        std::size_t bytes;
    };
    struct Result {
        core::Uuid id;
        int32 attempt;
        enum class Ending { completed, failed, released } ending = Ending::failed;
        bool json = false;
        std::string outcome = {}, error = {}, body = {};
        int status = 0;
        TimestampTz not_before = 0; // of its next try to be recorded
        bool stuck = false;         // it could not be, alone
    };

    void load_settings();
    void look_everywhere();
    void look_at(int32 queue_id);
    void look_again();
    bool delivers() const;
    void try_to(Trouble& trouble, std::string_view what, const std::function<void()>& work);
    void collect();
    bool record_and_claim(TimestampTz now);
    std::vector<core::Uuid> record(const pg::Spi& spi, std::span<const Result> results);
    void record_one_by_one(std::size_t due);
    bool record_alone(Result& result);
    void recorded(std::size_t due, const std::vector<core::Uuid>& left);
    void claim_failed(const pg::Error& error, std::size_t due);
    // Takes no more jobs that name it.
    static bool is_closed(const Endpoint& e) {
        return !is_gone(e) && (!e.enabled || e.waiting.size() >= e.max_in_flight);
    }
    static bool is_gone(const Endpoint& e) { return e.url.empty(); }
    static bool is_opened(const Endpoint& e) { return e.passed_over && !is_closed(e); }
    void look_behind_opened(const pg::Spi& spi);
    void claim(const pg::Spi& spi, TimestampTz now, std::vector<Job>& claimed,
               XLogRecPtr& durable_at);
    void claim_from(int32 id, Queue& queue, Endpoint& endpoint, TimestampTz now, std::size_t& free,
                    std::vector<Job>& claimed, XLogRecPtr& durable_at);
    http::Request request_for(const queue::ClaimedJob& job, const Queue& queue,
                              const Endpoint& endpoint, std::uint64_t tag);
    static std::size_t bytes_of(const std::vector<Job>& jobs);
    static std::size_t usual_bytes(const std::vector<Job>& jobs);
    void make_request(const queue::ClaimedJob& claimed, const Queue& queue, Job& job);
    void start(std::vector<Job> jobs);
    void start_waiting();
    void announce(TimestampTz now);
    void announce(int32 id, Queue& queue, TimestampTz now);
    void end_leases();
    void delete_old(TimestampTz now);
    TimestampTz scan_at() const;
    TimestampTz next_turn(TimestampTz now) const;
    std::size_t waiting() const;

    http::Library library_;
    http::Client client_;
    std::map<int32, Endpoint> endpoints_;
    std::map<int32, Queue> queues_;
    std::map<int32, Queue*> busy_;                 // those that are not idle, and some that are
    std::unordered_map<std::uint64_t, Held> held_; // by the request's tag
    // Every attempt that is claimed and not recorded as ended.
    std::unordered_map<core::Uuid, int32, core::UuidHash> in_hand_;
    std::vector<Result> results_; // ended, not recorded
    std::set<int32> unknown_;     // endpoints that jobs named and that came after the settings
    std::vector<http::Response> responses_;
    std::uint64_t last_tag_ = 0;
    int32 last_queue_ = 0; // where the last round of claims ended: the next begins behind it
    // Of the claim that is under way: its queue, and whether it is at a request.
    std::optional<int32> claiming_;
    bool requesting_ = false;
    bool careful_ = false;    // a request failed: each is made in a subtransaction
    std::size_t bytes_ = 0;   // of bodies in hand
    std::size_t usual_bytes_; // of a body, as of late
    bool home_ = true, draining_ = false;
    Trouble looking_, deleting_, announcing_, recording_;
    TimestampTz scanned_at_ = 0, scan_cost_ = 0, delete_at_ = 0;
};

} // namespace jobq::worker
