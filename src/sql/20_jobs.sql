-- A job is a row of exactly one of job (not finished), finished (completed, cancelled, expired) and dead.
-- A job with a row in lease is running, one without is queued. Locks are taken in this order: job, lease.

CREATE TYPE jobq.job_state AS ENUM ('queued', 'running', 'completed', 'dead', 'cancelled', 'expired');

-- The order of pushes. Not cached: a cached value could be older than another session's newer one.
CREATE SEQUENCE jobq.push_order CACHE 1;

CREATE TABLE jobq.job (
    id uuid NOT NULL,
    seq bigint NOT NULL,
    run_at timestamptz NOT NULL,
    expires_at timestamptz,
    queue_id int NOT NULL,
    attempt int NOT NULL,
    endpoint_id int,
    priority smallint NOT NULL,
    failures smallint NOT NULL,
    max_attempts smallint NOT NULL,
    key_waits boolean,
    type text,
    group_key text,
    unique_key text,
    pushed_by text NOT NULL,
    content_type text,
    headers jsonb,
    payload jsonb,
    body bytea,
    CONSTRAINT job_pkey PRIMARY KEY (id)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

CREATE INDEX job_ready ON jobq.job (queue_id, priority, run_at, seq);
CREATE INDEX job_group ON jobq.job (queue_id, group_key, seq) WHERE group_key IS NOT NULL;
CREATE INDEX job_endpoint ON jobq.job (endpoint_id, queue_id) WHERE endpoint_id IS NOT NULL;
CREATE UNIQUE INDEX job_waiting_key ON jobq.job (queue_id, unique_key) WHERE key_waits;

COMMENT ON TABLE jobq.job IS 'Jobs that are not finished. Read jobq.jobs instead.';
COMMENT ON COLUMN jobq.job.endpoint_id IS 'the endpoint that the push named; NULL: its queue''s';
COMMENT ON COLUMN jobq.job.attempt IS 'claims so far';
COMMENT ON COLUMN jobq.job.failures IS 'attempts that were charged; the job is dead when they reach max_attempts';
COMMENT ON COLUMN jobq.job.key_waits IS 'true while the job waits under its unique_key; NULL for jobs without one, so that claiming those changes no index';

CREATE TABLE jobq.lease (
    job_id uuid NOT NULL,
    queue_id int NOT NULL,
    attempt int NOT NULL,
    lease_until timestamptz NOT NULL,
    started_at timestamptz NOT NULL,
    endpoint_id int,
    worker text,
    group_key text,
    progress float8,
    note text,
    CONSTRAINT lease_pkey PRIMARY KEY (job_id)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- At most one running job a group, whatever else goes wrong.
CREATE UNIQUE INDEX lease_group ON jobq.lease (queue_id, group_key) WHERE group_key IS NOT NULL;
CREATE INDEX lease_until ON jobq.lease (lease_until);

COMMENT ON TABLE jobq.lease IS 'Who runs which job. Read jobq.jobs instead.';
COMMENT ON COLUMN jobq.lease.attempt IS 'the fencing token: who ends the job must name it';
COMMENT ON COLUMN jobq.lease.endpoint_id IS 'set for deliveries, which the dispatcher holds; NULL for pulled jobs';

CREATE TABLE jobq.finished (
    LIKE jobq.job,
    state jobq.job_state NOT NULL,
    finished_at timestamptz NOT NULL,
    started_at timestamptz,
    worker text,
    outcome text,
    status_code int,
    result jsonb,
    error text,
    response text
);
CREATE INDEX finished_id ON jobq.finished (id);
CREATE INDEX finished_at ON jobq.finished (finished_at);
COMMENT ON TABLE jobq.finished IS 'Jobs that were completed, cancelled or have expired, with their last attempt; kept for queue.keep. Read jobq.jobs instead.';

CREATE TABLE jobq.dead (LIKE jobq.finished, PRIMARY KEY (id));
CREATE INDEX dead_queue ON jobq.dead (queue_id, finished_at);
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
SELECT pg_catalog.pg_extension_config_dump('jobq.queue', '');
SELECT pg_catalog.pg_extension_config_dump('jobq.queue_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('jobq.push_order', '');
SELECT pg_catalog.pg_extension_config_dump('jobq.job', '');
SELECT pg_catalog.pg_extension_config_dump('jobq.lease', '');
SELECT pg_catalog.pg_extension_config_dump('jobq.finished', '');
SELECT pg_catalog.pg_extension_config_dump('jobq.dead', '');
SELECT pg_catalog.pg_extension_config_dump('jobq.attempt', '');
