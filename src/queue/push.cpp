#include <algorithm>
#include <array>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/header.hpp"
#include "pg/call.hpp"
#include "pg/locks.hpp"
#include "pg/settings.hpp"
#include "pg/spi.hpp"
#include "pg/table.hpp"
#include "pg/xact.hpp"
#include "queue/checks.hpp"
#include "queue/job_row.hpp"
#include "queue/push.hpp"
#include "queue/queues.hpp"
#include "queue/wake.hpp"

extern "C" {
#include "access/detoast.h"
}

namespace jobq::queue {

using pg::Error;
using pg::Param;

namespace {

// Keys stand in indexes, whose entries are limited to about a third of a page.
constexpr std::size_t max_key_bytes = 1024;
constexpr std::size_t max_label_bytes = 255;

constexpr std::array<std::string_view, 6> option_keys{"max_attempts", "headers",    "endpoint",
                                                      "pushed_by",    "expires_at", "on_conflict"};

core::Uuid new_id() {
    static core::UuidV7 ids;
    // For many at once: the random generator's cost is by the call.
    static std::array<std::array<std::uint8_t, 8>, 64> random;
    static std::size_t used = random.size();
    if (used == random.size()) {
        if (!pg_strong_random(random.data(), sizeof random))
            throw Error(ERRCODE_INTERNAL_ERROR, "could not generate random values");
        used = 0;
    }
    return ids.next(pg::unix_time(pg::clock()), random[used++]);
}

void check_size(std::string_view what, const std::optional<std::string_view>& text,
                std::size_t limit) {
    if (text && text->size() > limit)
        throw Error(ERRCODE_INVALID_PARAMETER_VALUE,
                    fmt::format("{} must not be longer than {} bytes", what, limit));
}

void check(const PushSettings& settings, const NewJob& job) {
    if (!job.payload)
        throw Error(ERRCODE_NULL_VALUE_NOT_ALLOWED,
                    settings.content_type ? "body must not be null" : "payload must not be null");
    auto limit = static_cast<Size>(pg::settings::max_payload());
    if (Size size = pg::guarded([&] { return toast_raw_datum_size(*job.payload); }) - VARHDRSZ;
        size > limit)
        throw Error(ERRCODE_PROGRAM_LIMIT_EXCEEDED,
                    fmt::format("payload of {} bytes is over the limit of {} bytes", size, limit))
            .with_hint("Store it elsewhere and push a reference, or raise jobq.max_payload.");
    // What is sent and pulled is its text, which can be much longer.
    if (!settings.content_type && pg::json_text_size(*job.payload, limit) > limit)
        throw Error(ERRCODE_PROGRAM_LIMIT_EXCEEDED,
                    fmt::format("payload is over the limit of {} bytes as text", limit))
            .with_hint("Store it elsewhere and push a reference, or raise jobq.max_payload.");
    check_label("type", job.type);
    check_size("group_key", job.group_key, max_key_bytes);
    check_size("unique_key", job.unique_key, max_key_bytes);
    if (job.run_at && TIMESTAMP_NOT_FINITE(*job.run_at))
        throw Error(ERRCODE_INVALID_PARAMETER_VALUE, "run_at must be finite");
}

const char* const insert_columns =
    "INSERT INTO jobq.job (id, seq, run_at, expires_at, queue_id, attempt, endpoint_id, priority,"
    " failures, max_attempts, key_waits, type, group_key, unique_key, pushed_by, content_type, "
    "headers,"
    " payload, body)";

// What a job gets from its queue.
struct Placement {
    core::Uuid id;
    std::optional<int32> endpoint; // NULL in the row: the queue's
    int32 max_attempts;
};

// Inserts jobs without unique keys, in their order.
void insert_plain(pg::Table& table, const PushSettings& s, const QueueRow& queue,
                  std::span<const NewJob> jobs, std::span<const Placement> placements) {
    using Column = JobColumn;
    auto small = [](int32 value) {
        return pg::Param{INT2OID, Int16GetDatum(static_cast<int16>(value))};
    };
    pg::Values<Column::count> row;
    if (s.expires_at)
        row.set(Column::expires_at, pg::timestamp_param(*s.expires_at));
    row.set(Column::attempt, pg::param(0));
    row.set(Column::queue_id, pg::param(queue.id));
    row.set(Column::priority, small(s.priority));
    row.set(Column::failures, small(0));
    row.set(Column::pushed_by, pg::param(std::string_view(s.pushed_by)));
    row.set(Column::content_type, pg::text_param(s.content_type));
    if (s.headers)
        row.set(Column::headers, pg::jsonb_param(*s.headers));

    std::vector<pg::Tuple> rows;
    rows.reserve(jobs.size());
    for (std::size_t i = 0; i < jobs.size(); ++i) {
        const NewJob& job = jobs[i];
        row.set(Column::id, pg::param(placements[i].id));
        row.set(Column::seq, pg::param(pg::next_value("push_order")));
        row.set(Column::run_at, pg::timestamp_param(job.run_at.value_or(s.run_at)));
        row.set(Column::endpoint_id, pg::param(placements[i].endpoint, INT4OID));
        row.set(Column::max_attempts, small(placements[i].max_attempts));
        row.set(Column::type, pg::text_param(job.type));
        row.set(Column::group_key, pg::text_param(job.group_key));
        row.set(s.content_type ? Column::body : Column::payload, {JSONBOID, *job.payload});
        rows.push_back(table.make(row));
    }
    table.insert(rows);
}

// Inserts one job with a unique key. False: a job waits for the key already.
bool insert_one(const pg::Spi& spi, const PushSettings& s, const NewJob& job,
                const Placement& placement, int64 seq) {
    static const std::string sql = std::string(insert_columns) + R"(
        SELECT $2, $3, $4, $5, q.id, 0, $6, $7, 0, $8,
               CASE WHEN $11 IS NOT NULL THEN true END,
               $9, $10, $11, $12, $13, $14, $15, $16
        FROM jobq.queue AS q WHERE q.name = $1
        ON CONFLICT (queue_id, unique_key) WHERE key_waits DO NOTHING
        RETURNING id)";
    static pg::Statement insert(sql.c_str());
    auto rows = insert.run(
        spi, {pg::param(s.queue), pg::param(placement.id), pg::param(seq),
              pg::timestamp_param(job.run_at.value_or(s.run_at)),
              s.expires_at ? pg::timestamp_param(*s.expires_at) : pg::null_param(TIMESTAMPTZOID),
              pg::param(placement.endpoint, INT4OID), pg::param(s.priority),
              pg::param(placement.max_attempts), pg::text_param(job.type),
              pg::text_param(job.group_key), pg::text_param(job.unique_key),
              pg::param(std::string_view(s.pushed_by)), pg::text_param(s.content_type),
              s.headers ? pg::jsonb_param(*s.headers) : pg::null_param(JSONBOID),
              s.content_type ? pg::null_param(JSONBOID) : pg::jsonb_param(*job.payload),
              s.content_type ? pg::bytea_param(*job.payload) : pg::null_param(BYTEAOID)});
    return !rows.empty();
}

// The job that waits for a unique key, kept waiting until this transaction ends: were it claimed
// before, it might run without seeing what this transaction wrote, and the push would be swallowed.
std::optional<core::Uuid> hold_waiting(const pg::Spi& spi, const PushSettings& s,
                                       const NewJob& job) {
    static pg::Statement hold(R"(
        SELECT j.id, j.queue_id, j.priority::int, j.run_at, j.seq, j.group_key IS NOT NULL, coalesce(j.endpoint_id, 0)
        FROM jobq.job AS j, jobq.queue AS q
        WHERE q.name = $1 AND j.queue_id = q.id AND j.unique_key = $2 AND j.key_waits
        FOR KEY SHARE OF j)");
    auto rows = hold.run(spi, {pg::param(s.queue), pg::text_param(job.unique_key)});
    if (rows.empty())
        return std::nullopt;
    auto row = rows[0];
    wake::note({row.int4(2), row.int4(7)}, s.queue,
               {.priority = row.int4(3), .place = {row.timestamp(4), row.int8(5)}, .held = true});
    // Another job of its group may have its turn then.
    if (s.on_conflict == OnConflict::replace && row.boolean(6))
        wake::note({row.int4(2), core::Stream::any}, s.queue);
    return row.uuid(1);
}

std::optional<core::Uuid> replace_waiting(const pg::Spi& spi, const PushSettings& s,
                                          const NewJob& job, const Placement& placement) {
    static pg::Statement replace(R"(
        UPDATE jobq.job AS j
        SET run_at = $3, expires_at = $4, endpoint_id = $5, priority = $6, failures = 0,
            max_attempts = $7, type = $8, group_key = $9, pushed_by = $10, content_type = $11, headers = $12,
            payload = $13, body = $14
        FROM jobq.queue AS q
        WHERE q.name = $1 AND j.queue_id = q.id AND j.unique_key = $2 AND j.key_waits
        RETURNING j.id)");
    auto rows = replace.run(
        spi,
        {pg::param(s.queue), pg::text_param(job.unique_key),
         pg::timestamp_param(job.run_at.value_or(s.run_at)),
         s.expires_at ? pg::timestamp_param(*s.expires_at) : pg::null_param(TIMESTAMPTZOID),
         pg::param(placement.endpoint, INT4OID), pg::param(s.priority),
         pg::param(placement.max_attempts), pg::text_param(job.type), pg::text_param(job.group_key),
         pg::param(std::string_view(s.pushed_by)), pg::text_param(s.content_type),
         s.headers ? pg::jsonb_param(*s.headers) : pg::null_param(JSONBOID),
         s.content_type ? pg::null_param(JSONBOID) : pg::jsonb_param(*job.payload),
         s.content_type ? pg::bytea_param(*job.payload) : pg::null_param(BYTEAOID)});
    return rows.empty() ? std::nullopt : std::optional(rows[0].uuid(1));
}

core::Uuid push_one(const pg::Spi& spi, const PushSettings& s, const NewJob& job,
                    const Placement& placement, int64 seq) {
    for (;;) {
        if (insert_one(spi, s, job, placement, seq))
            return placement.id;
        std::optional<core::Uuid> waiting;
        switch (s.on_conflict) {
        case OnConflict::skip:
            waiting = hold_waiting(spi, s, job);
            break;
        case OnConflict::replace:
            if (hold_waiting(spi, s, job))
                waiting = replace_waiting(spi, s, job, placement);
            break;
        case OnConflict::error:
            throw Error(ERRCODE_UNIQUE_VIOLATION,
                        fmt::format("a job waits for unique key \"{}\" in queue \"{}\" already",
                                    *job.unique_key, s.queue))
                .with_hint("options.on_conflict can be skip or replace.");
        }
        if (waiting)
            return *waiting;
        // It was claimed or cancelled in between: there is room for this one now.
        pg::check_for_interrupts();
    }
}

// In the order of the keys, so that two pushes of the same keys cannot wait for each other.
void push_keyed(const PushSettings& s, std::span<const NewJob> jobs,
                std::span<Placement> placements) {
    std::vector<int64> places(jobs.size());
    std::generate(places.begin(), places.end(), [] { return pg::next_value("push_order"); });
    std::vector<std::size_t> order(jobs.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return jobs[a].unique_key < jobs[b].unique_key;
    });
    pg::Spi spi;
    for (std::size_t i : order)
        placements[i].id = push_one(spi, s, jobs[i], placements[i], places[i]);
}

