// The C functions behind jobq.endpoint_stats and jobq.send_test.
#include "pg/call.hpp"
#include "worker/endpoint_states.hpp"
#include "worker/test_mail.hpp"

namespace {

namespace pg = jobq::pg;
namespace endpoint_states = jobq::worker::endpoint_states;
namespace test_mail = jobq::worker::test_mail;

pg::Param text_or_null(std::string_view text) {
    return text.empty() ? pg::null_param(TEXTOID) : pg::param(pg::from_utf8(text));
}

pg::Param time_or_null(TimestampTz at) {
    return at == 0 ? pg::null_param(TIMESTAMPTZOID) : pg::timestamp_param(at);
}

pg::Param status_or_null(int32 status) {
    return status == 0 ? pg::null_param(INT4OID) : pg::param(status);
}

pg::Param duration_or_null(int64 microseconds) {
    return microseconds < 0 ? pg::null_param(INTERVALOID)
                            : pg::interval_param(std::chrono::microseconds(microseconds));
}

} // namespace

JOBQ_FUNCTION(jobq_endpoint_state) {
    call.require(0, "endpoint_id");
    pg::require_select("endpoint_stats");
    pg::RowSink rows(call);
    auto state = endpoint_states::find(call.int4(0));
    if (!state)
        return call.return_null();
    rows.put({
        pg::param(state->in_flight),
        pg::param(state->window),
        pg::param(std::string_view(endpoint_states::name_of(state->breaker))),
        time_or_null(state->breaker_until),
        time_or_null(state->paused_until),
        pg::param(state->succeeded),
        pg::param(state->failed),
        pg::param(state->recent_succeeded),
        pg::param(state->recent_failed),
        duration_or_null(state->p50),
        duration_or_null(state->p99),
        time_or_null(state->last_at),
        text_or_null(state->last_outcome.view()),
        status_or_null(state->last_status),
        text_or_null(state->last_error.view()),
    });
    return call.return_null();
}

JOBQ_FUNCTION(jobq_ask_dispatcher) {
    call.require(0, "endpoint_id");
    call.require(1, "timeout");
    pg::RowSink rows(call);
    auto result = test_mail::ask(call.int4(0), pg::add(pg::clock(), call.datum(1)));
    rows.put({
        pg::param(result.ok),
        text_or_null(result.outcome.view()),
        status_or_null(result.status),
        duration_or_null(result.duration),
        text_or_null(result.http_version.view()),
        text_or_null(result.address.view()),
        text_or_null(result.error.view()),
        text_or_null(result.response.view()),
    });
    return call.return_null();
}
