-- A job is a row of exactly one of job (not finished), finished (completed, cancelled, expired) and dead.
-- One in job with a lease_until is running, one without is queued.
--
-- A claim writes the lease into the job's row. None of what it writes there for a plain job stands in an
-- index, and fillfactor leaves room for it on the page, so that it costs no index entries (HOT).
-- What has to be found by more than the job stands in a column of its own, with an index, which is NULL
-- for jobs that do not need it: limited, worker, key_waits.
--
-- Written by C++ past the executor (src/pg/table.hpp): triggers on job and finished do not fire for it.

CREATE TYPE jobq.job_state AS ENUM ('queued', 'unrouted', 'running', 'completed', 'dead', 'cancelled', 'expired');

-- The order of pushes. Not cached: a cached value could be older than another session's newer one.
CREATE SEQUENCE jobq.push_order CACHE 1;

-- The columns are known to src/queue/job_row.hpp by their order. Those that are never NULL come first: behind one that
-- is, PostgreSQL has to walk through the row to each column, and does so for all that are indexed. What is indexed is
-- compared by its bytes: quicker, and the same after an upgrade of the system's locales.
CREATE TABLE jobq.job (
    id uuid NOT NULL,
    seq bigint NOT NULL,
    run_at timestamptz NOT NULL,
    attempt int NOT NULL,
    queue_id int NOT NULL,
    priority smallint NOT NULL,
    failures smallint NOT NULL,
    max_attempts smallint NOT NULL,
    key_waits boolean,
    delivery boolean,
    expires_at timestamptz,
    lease_until timestamptz,
    started_at timestamptz,
    progress float8,
    endpoint_id int,
    limited boolean,
    type text,
    group_key text COLLATE "C",
    unique_key text COLLATE "C",
    pushed_by text NOT NULL,
    worker text COLLATE "C",
    note text,
    content_type text,
    headers jsonb,
    payload jsonb,
    body bytea,
    CONSTRAINT job_pkey PRIMARY KEY (id)
) USING heap WITH (fillfactor = 45, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- The order of claims, apart for those that go to the queue's endpoint or are pulled, and for each other endpoint,
-- so that what waits for one endpoint stands in nobody's way.
CREATE INDEX job_ready ON jobq.job (queue_id, priority, run_at, seq) WHERE endpoint_id IS NULL;
CREATE INDEX job_ready_for ON jobq.job (queue_id, endpoint_id, priority, run_at, seq) WHERE endpoint_id IS NOT NULL;
CREATE INDEX job_group ON jobq.job (queue_id, group_key, seq) WHERE group_key IS NOT NULL;
CREATE INDEX job_limited ON jobq.job (queue_id) WHERE limited;
CREATE INDEX job_worker ON jobq.job (worker) WHERE worker IS NOT NULL;
CREATE UNIQUE INDEX job_waiting_key ON jobq.job (queue_id, unique_key) WHERE key_waits;

COMMENT ON TABLE jobq.job IS 'Jobs that are not finished. Read jobq.jobs instead.';
COMMENT ON COLUMN jobq.job.attempt IS 'claims so far, and the fencing token: who ends a running job must name it';
COMMENT ON COLUMN jobq.job.lease_until IS 'set while the job runs: when it may be given to somebody else';
COMMENT ON COLUMN jobq.job.endpoint_id IS 'the endpoint that the push named, or the route of its type; NULL: its queue''s; -1: its type has no route, and it waits for one';
COMMENT ON COLUMN jobq.job.failures IS 'attempts that were charged; the job is dead when they reach max_attempts';
COMMENT ON COLUMN jobq.job.key_waits IS 'true while the job waits under its unique_key; NULL for jobs without one, so that claiming those changes no index';
COMMENT ON COLUMN jobq.job.delivery IS 'true while the dispatcher runs the job; NULL for pulled ones';
COMMENT ON COLUMN jobq.job.limited IS 'true while the job runs and counts towards its queue''s max_running';

-- At most one running job a group, whatever else goes wrong. Not a column of job with an index, which each claim
-- from a group would have to write all of a job's index entries again for.
CREATE TABLE jobq.running_group (
    queue_id int NOT NULL,
    group_key text COLLATE "C" NOT NULL,
    job_id uuid NOT NULL,
    PRIMARY KEY (queue_id, group_key)
) USING heap WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE jobq.running_group IS 'Groups of which a job runs.';

CREATE TABLE jobq.finished (
    id uuid NOT NULL,
    seq bigint NOT NULL,
    run_at timestamptz NOT NULL,
    finished_at timestamptz NOT NULL,
    queue_id int NOT NULL,
    attempt int NOT NULL,
    started_at timestamptz,
    expires_at timestamptz,
    endpoint_id int,
    status_code int,
    state jobq.job_state NOT NULL,
    priority smallint NOT NULL,
    failures smallint NOT NULL,
    max_attempts smallint NOT NULL,
    type text,
    group_key text,
    unique_key text,
    pushed_by text NOT NULL,
    worker text,
    outcome text,
    error text,
    response text,
    content_type text,
    headers jsonb,
    result jsonb,
    payload jsonb,
    body bytea,
    CONSTRAINT finished_pkey PRIMARY KEY (id)
) USING heap;
CREATE INDEX finished_at ON jobq.finished (queue_id, finished_at);
COMMENT ON TABLE jobq.finished IS 'Jobs that were completed, cancelled or have expired, with their last attempt; kept for queue.keep. Read jobq.jobs instead.';

CREATE TABLE jobq.dead (LIKE jobq.finished, PRIMARY KEY (id));
CREATE INDEX dead_queue ON jobq.dead (queue_id, finished_at);
CREATE INDEX dead_key ON jobq.dead (queue_id, unique_key, seq) WHERE unique_key IS NOT NULL; -- see retry_dead
COMMENT ON TABLE jobq.dead IS 'Jobs that used up their attempts or were buried. They stay until somebody retries or clears them.';

CREATE TABLE jobq.attempt (
    job_id uuid NOT NULL,
    attempt int NOT NULL,
    started_at timestamptz NOT NULL,
    finished_at timestamptz NOT NULL,
    status_code int,
    outcome text NOT NULL,
    worker text,
    error text,
    response text,
    PRIMARY KEY (job_id, attempt)
);
COMMENT ON TABLE jobq.attempt IS 'Attempts that did not end their job; the last one stands with the job. Read jobq.attempts instead.';

CREATE FUNCTION jobq.created_at(id uuid) RETURNS timestamptz
    LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'jobq_created_at';
COMMENT ON FUNCTION jobq.created_at(uuid) IS 'When a job was pushed: the time in its id (UUID version 7), to the microsecond.';

-- What a dump carries. Without it the jobs would stay behind.
SELECT pg_catalog.pg_extension_config_dump('jobq.endpoint', '');
SELECT pg_catalog.pg_extension_config_dump('jobq.endpoint_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('jobq.secret', '');
SELECT pg_catalog.pg_extension_config_dump('jobq.secret_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('jobq.queue', '');
SELECT pg_catalog.pg_extension_config_dump('jobq.queue_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('jobq.push_order', '');
SELECT pg_catalog.pg_extension_config_dump('jobq.job', '');
SELECT pg_catalog.pg_extension_config_dump('jobq.running_group', '');
SELECT pg_catalog.pg_extension_config_dump('jobq.finished', '');
SELECT pg_catalog.pg_extension_config_dump('jobq.dead', '');
SELECT pg_catalog.pg_extension_config_dump('jobq.attempt', '');
