// Locks of the running transaction, and interrupts.
#pragma once

#include <cstdint>
#include <string_view>

namespace jobq::pg {

// What a lock stands for; the kinds have no keys in common, nor any with SQL's advisory locks.
enum class LockKind : std::uint16_t {
    group = 0x6a10,
    queue = 0x6a11,         // the right to claim from a limited one
    queue_name = 0x6a12,    // shared by who makes jobs for it, exclusive for who drops it
    endpoint_name = 0x6a13, // as queue_name
    test = 0x6a14,          // the right to ask for a test request
};

// Takes an exclusive lock until the end of the transaction if that needs no waiting. Released only
// after what the transaction wrote is visible.
bool try_lock(LockKind kind, std::uint64_t key);
// Lets go of one before that. In the subtransaction that took it.
void unlock(LockKind kind, std::uint64_t key);

enum class LockMode { shared, exclusive };
// Locks a name until the end of the transaction, and waits for that. Names that share a hash only
// wait for each other.
void lock_name(LockKind kind, std::string_view name, LockMode mode);

// A 64-bit hash of a queue's group, to be locked: groups that share one only wait for each other.
std::uint64_t group_hash(int queue_id, std::string_view group);

// ROW EXCLUSIVE on a table of schema jobq until the end of the transaction.
void lock_for_writing(const char* table);

void check_for_interrupts();

} // namespace jobq::pg