// The endpoint that the push names.
std::optional<int32> named_endpoint(const PushSettings& s, const QueueRow& queue) {
    if (!s.endpoint)
        return std::nullopt;
    pg::lock_name(pg::LockKind::endpoint_name, *s.endpoint, pg::LockMode::shared);
    pg::Spi spi;
    static pg::Statement find("SELECT e.id FROM jobq.endpoint AS e WHERE e.name = $1");
    auto rows = find.run(spi, {pg::param(*s.endpoint)});
    if (rows.empty())
        throw Error(ERRCODE_UNDEFINED_OBJECT,
                    fmt::format("endpoint \"{}\" does not exist", *s.endpoint))
            .with_hint(fmt::format("Create it with SELECT jobq.create_endpoint({}, 'https://...').",
                                   pg::quoted(*s.endpoint)));
    if (!queue.delivered())
        throw Error(
            ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            fmt::format("queue \"{}\" has no endpoint, so its jobs are not delivered", s.queue))
            .with_hint("Give the queue an endpoint with jobq.alter_queue, or push without "
                       "options.endpoint.");
    return rows[0].int4(1);
}

constexpr std::string_view trace_name = "traceparent";

// A trace of a later version may have characters that JSON would take for its own.
Datum trace_header(std::string_view trace) {
    Datum value = pg::json_value({.key = {}, .kind = pg::JsonField::Kind::string, .text = trace});
    return *pg::try_jsonb(fmt::format(R"({{"{}": {}}})", trace_name, pg::json_text(value)));
}

