-- Consuming.

CREATE TYPE jobq.pulled AS (
    id uuid, attempt int, queue text, type text, payload jsonb, group_key text, headers jsonb,
    max_attempts int, lease_until timestamptz, body bytea, content_type text);
COMMENT ON TYPE jobq.pulled IS 'A job in the hands of a worker. Give id and attempt back with jobq.complete, fail, extend, release or bury.';

CREATE FUNCTION jobq.pull(
    queue text, batch int DEFAULT 1, lease interval DEFAULT NULL, types text[] DEFAULT NULL,
    worker text DEFAULT NULL, at timestamptz DEFAULT NULL) RETURNS SETOF jobq.pulled
    LANGUAGE c SECURITY DEFINER ROWS 10
    AS 'MODULE_PATHNAME', 'jobq_pull';
COMMENT ON FUNCTION jobq.pull IS
'Claims up to batch (1 to 10000) due jobs of a queue for as long as lease (default: the queue''s; counted from now by the clock, not from the start of the transaction) and returns them: lower priority numbers first, then by run_at, then in push order. Never waits for another worker; jobs being claimed by others are skipped. A batch has at most one job of a group.
types: only these types. worker: a name for jobq.pull_held and the history. at: take the jobs due at that time instead of now; leases always go by the clock.
Commit before doing the work: until then the jobs are locked, and a rollback gives them back as they were.
Errors: 42704 unknown queue, 55000 queue is delivered to an endpoint, 22004 NULL queue or batch, 22023 batch or lease out of range, 0A000 not READ COMMITTED.
Example: SELECT * FROM jobq.pull(''emails'', batch => 10, worker => ''mailer-1'');';

CREATE FUNCTION jobq.pull_any(
    queues text[], batch int DEFAULT 1, lease interval DEFAULT NULL, types text[] DEFAULT NULL,
    worker text DEFAULT NULL, at timestamptz DEFAULT NULL) RETURNS SETOF jobq.pulled
    LANGUAGE c SECURITY DEFINER ROWS 10
    AS 'MODULE_PATHNAME', 'jobq_pull_any';
COMMENT ON FUNCTION jobq.pull_any IS
'As jobq.pull, over several queues: the first named is emptied first.
Example: SELECT * FROM jobq.pull_any(''{urgent, emails}'', batch => 10);';

CREATE FUNCTION jobq.pull_held(worker text) RETURNS SETOF jobq.pulled
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT j.id, j.attempt, q.name, j.type, j.payload, j.group_key, j.headers, j.max_attempts::int,
           j.lease_until, j.body, j.content_type
    FROM jobq.job AS j
    JOIN jobq.queue AS q ON q.id = j.queue_id
    WHERE j.worker = pull_held.worker AND j.lease_until > clock_timestamp()
    ORDER BY j.started_at, j.seq;
$$;
COMMENT ON FUNCTION jobq.pull_held IS
'The jobs that a worker of this name pulled and still holds, for a worker that reconnects. Claims nothing and extends no lease.
Example: SELECT * FROM jobq.pull_held(''mailer-1'');';

-- Ending attempts. The attempt number is the fencing token: only the attempt that runs can end.

CREATE FUNCTION jobq.complete(id uuid, attempt int, result jsonb DEFAULT NULL) RETURNS void
    LANGUAGE c SECURITY DEFINER
    AS 'MODULE_PATHNAME', 'jobq_complete';
COMMENT ON FUNCTION jobq.complete IS
'Completes a running job, with a result if it has one.
Errors (here and in fail, extend, release, bury): 42704 no such job, 55000 the job is not running, or another attempt of it is; 22004 NULL id or attempt. Locks the job''s row.
Example: SELECT jobq.complete(id, attempt, ''{"sent": true}'');';

CREATE FUNCTION jobq.fail(id uuid, attempt int, error text DEFAULT NULL, retry_in interval DEFAULT NULL) RETURNS timestamptz
    LANGUAGE c SECURITY DEFINER
    AS 'MODULE_PATHNAME', 'jobq_fail';
