// The wall between PostgreSQL's errors, which jump, and C++'s, which unwind.
//
// guarded(f) calls PostgreSQL from C++: an ereport(ERROR) inside f comes out as a pg::Error.
// enter(f) is where PostgreSQL calls us: any exception out of f goes on as an ereport(ERROR),
// raised after every C++ frame has unwound.
//
// A pg::Error leaves the transaction as ereport left it: to be aborted. Whoever catches one instead
// of letting it reach enter() aborts the (sub)transaction first (pg/xact.hpp).
#pragma once

#include <exception>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "pg/postgres.hpp"

namespace jobq::pg {

// An error with everything PostgreSQL tells of one. Empty strings are fields that were not set.
class Error : public std::exception {
public:
    Error(int sqlstate, std::string message) : sqlstate(sqlstate), message(std::move(message)) {}

    Error&& with_detail(std::string text) && { return detail = std::move(text), std::move(*this); }
    Error&& with_hint(std::string text) && { return hint = std::move(text), std::move(*this); }

    const char* what() const noexcept override { return message.c_str(); }

    // A copy for ThrowErrorData in the current memory context. Does not fail: where there is no
    // memory for the copy, the copy says so.
    ErrorData* copy() const noexcept;

    int sqlstate;
    std::string message, detail, hint, context;
    std::string schema, table, column, datatype, constraint;
    std::string internal_query;
};

namespace detail {
// Runs call(argument) with PostgreSQL's errors caught. False: one was raised, and waits in
// error_taken().
bool run(void (*call)(void*), void* argument) noexcept;
// The error of the run() that returned false, taken off PostgreSQL's stack.
Error taken();
[[noreturn]] void raise(ErrorData* error);
ErrorData* current_exception() noexcept;
} // namespace detail

// Calls f, which may ereport. f's own frames are jumped over when it does: they hold nothing that
// needs a destructor.
template <class F>
auto guarded(F&& f) -> std::invoke_result_t<F> {
    using Result = std::invoke_result_t<F>;
    if constexpr (std::is_void_v<Result>) {
        if (!detail::run([](void* g) { (*static_cast<std::remove_reference_t<F>*>(g))(); }, &f))
            throw detail::taken();
    } else {
        static_assert(std::is_trivially_copyable_v<Result>);
        struct Frame {
            std::remove_reference_t<F>* f;
            Result result;
        } frame{&f, Result()};
        auto call = [](void* g) {
            auto* to = static_cast<Frame*>(g);
            to->result = (*to->f)();
        };
        if (!detail::run(call, &frame))
            throw detail::taken();
        return frame.result;
    }
}

// Calls f, which may throw, from a frame of PostgreSQL's.
template <class F>
auto enter(F&& f) -> std::invoke_result_t<F> {
    ErrorData* error;
    try {
        return f();
    } catch (...) {
        error = detail::current_exception();
    }
    // Outside the catch: a jump out of it would leave the exception never released.
    detail::raise(error);
}

} // namespace jobq::pg