// Header names are the same in any case, JSON keys are not.
bool has_trace(Datum headers) {
    auto fields = pg::json_object(headers);
    return fields && std::any_of(fields->begin(), fields->end(), [](const pg::JsonField& field) {
               return field.key.size() == trace_name.size() &&
                      pg_strncasecmp(field.key.data(), trace_name.data(), trace_name.size()) == 0;
           });
}

} // namespace

PushSettings push_settings(std::string_view queue, std::optional<TimestampTz> run_at,
                           std::optional<Datum> delay, int32 priority) {
    PushSettings settings;
    settings.queue = queue;
    settings.pushed_by = pg::role_name(GetUserId());
    settings.run_at = pg::clock();
    if (run_at && delay)
        throw Error(ERRCODE_INVALID_PARAMETER_VALUE, "run_at and delay cannot be given together");
    if (delay) {
        TimestampTz at = pg::add(settings.run_at, *delay);
        if (at < settings.run_at)
            throw Error(ERRCODE_INVALID_PARAMETER_VALUE, "delay must not be negative");
        settings.run_at = at;
    }
    if (run_at)
        settings.run_at = *run_at;
    if (TIMESTAMP_NOT_FINITE(settings.run_at))
        throw Error(ERRCODE_INVALID_PARAMETER_VALUE, "run_at must be finite");
    if (priority < PG_INT16_MIN || priority > PG_INT16_MAX)
        throw Error(ERRCODE_INVALID_PARAMETER_VALUE,
                    fmt::format("priority must be between {} and {}", PG_INT16_MIN, PG_INT16_MAX));
    settings.priority = priority;
    if (auto trace = pg::settings::traceparent(); !trace.empty())
        settings.headers = trace_header(trace);
    return settings;
}