COMMENT ON FUNCTION jobq.fail IS
'Ends an attempt as failed. Returns when the job is tried again: after retry_in, or by the retry settings of its type and queue; NULL where it is not: its attempts are used up and it is dead, or a newer job waits for its unique key and it is cancelled.
Example: SELECT jobq.fail(id, attempt, ''mailbox full'', retry_in => ''10 min'');';

CREATE FUNCTION jobq.extend(id uuid, attempt int, lease interval DEFAULT NULL, progress float8 DEFAULT NULL, note text DEFAULT NULL) RETURNS timestamptz
    LANGUAGE c SECURITY DEFINER
    AS 'MODULE_PATHNAME', 'jobq_extend';
COMMENT ON FUNCTION jobq.extend IS
'Holds a running job for another lease (default: the queue''s) from now and returns until when. progress (0 to 100) and note are shown in jobq.jobs; NULL leaves them.
Example: SELECT jobq.extend(id, attempt, ''1 min'', progress => 40, note => ''resizing'');';

CREATE FUNCTION jobq.release(id uuid, attempt int, delay interval DEFAULT NULL) RETURNS timestamptz
    LANGUAGE c SECURITY DEFINER
    AS 'MODULE_PATHNAME', 'jobq_release';
COMMENT ON FUNCTION jobq.release IS
'Gives a running job back uncharged: its attempts are not used up by this. Returns when it may run again: after delay, or when it was due before. The next claim has a new attempt number all the same.
Example: SELECT jobq.release(id, attempt, delay => ''30 s'');';

CREATE FUNCTION jobq.bury(id uuid, attempt int, reason text DEFAULT NULL) RETURNS void
    LANGUAGE c SECURITY DEFINER
    AS 'MODULE_PATHNAME', 'jobq_bury';
COMMENT ON FUNCTION jobq.bury IS
'Ends a running job as dead at once, for what no retry can mend.
Example: SELECT jobq.bury(id, attempt, ''malformed address'');';

CREATE FUNCTION jobq.complete_many(ids uuid[], attempts int[], results jsonb[] DEFAULT NULL) RETURNS SETOF uuid
    LANGUAGE c SECURITY DEFINER
    AS 'MODULE_PATHNAME', 'jobq_complete_many';
COMMENT ON FUNCTION jobq.complete_many IS
'Completes the jobs whose attempts are the ones that run, and returns the ids of these; the others are left as they are. Arrays go by position and are of one length (2202E).
Example: SELECT jobq.complete_many(array_agg(id), array_agg(attempt)) FROM done;';

CREATE FUNCTION jobq.fail_many(ids uuid[], attempts int[], errors text[] DEFAULT NULL, retry_in interval DEFAULT NULL) RETURNS SETOF uuid
    LANGUAGE c SECURITY DEFINER
    AS 'MODULE_PATHNAME', 'jobq_fail_many';
COMMENT ON FUNCTION jobq.fail_many IS 'jobq.fail for many: returns the ids whose attempts it ended.';

CREATE FUNCTION jobq.extend_many(ids uuid[], attempts int[], lease interval DEFAULT NULL) RETURNS SETOF uuid
    LANGUAGE c SECURITY DEFINER
    AS 'MODULE_PATHNAME', 'jobq_extend_many';
COMMENT ON FUNCTION jobq.extend_many IS 'jobq.extend for many: returns the ids that are still held.';

CREATE FUNCTION jobq.release_many(ids uuid[], attempts int[], delay interval DEFAULT NULL) RETURNS SETOF uuid
    LANGUAGE c SECURITY DEFINER
    AS 'MODULE_PATHNAME', 'jobq_release_many';
COMMENT ON FUNCTION jobq.release_many IS 'jobq.release for many: returns the ids that it gave back.';

CREATE FUNCTION jobq.bury_many(ids uuid[], attempts int[], reasons text[] DEFAULT NULL) RETURNS SETOF uuid
    LANGUAGE c SECURITY DEFINER
    AS 'MODULE_PATHNAME', 'jobq_bury_many';
COMMENT ON FUNCTION jobq.bury_many IS 'jobq.bury for many: returns the ids that it buried.';
