// jobq.send_test()'s way to the dispatcher and back: for each database a box in shared memory that
// holds one order and its answer.
//
// A box's states and who moves it between them:
//
//    idle ── ask() ──▶ asked ── take() ──▶ taken ── answer() ──▶ answered ── ask() ──▶ idle
//
// - idle: nobody asks.
// - asked: an order waits for the dispatcher.
// - taken: the dispatcher sends the request.
// - answered: the answer waits for who asked.
//
// ask() makes the box idle on its way out, whatever that way is. One that ends without it, because
// its process is terminated, leaves the box as it is, and the next order replaces what is there.
// Orders are told apart by their tickets, so that an answer for somebody who is gone is dropped.
//
// A box belongs to who holds its lock, a heavyweight one (LockKind::test), for the length of
// ask(): others wait for their turn, and whoever ends lets it go. Inside of that, the box's
// spinlock, innermost of all. Latches are set with no spinlock held.
#pragma once

#include <cstddef>
#include <optional>

#include "core/fixed_text.hpp"
#include "pg/postgres.hpp"

namespace jobq::worker::test_mail {

struct TestOrder {
    uint64 ticket = 0;
    int32 endpoint = 0;
};

// Plain data. Texts are in UTF-8, or whatever bytes a receiver sent; they are cut to what fits.
struct TestResult {
    bool ok = false;
    int32 status = 0;                   // 0: there was no answer
    int64 duration = -1;                // µs; -1: no request was made
    core::FixedText<32> outcome = {};   // "completed", "http_503", "timeout", "no_endpoint"...
    core::FixedText<16> http_version{}; // "1.1", "2"; empty: not known
    core::FixedText<64> address = {};   // that was connected to; empty: none
    core::FixedText<256> error = {};    // for people; empty: none
    core::FixedText<1024> response = {};
};

// -- Backends.

// Has this database's dispatcher send one request to the endpoint, and waits for the answer, first
// of all for its turn. Where none comes ok is false, and outcome one of
//    no_dispatcher   none runs, or it ended meanwhile: error says what jobq.status() does
//    no_answer       until is over
// Errors: those of a wait: 57014 and the like.
TestResult ask(int32 endpoint, TimestampTz until);

// -- The dispatcher of this database. Nothing here fails, allocates or raises.

// The order that waits, if there is one. To be looked at before shared::take(): the settings that
// were committed before the order came are then known of when it is carried out.
std::optional<TestOrder> waiting() noexcept;
// False: whoever asked is gone; no request is to be made.
bool take(const TestOrder& order) noexcept;
void answer(uint64 ticket, const TestResult& result) noexcept;

// -- The shared memory: its size, its start by whoever makes it, its use in this process.

std::size_t memory_size() noexcept;
void initialize(void* memory) noexcept;
void use(void* memory) noexcept;

} // namespace jobq::worker::test_mail