void apply_options(PushSettings& settings, std::optional<Datum> options,
                   std::span<const std::string_view> others) {
    using Kind = pg::JsonField::Kind;
    if (!options)
        return;
    auto fields = pg::json_object(*options);
    if (!fields)
        throw Error(ERRCODE_INVALID_PARAMETER_VALUE, "options must be a JSON object");
    auto bad = [](const pg::JsonField& field, std::string_view what) {
        return Error(ERRCODE_INVALID_PARAMETER_VALUE,
                     fmt::format("options.{} must be {}", field.key, what));
    };
    auto string = [&](const pg::JsonField& field) {
        if (field.kind != Kind::string)
            throw bad(field, "a string");
        return field.text;
    };
    for (const auto& field : *fields) {
        bool ours =
            std::find(option_keys.begin(), option_keys.end(), field.key) != option_keys.end();
        if (ours && field.kind == Kind::null)
            continue;
        if (field.key == "max_attempts") {
            auto value = field.kind == Kind::number ? parse_int(field.text) : std::nullopt;
            if (!value || *value < 1 || *value > max_max_attempts)
                throw bad(field, fmt::format("a whole number between 1 and {}", max_max_attempts));
            settings.max_attempts = *value;
        } else if (field.key == "headers") {
            auto headers = pg::json_value(field);
            check_headers(headers);
            settings.headers = settings.headers && !has_trace(headers)
                                   ? pg::joined(*settings.headers, headers)
                                   : headers;
        } else if (field.key == "endpoint") {
            settings.endpoint = string(field);
        } else if (field.key == "pushed_by") {
            settings.pushed_by = string(field);
            check_label("options.pushed_by", settings.pushed_by);
        } else if (field.key == "expires_at") {
            settings.expires_at = pg::parse_timestamp(string(field));
        } else if (field.key == "on_conflict") {
            if (field.text == "skip")
                settings.on_conflict = OnConflict::skip;
            else if (field.text == "replace")
                settings.on_conflict = OnConflict::replace;
            else if (field.text == "error")
                settings.on_conflict = OnConflict::error;
            else
                throw bad(field, "skip, replace or error");
        } else if (std::find(others.begin(), others.end(), field.key) == others.end()) {
            throw Error(ERRCODE_INVALID_PARAMETER_VALUE,
                        fmt::format("unknown key \"{}\" in options", field.key))
                .with_hint(fmt::format("Known keys are {}{}{}.", fmt::join(others, ", "),
                                       others.empty() ? "" : ", ", fmt::join(option_keys, ", ")));
        }
    }
}

