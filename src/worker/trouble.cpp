#include <algorithm>

#include <fmt/format.h>

#include "pg/values.hpp"
#include "pg/xact.hpp"
#include "worker/trouble.hpp"

namespace jobq::worker {

namespace {
constexpr TimestampTz first_retry = USECS_PER_SEC; // doubles
constexpr TimestampTz longest_retry = 60 * USECS_PER_SEC;
} // namespace

void Trouble::met(std::string_view what, const pg::Error& error) {
    bool known = !text_.empty();
    text_ = fmt::format("could not {}: {}", what, error.message);
    delay_ = std::clamp(2 * delay_, first_retry, longest_retry);
    retry_at_ = pg::clock() + delay_;
    if (known)
        return;
    pg::guarded([&] {
        ereport(LOG, errcode(error.sqlstate),
                errmsg("jobq dispatcher: %s (SQLSTATE %s)", text_.c_str(),
                       unpack_sql_state(error.sqlstate)),
                errdetail("It goes on without, and tries again."));
    });
}

void try_to(Trouble& trouble, std::string_view what, const std::function<void()>& work) {
    if (trouble.waits(pg::clock()))
        return;
    try {
        work();
        trouble.over();
    } catch (const pg::Error& error) {
        pg::recover();
        trouble.met(what, error);
    }
}

bool concerns_all(const pg::Error& error) {
    switch (ERRCODE_TO_CATEGORY(error.sqlstate)) {
    case ERRCODE_INVALID_TRANSACTION_STATE:
    case ERRCODE_INVALID_SCHEMA_NAME:
    case ERRCODE_TRANSACTION_ROLLBACK:
    case ERRCODE_SYNTAX_ERROR_OR_ACCESS_RULE_VIOLATION:
    case ERRCODE_INSUFFICIENT_RESOURCES:
    case ERRCODE_OPERATOR_INTERVENTION:
    case ERRCODE_SYSTEM_ERROR:
        return true;
    default:
        return error.sqlstate == ERRCODE_LOCK_NOT_AVAILABLE;
    }
}

} // namespace jobq::worker
