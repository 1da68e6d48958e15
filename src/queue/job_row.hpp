// The columns of jobq.job and jobq.finished, in the order of src/sql/20_jobs.sql.
#pragma once

namespace jobq::queue {

struct JobColumn {
    enum : int {
        id = 1,
        seq,
        run_at,
        expires_at,
        lease_until,
        started_at,
        progress,
        attempt,
        queue_id,
        endpoint_id,
        priority,
        failures,
        max_attempts,
        key_waits,
        delivery,
        limited,
        type,
        group_key,
        running_group,
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
        expires_at,
        started_at,
        finished_at,
        attempt,
        queue_id,
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

} // namespace jobq::queue
