-- Seeing.

CREATE VIEW jobq.jobs AS
    SELECT j.id, q.name AS queue, j.type,
           CASE WHEN j.lease_until IS NOT NULL THEN 'running' WHEN j.endpoint_id = -1 THEN 'unrouted' ELSE 'queued'
           END::jobq.job_state AS state,
           j.payload, j.body, j.content_type, j.headers, j.priority, j.run_at, j.expires_at,
           j.attempt, j.failures, j.max_attempts, j.group_key, j.unique_key,
           j.pushed_by, j.worker, jobq.created_at(j.id) AS created_at, j.started_at,
           NULL::timestamptz AS finished_at, NULL::interval AS duration, j.lease_until, j.progress, j.note,
           NULL::jsonb AS result,
           CASE WHEN j.attempt > 0 THEN (
               SELECT a.error FROM jobq.attempt AS a WHERE a.job_id = j.id ORDER BY a.attempt DESC LIMIT 1
           ) END AS error
    FROM jobq.job AS j
    JOIN jobq.queue AS q ON q.id = j.queue_id
    UNION ALL
    SELECT f.id, q.name, f.type, f.state, f.payload, f.body, f.content_type, f.headers, f.priority, f.run_at,
           f.expires_at, f.attempt, f.failures, f.max_attempts, f.group_key, f.unique_key, f.pushed_by, f.worker,
           jobq.created_at(f.id), f.started_at, f.finished_at, f.finished_at - f.started_at, NULL, NULL, NULL,
           f.result, f.error
    FROM jobq.finished AS f
    JOIN jobq.queue AS q ON q.id = f.queue_id
    UNION ALL
    SELECT d.id, q.name, d.type, d.state, d.payload, d.body, d.content_type, d.headers, d.priority, d.run_at,
           d.expires_at, d.attempt, d.failures, d.max_attempts, d.group_key, d.unique_key, d.pushed_by, d.worker,
           jobq.created_at(d.id), d.started_at, d.finished_at, d.finished_at - d.started_at, NULL, NULL, NULL,
           d.result, d.error
    FROM jobq.dead AS d
    JOIN jobq.queue AS q ON q.id = d.queue_id;
COMMENT ON VIEW jobq.jobs IS 'Every job that is known, live and ended. started_at and duration are those of the last attempt; error is the last failure''s.';

CREATE VIEW jobq.attempts AS
    SELECT a.job_id AS id, a.attempt, a.started_at, a.finished_at, a.finished_at - a.started_at AS duration,
           a.outcome, a.status_code, a.error, a.response, a.worker
    FROM jobq.attempt AS a
    UNION ALL
    SELECT f.id, f.attempt, f.started_at, f.finished_at, f.finished_at - f.started_at, f.outcome,
           f.status_code, f.error, f.response, f.worker
    FROM jobq.finished AS f WHERE f.started_at IS NOT NULL
    UNION ALL
    SELECT d.id, d.attempt, d.started_at, d.finished_at, d.finished_at - d.started_at, d.outcome,
           d.status_code, d.error, d.response, d.worker
    FROM jobq.dead AS d WHERE d.started_at IS NOT NULL
    UNION ALL
    SELECT j.id, j.attempt, j.started_at, NULL, NULL, NULL, NULL, NULL, NULL, j.worker
    FROM jobq.job AS j WHERE j.lease_until IS NOT NULL;
COMMENT ON VIEW jobq.attempts IS 'Attempts at the jobs that are known: one delivery, or one pull. Of a job those that ended it or are under way, and the last 50 others. An attempt that is under way has no outcome yet.';

-- Counting stops at 10,000, so that a look at the queues costs the same whatever waits in them.
CREATE FUNCTION jobq.count_queue(
    queue_id int, OUT due bigint, OUT scheduled bigint, OUT unrouted bigint, OUT running bigint, OUT dead bigint, OUT oldest_due interval,
    OUT finished_per_minute bigint, OUT median_duration interval, OUT p99_duration interval, OUT estimated boolean)
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    most CONSTANT int := 10000;
    now CONSTANT timestamptz := clock_timestamp();
    counted bigint;
    since timestamptz;
    plan json;
