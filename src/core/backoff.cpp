#include "core/backoff.hpp"

#include <algorithm>
#include <cmath>

namespace jobq::core {

using std::chrono::microseconds;

namespace {

// NaN becomes low: every comparison with it is false.
double between(double low, double value, double high) {
    return value > low ? std::min(value, high) : low;
}

} // namespace

std::optional<std::string> check(const Backoff& backoff) {
    if (backoff.first < microseconds::zero())
        return "first retry wait must not be negative";
    if (backoff.longest < backoff.first)
        return "longest retry wait must not be shorter than the first";
    if (!(backoff.factor >= 1 && backoff.factor <= 1000))
        return "retry factor must be between 1 and 1000";
    if (!(backoff.jitter >= 0 && backoff.jitter <= 1))
        return "retry jitter must be between 0 and 1";
    return std::nullopt;
}

microseconds wait(const Backoff& backoff, int failures, double random) {
    if (backoff.first <= microseconds::zero() || backoff.longest <= microseconds::zero())
        return microseconds::zero();

    // In double, where a power too large is infinity and not an overflow.
    const double growth = std::pow(between(1, backoff.factor, 1000), std::max(failures, 1) - 1);
    const double base = std::min(static_cast<double>(backoff.longest.count()),
                                 static_cast<double>(backoff.first.count()) * growth);
    const double spread = between(0, backoff.jitter, 1) * (2 * between(0, random, 1) - 1);
    const double result = base * (1 + spread);

    // 2^63 is the first double that a microsecond count cannot hold.
    if (result >= 0x1p63)
        return microseconds::max();
    return microseconds{static_cast<microseconds::rep>(result)};
}

microseconds clamp_retry_after(std::chrono::seconds asked, microseconds low, microseconds high) {
    // Compared in whole seconds: what was asked may be more than microseconds can count.
    if (asked > std::chrono::floor<std::chrono::seconds>(high))
        return high;
    return asked < std::chrono::seconds::zero() ? low : std::max<microseconds>(asked, low);
}

} // namespace jobq::core
