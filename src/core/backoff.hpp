#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace jobq::core {

// How long a failed job waits before it is tried again.
struct Backoff {
    std::chrono::microseconds first;   // the wait after the first failure, >= 0
    std::chrono::microseconds longest; // no wait is longer, jitter apart; >= first
    double factor;                     // each wait over the one before, 1 to 1000
    double jitter;                     // the share that is left to chance, 0 to 1
};

// Why the values are out of the ranges above, or nothing if they are not.
std::optional<std::string> check(const Backoff& backoff);

// min(longest, first * factor^(failures - 1)) * (1 + jitter * (2 * random - 1)).
// failures counts the charged failures, the one just happened included (>= 1); random is
// in [0, 1). Never negative and never overflows, whatever it is given.
std::chrono::microseconds wait(const Backoff& backoff, int failures, double random);

// How long to wait where the receiver asked for it (Retry-After): not less than low nor more than
// high, 0 <= low <= high. Never overflows, whatever was asked.
std::chrono::microseconds clamp_retry_after(std::chrono::seconds asked,
                                            std::chrono::microseconds low,
                                            std::chrono::microseconds high);

} // namespace jobq::core
