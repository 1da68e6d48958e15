// What keeps an endpoint that is down from using up the attempts of its jobs.
//
//              enough failures
//     closed ──────────────────▶ open ◀──────────┐
//        ▲                        │ its wait is   │ the probe failed:
//        │                        ▼ over          │ a wait twice as long
//        └──────────────────── half open ─────────┘
//            the probe succeeded
//
// closed: requests leave, and it is counted how they end. It opens with a failure after which, in
// the window, at least `failures` requests have failed, if they are at least half of all that have
// ended, or if `failures` of them tell of the endpoint and came without a success in between: a
// busy endpoint that goes down would else have to fail as often as it answered well in the whole
// window. Those that may be the requests' own fault do not do: they come in rows too, as all are
// tried again. open: none leaves. half open: one may leave, the probe. Until it has ended no other
// may. If it is abandoned, the next one is the probe.
//
// Only what began since it last closed is counted, and when it is not closed only the probe: what
// was under way when it opened tells of the time before.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

namespace jobq::core {

struct BreakerRules {
    int failures = 10;                                           // 0: never opens
    std::chrono::microseconds window = std::chrono::seconds{60}; // kept to a tenth of it
    std::chrono::microseconds first = std::chrono::seconds{5};   // open for this long at first
    std::chrono::microseconds longest = std::chrono::minutes{5};
};

// Any clock that does not go back; a time before one that was given earlier is harmless. Nothing
// here allocates or fails.
class Breaker {
public:
    enum class State : std::uint8_t { closed, open, half_open };

    // Of what a failure tells: that no request to the endpoint would have succeeded; or of that
    // request alone, perhaps.
    enum class Failure : std::uint8_t { of_endpoint, of_request };

    // Goes with a request from its begin to its end.
    struct Ticket {
        std::uint32_t period = 0; // between two openings
        bool probe = false;
    };

    // Whether a request may begin.
    bool allows(const BreakerRules& rules, std::chrono::microseconds now) const noexcept;

    // A request begins; the ticket says whether it is the probe. One that begins although it may
    // not counts for nothing. Each must be told once how it ended.
    Ticket began(const BreakerRules& rules, std::chrono::microseconds now) noexcept;
    void succeeded(const BreakerRules& rules, std::chrono::microseconds now,
                   Ticket ticket) noexcept;
    void failed(const BreakerRules& rules, std::chrono::microseconds now, Ticket ticket,
                Failure failure = Failure::of_request) noexcept;
    // It ended without telling anything of the endpoint: it was cancelled, say.
    void abandoned(Ticket ticket) noexcept;

    // half_open where a probe may begin or is under way.
    State state(std::chrono::microseconds now) const noexcept;
    // When a probe may begin; makes sense only if open or half open.
    std::chrono::microseconds probe_at() const noexcept { return probe_at_; }

private:
    // A tenth of the window.
    struct Bucket {
        std::uint32_t succeeded = 0, failed = 0;
    };

    bool is_probe(Ticket ticket) const noexcept;
    Bucket& bucket(const BreakerRules& rules, std::chrono::microseconds now) noexcept;
    bool enough(const BreakerRules& rules) const noexcept;
    void close() noexcept;
    void open(std::chrono::microseconds now, std::chrono::microseconds wait) noexcept;

    std::array<Bucket, 10> buckets_{};   // a ring: bucket n is at n modulo its size
    std::chrono::microseconds width_{0}; // of a bucket; 0: nothing was counted yet
    std::uint64_t newest_ = 0;           // the number of the newest bucket
    std::chrono::microseconds wait_{0}, probe_at_{0};
    std::uint32_t in_a_row_ = 0; // failures of the endpoint since the last success
    std::uint32_t period_ = 0;
    State state_ = State::closed; // half_open: a probe is under way
};

} // namespace jobq::core
