// Transactions and subtransactions.
#pragma once

#include <optional>
#include <type_traits>

#include "pg/error.hpp"

extern "C" {
#include "utils/resowner.h"
}

namespace jobq::pg {

// A subtransaction: rolled back unless commit() was reached. Inside a transaction only.
class Subtransaction {
public:
    Subtransaction();
    ~Subtransaction();
    Subtransaction(const Subtransaction&) = delete;
    Subtransaction& operator=(const Subtransaction&) = delete;
    void commit();

private:
    MemoryContext context_;
    ResourceOwner owner_;
    bool open_ = true;
};

// What f returns, or nothing where PostgreSQL refused it (class 22 data exceptions, 54 program
// limits, no conversion between two encodings): its effects are rolled back. Other errors, such as
// a cancel, go on.
template <class F>
auto attempt(F&& f) -> std::optional<std::invoke_result_t<F>> {
    Subtransaction sub;
    try {
        auto result = f();
        sub.commit();
        return result;
    } catch (const Error& error) {
        auto category = ERRCODE_TO_CATEGORY(error.sqlstate);
        if (category != ERRCODE_DATA_EXCEPTION && category != ERRCODE_PROGRAM_LIMIT_EXCEEDED &&
            error.sqlstate != ERRCODE_UNDEFINED_FUNCTION)
            throw;
        return std::nullopt;
    }
}

// A transaction of a background worker: rolled back unless commit() was reached.
class Transaction {
public:
    Transaction();
    ~Transaction();
    Transaction(const Transaction&) = delete;
    Transaction& operator=(const Transaction&) = delete;
    void commit();

private:
    bool open_ = true;
};

// What an error may have left behind in a background worker, as the error handlers of PostgreSQL's
// own workers clean it up. Outside of any Transaction.
void recover();

// Acts as another role until the end of the scope. An abort gives the role back too.
class AsRole {
public:
    explicit AsRole(Oid role);
    ~AsRole();
    AsRole(const AsRole&) = delete;
    AsRole& operator=(const AsRole&) = delete;

private:
    Oid role_;
    int context_;
};

} // namespace jobq::pg
