// Pushing: what jobq.push, push_many, push_bytes and push_row share.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/uuid.hpp"
#include "pg/spi.hpp"

namespace jobq::queue {

enum class OnConflict { skip, replace, error };

// What all jobs of one call have in common.
struct PushSettings {
    std::string_view queue;
    std::optional<std::string_view> content_type; // set: the payloads are bytea
    TimestampTz run_at;
    int32 priority = 0;
    std::optional<int32> max_attempts;
    std::optional<Datum> headers;
    std::optional<std::string_view> endpoint;
    std::string pushed_by;
    std::optional<TimestampTz> expires_at;
    OnConflict on_conflict = OnConflict::skip;
};

struct NewJob {
    std::optional<Datum> payload; // jsonb, or bytea with a content_type
    std::optional<std::string_view> type, group_key, unique_key;
    std::optional<TimestampTz> run_at; // instead of the settings'
};

// The settings of a call by the current role: run_at and delay (interval) as given, checked.
PushSettings push_settings(std::string_view queue, std::optional<TimestampTz> run_at,
                           std::optional<Datum> delay, int32 priority);

// Lays options (jsonb) over the settings. Error 22023 for an unknown key or a bad value; the keys
// in others are left to the caller.
void apply_options(PushSettings& settings, std::optional<Datum> options,
                   std::span<const std::string_view> others = {});

// Pushes the jobs as `owner`, and wakes after commit. Returns an id a job in their order: its own,
// or of the job that waits for its unique key already.
std::vector<core::Uuid> push(const PushSettings& settings, std::vector<NewJob> jobs, Oid owner);

} // namespace jobq::queue