BEGIN
    SELECT count(*), count(*) FILTER (WHERE s.lease_until IS NULL AND s.run_at <= now),
           count(*) FILTER (WHERE s.lease_until IS NULL AND s.run_at > now), count(s.lease_until),
           now - min(s.run_at) FILTER (WHERE s.lease_until IS NULL AND s.run_at <= now)
        INTO counted, due, scheduled, running, oldest_due
        FROM ((SELECT j.lease_until, j.run_at FROM jobq.job AS j
               WHERE j.queue_id = count_queue.queue_id AND j.endpoint_id IS NULL
               ORDER BY j.queue_id, j.priority, j.run_at, j.seq LIMIT most + 1)
              UNION ALL
              (SELECT j.lease_until, j.run_at FROM jobq.job AS j
               WHERE j.queue_id = count_queue.queue_id AND j.endpoint_id > 0
               ORDER BY j.queue_id, j.endpoint_id, j.priority, j.run_at, j.seq LIMIT most + 1)) AS s;
    SELECT count(*) INTO unrouted
        FROM (SELECT FROM jobq.job AS j WHERE j.queue_id = count_queue.queue_id AND j.endpoint_id = -1 LIMIT most + 1) AS s;
    estimated := counted > most OR unrouted > most;
    IF counted > most THEN
        EXECUTE format('EXPLAIN (FORMAT json) SELECT FROM jobq.job AS j WHERE j.queue_id = %s AND j.run_at <= %L', queue_id, now)
            INTO plan;
        due := greatest(due, (plan -> 0 -> 'Plan' ->> 'Plan Rows')::bigint - running);
        EXECUTE format('EXPLAIN (FORMAT json) SELECT FROM jobq.job AS j WHERE j.queue_id = %s AND j.run_at > %L', queue_id, now)
            INTO plan;
        -- The planner says 1 where it finds none.
        scheduled := greatest(scheduled, (plan -> 0 -> 'Plan' ->> 'Plan Rows')::bigint - 1);
    END IF;

    SELECT count(*) INTO dead
        FROM (SELECT FROM jobq.dead AS d WHERE d.queue_id = count_queue.queue_id LIMIT most + 1) AS s;
    estimated := estimated OR dead > most;

    SELECT count(*), count(*) FILTER (WHERE s.state = 'completed'), min(s.finished_at),
           percentile_cont(0.5) WITHIN GROUP (ORDER BY s.finished_at - s.started_at) FILTER (WHERE s.state = 'completed'),
           percentile_cont(0.99) WITHIN GROUP (ORDER BY s.finished_at - s.started_at) FILTER (WHERE s.state = 'completed')
        INTO counted, finished_per_minute, since, median_duration, p99_duration
        FROM (SELECT f.state, f.started_at, f.finished_at FROM jobq.finished AS f
              WHERE f.queue_id = count_queue.queue_id AND f.finished_at > now - interval '1 min'
              ORDER BY f.queue_id DESC, f.finished_at DESC LIMIT most) AS s;
    IF counted = most THEN
        finished_per_minute := finished_per_minute * 60 / greatest(extract(epoch FROM now - since), 0.001);
        estimated := true;
    END IF;
END $$;

-- A view calls its functions as whoever reads it. So this one asks for the privilege, and then counts as the owner.
CREATE FUNCTION jobq.queue_stats(
    queue_id int, OUT due bigint, OUT scheduled bigint, OUT unrouted bigint, OUT running bigint, OUT dead bigint, OUT oldest_due interval,
    OUT finished_per_minute bigint, OUT median_duration interval, OUT p99_duration interval, OUT estimated boolean) RETURNS SETOF record
    LANGUAGE c ROWS 1 AS 'MODULE_PATHNAME', 'jobq_queue_stats';
COMMENT ON FUNCTION jobq.queue_stats IS 'Part of jobq.stats. Error 42501 without SELECT on that view.';

CREATE VIEW jobq.stats AS
    SELECT q.name AS queue, e.name AS endpoint, q.paused, s.due, s.scheduled, s.unrouted, s.running, s.dead, s.oldest_due,
           s.finished_per_minute, s.median_duration, s.p99_duration, s.estimated
    FROM jobq.queue AS q
    LEFT JOIN jobq.endpoint AS e ON e.id = q.endpoint_id
    CROSS JOIN LATERAL jobq.queue_stats(q.id) AS s;
COMMENT ON VIEW jobq.stats IS 'A row a queue: jobs that are due, scheduled for later (retries included), unrouted (of a type that has nowhere to go), running and dead; how long the oldest due job has waited; completed in the last minute, and how long those ran. Counted when it is read, up to 10,000 of each; where there are more, estimated is true: due and scheduled are then what ANALYZE''s statistics say, running and oldest_due are of the 10,000 that come first, dead stays at 10,001, and the rate and the durations are those of the last 10,000 finished.';

CREATE VIEW jobq.routes AS
    SELECT q.name AS queue, r.key AS type, e.name AS endpoint
    FROM jobq.queue AS q CROSS JOIN LATERAL pg_catalog.jsonb_each_text(q.routes) AS r
    LEFT JOIN jobq.endpoint AS e ON e.id = r.value::int
    UNION ALL SELECT q.name, NULL, e.name FROM jobq.queue AS q JOIN jobq.endpoint AS e ON e.id = q.endpoint_id;
COMMENT ON VIEW jobq.routes IS 'Where the jobs of each queue go that name no endpoint themselves: those of a type, or with type NULL those of all other types.';

