// The columns of jobq.job and jobq.finished, in the order of src/sql/20_jobs.sql.
#pragma once

#include "core/stream.hpp"
#include "pg/table.hpp"

namespace jobq::queue {

struct JobColumn {
    enum : int {
        id = 1,
        seq,
        run_at,
        attempt,
        queue_id,
        priority,
        failures,
        max_attempts,
        key_waits,
        delivery,
        expires_at,
        lease_until,
        started_at,
        progress,
        endpoint_id,
        limited,
        type,
        group_key,
        unique_key,
        pushed_by,
        worker,
        note,
        content_type,
        headers,
        payload,
        body,
        count = body
    };
};

struct FinishedColumn {
    enum : int {
        id = 1,
        seq,
        run_at,
        finished_at,
        queue_id,
        attempt,
        started_at,
        expires_at,
        endpoint_id,
        status_code,
        state,
        priority,
        failures,
        max_attempts,
        type,
        group_key,
        unique_key,
        pushed_by,
        worker,
        outcome,
        error,
        response,
        content_type,
        headers,
        result,
        payload,
        body,
        count = body
    };
};

inline core::Stream stream_of(const pg::Tuple& job) {
    return {job.int4(JobColumn::queue_id), job.null(JobColumn::endpoint_id)
                                               ? core::Stream::own
                                               : job.int4(JobColumn::endpoint_id)};
}

} // namespace jobq::queue
