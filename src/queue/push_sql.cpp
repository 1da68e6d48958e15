// jobq.push, push_bytes and push_many.

#include <fmt/format.h>

#include "pg/call.hpp"
#include "queue/checks.hpp"
#include "queue/push.hpp"

namespace {

using namespace jobq;

std::vector<core::Uuid> push_single(const pg::Call& call, queue::PushSettings settings,
                                    queue::NewJob job, std::optional<Datum> options) {
    queue::apply_options(settings, options);
    return queue::push(settings, {job}, pg::owner_of(call.function()));
}

Datum uuid_datum(const core::Uuid& id) {
    return pg::param(id).value;
}

// An optional array that runs beside the payloads.
std::optional<pg::Elements> beside(const pg::Call& call, int i, Oid element, std::string_view name,
                                   std::size_t size) {
    if (call.null(i))
        return std::nullopt;
    auto array = pg::elements(call.datum(i), element);
    if (array.size != size)
        throw pg::Error(ERRCODE_ARRAY_SUBSCRIPT_ERROR,
                        fmt::format("{} must have as many elements as payloads", name))
            .with_detail(fmt::format("There are {} payloads and {} {}.", size, array.size, name));
    return array;
}

std::optional<Datum> at(const std::optional<pg::Elements>& array, std::size_t i) {
    return array && !array->null(i) ? std::optional(array->values[i]) : std::nullopt;
}

std::optional<std::string_view> text_at(const std::optional<pg::Elements>& array, std::size_t i) {
    auto value = at(array, i);
    return value ? std::optional(pg::text_of(*value)) : std::nullopt;
}

} // namespace

JOBQ_FUNCTION(jobq_push) {
    call.require(0, "queue");
    auto settings = queue::push_settings(call.text(0), call.maybe_timestamp(3), call.maybe(4),
                                         call.null(5) ? 0 : call.int4(5));
    queue::NewJob job{
        call.maybe(1), call.maybe_text(2), call.maybe_text(6), call.maybe_text(7), {}};
    return uuid_datum(push_single(call, settings, job, call.maybe(8))[0]);
}

JOBQ_FUNCTION(jobq_push_bytes) {
    call.require(0, "queue");
    call.require(2, "content_type");
    auto settings = queue::push_settings(call.text(0), call.maybe_timestamp(4), call.maybe(5),
                                         call.null(6) ? 0 : call.int4(6));
    settings.content_type = call.text(2);
    if (settings.content_type->empty())
        throw pg::Error(ERRCODE_INVALID_PARAMETER_VALUE, "content_type must not be empty");
    queue::check_label("content_type", settings.content_type);
    queue::NewJob job{
        call.maybe(1), call.maybe_text(3), call.maybe_text(7), call.maybe_text(8), {}};
    return uuid_datum(push_single(call, settings, job, call.maybe(9))[0]);
}

JOBQ_FUNCTION(jobq_push_many) {
    call.require(0, "queue");
    call.require(1, "payloads");
    auto settings = queue::push_settings(call.text(0), call.maybe_timestamp(3), call.maybe(4),
                                         call.null(5) ? 0 : call.int4(5));
    queue::apply_options(settings, call.maybe(10));

    auto payloads = pg::elements(call.datum(1), JSONBOID);
    auto types = beside(call, 6, TEXTOID, "types", payloads.size);
    auto groups = beside(call, 7, TEXTOID, "group_keys", payloads.size);
    auto keys = beside(call, 8, TEXTOID, "unique_keys", payloads.size);
    auto run_ats = beside(call, 9, TIMESTAMPTZOID, "run_ats", payloads.size);

    std::vector<queue::NewJob> jobs(payloads.size);
    for (std::size_t i = 0; i < jobs.size(); ++i) {
        auto type = text_at(types, i);
        auto run_at = at(run_ats, i);
        if (payloads.null(i))
            throw pg::Error(ERRCODE_NULL_VALUE_NOT_ALLOWED,
                            fmt::format("payload {} must not be null", i + 1));
        jobs[i] = {payloads.values[i], type ? type : call.maybe_text(2), text_at(groups, i),
                   text_at(keys, i),
                   run_at ? std::optional(DatumGetTimestampTz(*run_at)) : std::nullopt};
    }
    auto ids = queue::push(settings, std::move(jobs), pg::owner_of(call.function()));
    pg::RowSink rows(call);
    for (const auto& id : ids)
        rows.put({pg::param(id)});
    return call.return_null();
}