-- As jobq.queue_stats: what the dispatcher knows of an endpoint; no row where it knows nothing.
CREATE FUNCTION jobq.endpoint_state(
    endpoint_id int, OUT in_flight int, OUT window_size int, OUT breaker text, OUT breaker_until timestamptz,
    OUT paused_until timestamptz, OUT succeeded bigint, OUT failed bigint, OUT recent_succeeded bigint, OUT recent_failed bigint,
    OUT p50_duration interval, OUT p99_duration interval, OUT last_at timestamptz, OUT last_outcome text, OUT last_status int,
    OUT last_error text) RETURNS SETOF record
    LANGUAGE c ROWS 1 AS 'MODULE_PATHNAME', 'jobq_endpoint_state';
COMMENT ON FUNCTION jobq.endpoint_state IS 'Part of jobq.endpoint_stats. Error 42501 without SELECT on that view.';

CREATE VIEW jobq.endpoint_stats AS
    SELECT e.name AS endpoint, e.url, e.enabled, e.disabled_reason, s.in_flight, s.window_size AS "window", e.max_in_flight,
           s.breaker, s.breaker_until, s.paused_until, s.succeeded, s.failed,
           s.recent_succeeded::float8 / nullif(s.recent_succeeded + s.recent_failed, 0) AS success_ratio,
           s.p50_duration, s.p99_duration, s.last_at, s.last_outcome, s.last_status, s.last_error
    FROM jobq.endpoint AS e
    LEFT JOIN LATERAL jobq.endpoint_state(e.id) AS s ON true;
COMMENT ON VIEW jobq.endpoint_stats IS 'A row an endpoint, as its dispatcher sees it at this moment: requests in flight, and how many there may be now (window, within max_in_flight); its breaker (closed; open: it failed, and nothing is sent until a probe at breaker_until; half_open: the probe is under way); until when Retry-After holds it back (paused_until); requests since the dispatcher started (succeeded, failed); of the last 5 to 10 minutes the part that succeeded (0 to 1) and how long the middle one and the 99th percentile took; and how the last request ended. NULL where nothing is known: no request yet, or no dispatcher runs (see jobq.status()).';

CREATE FUNCTION jobq.ask_dispatcher(
    endpoint_id int, timeout interval, OUT ok boolean, OUT outcome text, OUT status_code int, OUT duration interval,
    OUT http_version text, OUT address text, OUT error text, OUT response text) RETURNS SETOF record
    LANGUAGE c ROWS 1 AS 'MODULE_PATHNAME', 'jobq_ask_dispatcher';

CREATE FUNCTION jobq.send_test(
    endpoint text, timeout interval DEFAULT NULL, OUT ok boolean, OUT outcome text, OUT status_code int, OUT duration interval,
    OUT http_version text, OUT address text, OUT error text, OUT response text) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found jobq.endpoint := jobq.endpoint_named(endpoint);
BEGIN
    PERFORM jobq.check_interval('timeout', timeout, '0 s', '2 h');
    SELECT t.* INTO ok, outcome, status_code, duration, http_version, address, error, response
        FROM jobq.ask_dispatcher(found.id, coalesce(timeout, found.timeout + interval '5 s')) AS t;
END $$;
COMMENT ON FUNCTION jobq.send_test IS
'Has the dispatcher send one test request to an endpoint, with its settings as they are committed, enabled or not, and waits for the answer: timeout is the longest wait, 0 to 2 hours (default: the endpoint''s timeout and 5 seconds). Always one row. ok: the endpoint answered with 2xx. outcome: completed, or as in jobq.attempts (http_503, connection_refused, timeout...); or no request was made: no_dispatcher (none runs: see jobq.status()), no_endpoint (the dispatcher does not know it: it is created by a transaction that is not committed); or no_answer (the dispatcher did not say in time what came of it). error says why. duration, http_version, address (that was connected to) and response (its first kilobyte) are NULL where there is none. One test at a time in a database: others wait for their turn.
Errors: 42704 unknown endpoint, 22004 NULL endpoint, 22023 timeout out of range.
Example: SELECT * FROM jobq.send_test(''mail'');';

CREATE FUNCTION jobq.job(id uuid) RETURNS SETOF jobq.jobs
    LANGUAGE sql STABLE SECURITY DEFINER ROWS 1 SET search_path = pg_catalog, pg_temp AS $$
    SELECT * FROM jobq.jobs AS j WHERE j.id = job.id;
$$;
COMMENT ON FUNCTION jobq.job IS 'The row of jobq.jobs for one job; none where it is not known.';

CREATE FUNCTION jobq.status(
    OUT component text, OUT database text, OUT pid int, OUT state text, OUT since timestamptz,
    OUT in_flight int, OUT delivered bigint, OUT failed bigint, OUT message text) RETURNS SETOF record
    LANGUAGE c AS 'MODULE_PATHNAME', 'jobq_status';
COMMENT ON FUNCTION jobq.status() IS 'What runs where: the launcher and each database''s dispatcher, which database waits for a worker slot, and what is wrong. Superusers see every database, others the one they are in.';

CREATE FUNCTION jobq.preloaded() RETURNS boolean
    LANGUAGE c AS 'MODULE_PATHNAME', 'jobq_preloaded';
COMMENT ON FUNCTION jobq.preloaded() IS 'Whether the server loaded the library at its start, so that it can deliver.';
