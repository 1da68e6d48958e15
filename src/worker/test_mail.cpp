#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "pg/locks.hpp"
#include "pg/spin.hpp"
#include "pg/wait_event.hpp"
#include "worker/shared.hpp"
#include "worker/status.hpp"
#include "worker/test_mail.hpp"

extern "C" {
#include "storage/latch.h"
#include "storage/proc.h"
}

namespace jobq::worker::test_mail {

namespace {

constexpr long turn_poll_ms = 50;
// How often the one who waits for an answer looks whether the dispatcher is still there.
constexpr long dispatcher_poll_ms = 1000;

enum class State : int { idle, asked, taken, answered };

struct Box {
    slock_t lock;
    Oid database; // whose order it is: slots pass from one database to another
    State state;
    uint64 ticket; // of the last order
    int32 endpoint;
    Latch* asker;
};

// The results stand apart, so that they take no memory until there are any.
struct Table {
    std::array<Box, shared::most_databases> boxes;
    std::array<TestResult, shared::most_databases> results;
};

Table* table;

TestResult no_dispatcher() {
    TestResult result;
    result.outcome = "no_dispatcher";
    result.error = fmt::format("no dispatcher runs in this database: {}", dispatcher_status());
    return result;
}

TestResult no_answer(std::string_view error) {
    TestResult result;
    result.outcome = "no_answer";
    result.error = error;
    return result;
}

// Its process, if it takes orders.
int dispatcher() {
    auto slot = shared::preloaded() ? shared::find(MyDatabaseId) : std::nullopt;
    return slot && slot->state != shared::State::draining ? slot->pid : 0;
}

// Until the latch is set, or for so long. Returns whether `until` is not over.
bool wait(TimestampTz until, long most_ms) {
    static const uint32 event = pg::wait_event("JobqSendTest");
    long left = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), until);
    if (left <= 0)
        return false;
    pg::guarded([&] {
        WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, std::min(left, most_ms),
                  event);
        ResetLatch(MyLatch);
        CHECK_FOR_INTERRUPTS();
    });
    return true;
}

// An order in its box, from asked to idle.
class Order {
public:
    Order(std::size_t number, int32 endpoint)
        : box_(table->boxes[number]), result_(table->results[number]) {
        pg::Spin spin(box_.lock);
        ticket_ = ++box_.ticket;
        box_.database = MyDatabaseId;
        box_.endpoint = endpoint;
        box_.asker = &MyProc->procLatch;
        box_.state = State::asked;
    }
    ~Order() {
        pg::Spin spin(box_.lock);
        if (is_ours())
            box_.state = State::idle;
    }
    Order(const Order&) = delete;
    Order& operator=(const Order&) = delete;

    State state() const {
        pg::Spin spin(box_.lock);
        return is_ours() ? box_.state : State::idle;
    }
    // Once it is answered.
    TestResult result() const {
        pg::Spin spin(box_.lock);
        return result_;
    }

private:
    bool is_ours() const { return box_.ticket == ticket_ && box_.database == MyDatabaseId; }

    Box& box_;
    TestResult& result_;
    uint64 ticket_;
};

TestResult ask_in_turn(int32 endpoint, TimestampTz until) {
    int pid = dispatcher();
    auto number = shared::slot_number();
    if (pid == 0 || !number)
        return no_dispatcher();
    Order order(*number, endpoint);
    shared::wake_dispatcher();
    for (;;) {
        State state = order.state();
        if (state == State::answered)
            return order.result();
        // One that drains may still answer what it has taken.
        auto slot = shared::find(MyDatabaseId);
        if (state != State::taken && dispatcher() != pid)
            return no_dispatcher();
        if (!slot || slot->pid != pid) {
            TestResult result = no_dispatcher();
            result.error = "the dispatcher ended before the request did";
            return result;
        }
        if (!wait(until, dispatcher_poll_ms))
            return no_answer(
                fmt::format("the dispatcher has not answered in time: {}", dispatcher_status()));
    }
}

// The box of this database's dispatcher, which this process is.
Box* own_box() noexcept {
    auto number = shared::slot_number();
    return table == nullptr || !number ? nullptr : &table->boxes[*number];
}

} // namespace

std::size_t memory_size() noexcept {
    return sizeof(Table);
}

void initialize(void* memory) noexcept {
    // New shared memory is all zeros: every box is idle.
    auto* made = static_cast<Table*>(memory);
    for (Box& box : made->boxes)
        SpinLockInit(&box.lock);
}

void use(void* memory) noexcept {
    table = static_cast<Table*>(memory);
}

TestResult ask(int32 endpoint, TimestampTz until) {
    if (dispatcher() == 0)
        return no_dispatcher();
    // Not waited for in the lock manager: that knows of `until` only by settings of the session.
    while (!pg::try_lock(pg::LockKind::test, 0))
        if (!wait(until, turn_poll_ms))
            return no_answer("other tests were before this one");
    // An error lets go of it by aborting the transaction.
    TestResult result = ask_in_turn(endpoint, until);
    pg::unlock(pg::LockKind::test, 0);
    return result;
}

std::optional<TestOrder> waiting() noexcept {
    Box* box = own_box();
    if (box == nullptr)
        return std::nullopt;
    pg::Spin spin(box->lock);
    if (box->state != State::asked || box->database != MyDatabaseId)
        return std::nullopt;
    return TestOrder{box->ticket, box->endpoint};
}

bool take(const TestOrder& order) noexcept {
    Box* box = own_box();
    if (box == nullptr)
        return false;
    pg::Spin spin(box->lock);
    if (box->state != State::asked || box->ticket != order.ticket)
        return false;
    box->state = State::taken;
    return true;
}

void answer(uint64 ticket, const TestResult& result) noexcept {
    Box* box = own_box();
    if (box == nullptr)
        return;
    Latch* asker;
    {
        pg::Spin spin(box->lock);
        if (box->state != State::taken || box->ticket != ticket)
            return;
        table->results[static_cast<std::size_t>(box - table->boxes.data())] = result;
        box->state = State::answered;
        asker = box->asker;
    }
    SetLatch(asker);
}

} // namespace jobq::worker::test_mail
