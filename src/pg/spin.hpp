// A spinlock held to the end of a scope: around few instructions and nothing that fails, waits or
// raises.
#pragma once

#include "pg/postgres.hpp"

extern "C" {
#include "storage/spin.h"
}

namespace jobq::pg {

class Spin {
public:
    explicit Spin(slock_t& lock) noexcept : lock_(lock) { SpinLockAcquire(&lock_); }
    ~Spin() { SpinLockRelease(&lock_); }
    Spin(const Spin&) = delete;
    Spin& operator=(const Spin&) = delete;

private:
    slock_t& lock_;
};

} // namespace jobq::pg
