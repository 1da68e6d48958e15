// What a dispatcher does: claims due jobs of queues with an endpoint, POSTs them, records the
// outcomes; tells workers that LISTEN of arrivals in the other queues; and keeps house.
//
// One turn, work():
//   1. requests move on; those that ended become results
//   2. one transaction: results are recorded, then the freed places are claimed again
//   3. after its commit, and once the pushes are flushed: requests for what was claimed
//   4. announcements and housekeeping, each in a transaction of its own
// No transaction is open while a request is under way. What an error interrupts is kept in memory
// and tried again in the next turn: results until they are recorded, streams until they were looked
// at.
//
// Streams (core/stream.hpp) that may have due jobs have their turns one after the other, and in
// each get a share of the places that are free, as far as their endpoint has room. Those whose
// endpoint has none cost nothing until it has, and then go on by turns (core/agenda.hpp).
//
// What fails alone stops nothing else (worker/trouble.hpp). A piece of housekeeping waits for its
// next try. Results are recorded one by one when they cannot be recorded together. A job of which
// no request can be made is a failed attempt, "bad_request". A stream that cannot be claimed from
// is passed over for a while.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/agenda.hpp"
#include "core/networks.hpp"
#include "core/uuid.hpp"
#include "http/client.hpp"
#include "queue/claim.hpp"
#include "queue/wake.hpp"
#include "worker/announcements.hpp"
#include "worker/endpoint.hpp"
#include "worker/results.hpp"
#include "worker/settings_rows.hpp"
#include "worker/shared.hpp"
#include "worker/test_mail.hpp"
#include "worker/trouble.hpp"

namespace jobq::worker {

class Deliveries {
public:
    Deliveries();

    // Readable when work() has something to do.
    int fd() const { return client_.fd(); }
    // Makes it readable so long from now, to the microsecond, or earlier.
    void wake_in(std::chrono::microseconds wait) {
        client_.wake_by(std::chrono::steady_clock::now() + wait);
    }

    struct Woken {
        decltype(queue::wake::Wakeup::streams) streams;
        bool settings = false, scan_all = false;
    };
    // Does all that can be done now, and returns when to be called again at the latest. Throws
    // pg::Error with the transaction aborted.
    TimestampTz work(const Woken& woken);
    // The next work() sends it, and answers.
    void send_test(const test_mail::TestOrder& order);

    // Streams that work() will look at when it is called next, whatever is pushed to them.
    shared::Expected expected() const;

    // What to tell of in jobq.status(), last of all found by work().
    shared::State state() const;
    std::string trouble() const;

    // Jobs that are claimed and not recorded as ended.
    std::size_t in_flight() const { return held_.size() + results_.size(); }
    // Stops claiming.
    void begin_drain() { draining_ = true; }
    // Drops what is under way and gives back every job that is held, uncharged.
    void give_back();

private:
    struct Job {
        core::Uuid id;
        int32 attempt;
        int32 endpoint_id;
        http::Request request;
        std::string unfit = {}; // why there is no request
    };
    struct Held {
        core::Uuid id;
        int32 attempt;
        int32 endpoint_id;
        std::size_t bytes;
        Endpoint::Begun begun;
    };
    // What one transaction claims.
    struct Claimed {
        std::vector<Job> jobs;
        std::size_t bytes = 0; // of their bodies
        XLogRecPtr durable_at = InvalidXLogRecPtr;
        std::vector<core::Stream> visited;
        bool more = false; // streams that have not had their turn
    };

    void load_settings();
    void look_everywhere();
    void look_at(core::Stream stream);
    bool delivers() const;
    void collect();
    void test_ended(http::Response& response);
    void ended(Held&& held, http::Response& response);
    void drop_waiting(int32 endpoint_id);
    bool record_and_claim(TimestampTz now);
    void claim_failed(const pg::Error& error, std::size_t due);
    void roll_back(const Claimed& claimed);
    void look_into_wide();
    void claim(TimestampTz now, Claimed& claimed);
    std::size_t claim_from(core::Stream stream, const QueueSettings& queue, Endpoint& endpoint,
                           int32 endpoint_id, std::size_t limit, TimestampTz now, Claimed& claimed);
    void look_at_room(int32 endpoint_id, const Endpoint& endpoint);
    void reopen(TimestampTz now);
    void rehearse(TimestampTz now);
    void make_request(const queue::ClaimedJob& claimed, const QueueSettings& queue,
                      const EndpointSettings& endpoint, Job& job);
    void start(std::vector<Job> jobs);
    void refuse(const Job& job, Verdict::Ending ending, const char* outcome, std::string error);
    void delete_old(TimestampTz now);
    void publish(TimestampTz now);
    TimestampTz scan_at() const;
    TimestampTz next_turn(TimestampTz now) const;

    http::Library library_;
    http::Client client_;
    std::map<int32, Endpoint> endpoints_;
    std::map<int32, QueueSettings> queues_;
    core::Agenda agenda_;                  // streams that are delivered
    std::optional<TimestampTz> rehearsed_; // the last of its times that was
    std::set<int32> wide_;                 // queues of which any stream may have jobs
    // When leases of such end that are held by others: of what was accepted, to be done later.
    core::Agenda lease_ends_;
    // Endpoints that may have room again at a time.
    std::map<int32, TimestampTz> reopen_at_;
    std::set<std::pair<TimestampTz, int32>> reopening_; // the same
    std::map<core::Stream, Trouble> troubles_;
    Announcements announcements_;
    Results results_;
    std::unordered_map<std::uint64_t, Held> held_;           // by the request's tag
    std::unordered_map<std::uint64_t, std::uint64_t> tests_; // tickets, the same
    std::set<int32> changed_; // endpoints that are seen otherwise than they were published
    std::vector<http::Response> responses_;
    std::uint64_t last_tag_ = 0;
    std::set<int32> unknown_;     // endpoints that jobs named and that came after the settings
    bool stale_settings_ = false; // there are new ones of these
    std::shared_ptr<const core::Networks> networks_; // as the client has them
    // Of the claim that is under way: its stream, and whether it is at a request.
    std::optional<core::Stream> claiming_;
    bool requesting_ = false;
    bool careful_ = false;    // a request failed: each is made in a subtransaction
    std::size_t bytes_ = 0;   // of bodies in hand
    std::size_t usual_bytes_; // of a body, as of late
    bool home_ = true, draining_ = false;
    Trouble looking_, deleting_;
    TimestampTz scanned_at_ = 0, scan_cost_ = 0, delete_at_ = 0;
};

} // namespace jobq::worker
