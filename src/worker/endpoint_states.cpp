#include <algorithm>
#include <array>

#include "pg/spin.hpp"
#include "worker/endpoint_states.hpp"

extern "C" {
#include "common/hashfn.h"
}

namespace jobq::worker::endpoint_states {

namespace {

// An endpoint's entry is one of a few that its number and its database choose.
constexpr std::size_t ways = 8, sets = 2048;
static_assert(ways * sets >= 16384);
// Sets share locks: with one in each, an empty table would be written all over at the start.
constexpr std::size_t locks = 64;

struct Key {
    Oid database; // InvalidOid: free
    int32 endpoint;
    TimestampTz written;
};

// The keys stand apart from the states, most of whose memory is never touched: not to look for an
// entry, nor to forget all of a database.
struct Table {
    std::array<slock_t, locks> set_locks;
    std::array<std::array<Key, ways>, sets> keys;
    std::array<std::array<EndpointState, ways>, sets> states;
};

Table* table;

// A database numbers its endpoints one after another: so they fill the sets evenly.
std::size_t set_of(int32 endpoint) {
    return (static_cast<uint32>(endpoint) + murmurhash32(MyDatabaseId)) % sets;
}

slock_t& lock_of(std::size_t set) {
    return table->set_locks[set % locks];
}

// Its place in the set; `ways` if it has none.
std::size_t place_of(std::size_t set, int32 endpoint) {
    const auto& keys = table->keys[set];
    auto* key = std::find_if(keys.begin(), keys.end(), [&](const Key& candidate) {
        return candidate.database == MyDatabaseId && candidate.endpoint == endpoint;
    });
    return static_cast<std::size_t>(key - keys.begin());
}

std::size_t oldest(std::size_t set) {
    const auto& keys = table->keys[set];
    auto* key = std::min_element(keys.begin(), keys.end(),
                                 [](const Key& a, const Key& b) { return a.written < b.written; });
    return static_cast<std::size_t>(key - keys.begin());
}

} // namespace

const char* name_of(EndpointState::Breaker breaker) noexcept {
    switch (breaker) {
    case EndpointState::Breaker::closed:
        return "closed";
    case EndpointState::Breaker::open:
        return "open";
    case EndpointState::Breaker::half_open:
        return "half_open";
    }
    return "unknown";
}

std::size_t memory_size() noexcept {
    return sizeof(Table);
}

void initialize(void* memory) noexcept {
    // New shared memory is all zeros, which is what an empty table is.
    auto* made = static_cast<Table*>(memory);
    for (slock_t& lock : made->set_locks)
        SpinLockInit(&lock);
}

void use(void* memory) noexcept {
    table = static_cast<Table*>(memory);
}

void publish(const EndpointState& state) noexcept {
    if (table == nullptr)
        return;
    TimestampTz now = GetCurrentTimestamp();
    std::size_t set = set_of(state.endpoint);
    pg::Spin spin(lock_of(set));
    std::size_t place = place_of(set, state.endpoint);
    if (place == ways)
        place = oldest(set);
    table->keys[set][place] = {MyDatabaseId, state.endpoint, now};
    table->states[set][place] = state;
}

void forget_all() noexcept {
    if (table == nullptr)
        return;
    for (std::size_t set = 0; set < sets; ++set) {
        pg::Spin spin(lock_of(set));
        for (Key& key : table->keys[set])
            if (key.database == MyDatabaseId)
                key = {};
    }
}

std::optional<EndpointState> find(int32 endpoint) noexcept {
    if (table == nullptr)
        return std::nullopt;
    std::size_t set = set_of(endpoint);
    pg::Spin spin(lock_of(set));
    std::size_t place = place_of(set, endpoint);
    return place == ways ? std::nullopt : std::optional(table->states[set][place]);
}

} // namespace jobq::worker::endpoint_states