std::vector<core::Uuid> push(const PushSettings& settings, std::vector<NewJob> jobs, Oid owner) {
    for (const NewJob& job : jobs)
        check(settings, job);

    // drop_queue waits for this, and so does drop_endpoint in named_endpoint: what is looked up
    // below is there until the commit.
    pg::Table table("job");
    pg::lock_name(pg::LockKind::queue_name, settings.queue, pg::LockMode::shared);
    QueueRow queue = require_queue(settings.queue);
    bool keyed = std::any_of(jobs.begin(), jobs.end(),
                             [](const NewJob& job) { return job.unique_key.has_value(); });
    std::optional<pg::AsRole> as_owner; // SQL asks for privileges
    if (keyed || settings.endpoint)
        as_owner.emplace(owner);
    std::optional<int32> named = named_endpoint(settings, queue);
    if (jobs.empty())
        return {};

    std::vector<Placement> placements;
    placements.reserve(jobs.size());
    for (const NewJob& job : jobs) {
        auto endpoint = named ? named : queue.route_of(job.type);
        placements.push_back({new_id(), endpoint,
                              settings.max_attempts ? *settings.max_attempts
                                                    : queue.max_attempts_of(job.type, endpoint)});
    }
    if (keyed)
        push_keyed(settings, jobs, placements);
    else
        insert_plain(table, settings, queue, jobs, placements);
    wake::Arrival arrival{.priority = settings.priority, .place = {}};
    std::optional<core::Stream> last;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
        TimestampTz run_at = jobs[i].run_at.value_or(settings.run_at);
        core::Stream stream{queue.id, placements[i].endpoint.value_or(core::Stream::own)};
        if (stream != last || run_at < arrival.place.run_at) {
            arrival.place.run_at = run_at;
            arrival.delivered = queue.delivered() && run_at <= pg::clock();
            wake::note(stream, queue.name, arrival);
            last = stream;
        }
    }
    std::vector<core::Uuid> ids;
    ids.reserve(placements.size());
    for (const Placement& placement : placements)
        ids.push_back(placement.id);
    return ids;
}

} // namespace jobq::queue
