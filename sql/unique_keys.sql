\set ECHO none
\getenv here PG_ABS_SRCDIR
\set setup :here '/sql/setup.inc'
\i :setup
\set ECHO all
-- Unique keys: at most one job waits for a key in its queue.
DO $$ BEGIN PERFORM jobq.create_queue('keys'); PERFORM jobq.create_queue('keys_b'); END $$;

-- skip, the default: a second push changes nothing, and returns the id of the job that waits.
SELECT jobq.push('keys', '1', unique_key => 'k') AS id \gset
SELECT jobq.push('keys', '2', 'other', priority => 9, unique_key => 'k') = :'id' AS same;
SELECT jobq.push('keys', '3', unique_key => 'k', options => '{"on_conflict": "skip"}') = :'id' AS same;
SELECT payload, type, priority FROM jobq.jobs WHERE queue = 'keys';

-- The same key in another queue, another key, and no key, are other jobs.
SELECT jobq.push('keys_b', '4', unique_key => 'k') <> :'id' AND jobq.push('keys', '5', unique_key => 'K') <> :'id' AND jobq.push('keys', '6') <> :'id' AS others;

-- replace: the waiting job keeps its id and place, and takes everything else of the second push.
SELECT jobq.push('keys', '7', 'late', '2100-01-01 00:00+00', NULL, 3, 'g', 'k',
    '{"on_conflict": "replace", "max_attempts": 2, "headers": {"x-a": "b"}, "pushed_by": "second", "expires_at": "2101-01-01 00:00+00"}') = :'id' AS same;
SELECT payload, type, priority, run_at AT TIME ZONE 'UTC' AS run_at, group_key, max_attempts, headers, pushed_by, expires_at AT TIME ZONE 'UTC' AS expires_at FROM jobq.job(:'id') \gx
SELECT jobq.push('keys', '8', unique_key => 'k', options => '{"on_conflict": "replace"}') = :'id' AS same;
SELECT payload, type, priority, run_at <= clock_timestamp() AS due, group_key, max_attempts, headers, pushed_by = current_user AS by_me, expires_at FROM jobq.job(:'id') \gx
SELECT jobq.push_bytes('keys', '\x09', 'image/png', unique_key => 'k', options => '{"on_conflict": "replace"}') = :'id' AS same;
SELECT payload, body, content_type FROM jobq.job(:'id');
SELECT jobq.push('keys', '10', unique_key => 'k', options => '{"on_conflict": "replace"}') = :'id' AS same;
SELECT payload, body, content_type FROM jobq.job(:'id');

-- replace: a job that waits for its retry starts afresh.
SELECT jobq.clear('keys');
SELECT jobq.push('keys', '10', unique_key => 'k') AS id \gset
SELECT jobq.fail(id, attempt, 'no', '1 h') IS NOT NULL AS again FROM jobq.pull('keys', 10);
SELECT payload, failures, attempt, run_at > clock_timestamp() AS later FROM jobq.job(:'id');
SELECT jobq.push('keys', '11', unique_key => 'k', options => '{"on_conflict": "replace"}') = :'id' AS same;
SELECT payload, failures, attempt, run_at > clock_timestamp() AS later FROM jobq.job(:'id');

-- replace: where none waits it is a push like any other.
SELECT jobq.push('keys', '12', unique_key => 'new', options => '{"on_conflict": "replace"}') IS NOT NULL AS pushed;

-- error: refused, with the key and the queue.
SELECT test.refused($$SELECT jobq.push('keys', unique_key => 'k', options => '{"on_conflict": "error"}')$$);
SELECT jobq.push('keys', '13', unique_key => 'newer', options => '{"on_conflict": "error"}') IS NOT NULL AS pushed;
SELECT jobq.clear('keys'), jobq.clear('keys_b');

-- A running job does not swallow a newer push: that one waits beside it, and there is still only one that waits.
SELECT jobq.push('keys', '"first"', unique_key => 'k') AS first \gset
SELECT payload FROM jobq.pull('keys');
SELECT jobq.push('keys', '"second"', unique_key => 'k', options => '{"on_conflict": "error"}') AS second \gset
SELECT jobq.push('keys', '"third"', unique_key => 'k') = :'second' AS same;
SELECT payload, state FROM jobq.jobs WHERE queue = 'keys' AND state IN ('queued', 'running') ORDER BY id;
SELECT payload FROM jobq.pull('keys');
SELECT jobq.complete(:'first', 1), jobq.complete(:'second', 1);

-- The key is free as soon as the job has ended, whichever way.
SELECT jobq.push('keys', unique_key => 'k') AS id \gset
SELECT jobq.cancel(:'id');
SELECT jobq.push('keys', unique_key => 'k') <> :'id' AS new;
SELECT id FROM jobq.pull('keys') \gset
SELECT jobq.bury(:'id', 1);
SELECT jobq.push('keys', unique_key => 'k') <> :'id' AS new;
SELECT jobq.clear('keys');

-- A job that fails waits for its key again, and is found by the next push.
SELECT jobq.push('keys', '"fails"', unique_key => 'k') AS id \gset
SELECT jobq.fail(id, attempt, 'no', '1 h') IS NOT NULL AS again FROM jobq.pull('keys');
SELECT jobq.push('keys', '"more"', unique_key => 'k') = :'id' AS same;
SELECT jobq.cancel(:'id');

-- A job that fails while a newer one waits for its key is cancelled, and says why: the newer one does its work.
SELECT jobq.push('keys', '"older"', unique_key => 'k') AS older \gset
SELECT payload FROM jobq.pull('keys');
SELECT jobq.push('keys', '"newer"', unique_key => 'k') AS newer \gset
SELECT jobq.fail(:'older', 1, 'no') IS NULL AS not_again;
SELECT payload, state, error FROM jobq.jobs WHERE id IN (:'older', :'newer') ORDER BY id;
SELECT attempt, outcome, error FROM jobq.attempts WHERE id = :'older';
-- So is one that is released, or whose lease is over; one whose attempts are used up is dead.
SELECT id AS older FROM jobq.pull('keys') \gset
SELECT jobq.push('keys', '"newest"', unique_key => 'k') AS newer \gset
SELECT jobq.release(:'older', 1) IS NULL AS not_again;
SELECT payload, state, error FROM jobq.jobs WHERE id IN (:'older', :'newer') ORDER BY id;
SELECT id AS older FROM jobq.pull('keys') \gset
SELECT jobq.push('keys', '"last"', unique_key => 'k', options => '{"max_attempts": 1}') AS newer \gset
BEGIN;
SELECT test.end_leases('keys');
SELECT payload FROM jobq.pull('keys');
COMMIT;
SELECT payload, state, error FROM jobq.jobs WHERE id IN (:'older', :'newer') ORDER BY id;
SELECT jobq.push('keys', '"after the last"', unique_key => 'k') AS after \gset
SELECT jobq.fail(:'newer', 1, 'no') IS NULL AS not_again;
SELECT payload, state, error FROM jobq.jobs WHERE id IN (:'newer', :'after') ORDER BY id;
SELECT jobq.clear('keys'), jobq.clear('keys', 'dead') > 0 AS dead;

-- A push that rolls back gives the key back.
BEGIN;
SELECT jobq.push('keys', '"gone"', unique_key => 'k') AS gone \gset
ROLLBACK;
SELECT jobq.push('keys', '"kept"', unique_key => 'k') <> :'gone' AS new;
SELECT jobq.clear('keys');

-- push_many: a key that comes twice is pushed once; its id comes twice.
SELECT array_agg(id ORDER BY n) AS ids, count(DISTINCT id) FROM jobq.push_many('keys', '{1, 2, 3, 4}', unique_keys => '{b, a, b, NULL}') WITH ORDINALITY AS p (id, n) \gset
SELECT :count AS jobs, (:'ids'::uuid[])[1] = (:'ids'::uuid[])[3] AS first_is_third;
SELECT payload, unique_key FROM jobq.jobs WHERE queue = 'keys' AND state = 'queued' ORDER BY payload;
SELECT count(*) FROM jobq.pull('keys', 10);
-- With replace the last one counts; with error nothing is pushed.
SELECT count(DISTINCT id) FROM jobq.push_many('keys', '{5, 6, 7}', unique_keys => '{b, a, b}', options => '{"on_conflict": "replace"}') AS p (id);
SELECT payload, unique_key FROM jobq.jobs WHERE queue = 'keys' AND state = 'queued' ORDER BY unique_key;
SELECT test.refused($$SELECT jobq.push_many('keys', '{8, 9}', unique_keys => '{c, a}', options => '{"on_conflict": "error"}')$$);
SELECT payload, unique_key FROM jobq.jobs WHERE queue = 'keys' AND state = 'queued' ORDER BY unique_key;

-- push_many: a thousand keys, half of which wait already.
SELECT jobq.clear('keys');
SELECT count(DISTINCT id) FROM jobq.push_many('keys', (SELECT array_agg(to_jsonb(n)) FROM generate_series(1, 1000) AS n), unique_keys => (SELECT array_agg('k' || n) FROM generate_series(1, 1000) AS n)) AS p (id);
SELECT count(DISTINCT id) FROM jobq.push_many('keys', (SELECT array_agg(to_jsonb(n)) FROM generate_series(1, 1000) AS n), unique_keys => (SELECT array_agg('k' || n) FROM generate_series(501, 1500) AS n)) AS p (id);
SELECT count(*) FROM jobq.jobs WHERE queue = 'keys' AND state = 'queued';
SELECT jobq.clear('keys');

-- Keys are told apart by their bytes, not by a collation.
SELECT count(DISTINCT id) FROM jobq.push_many('keys', '{1, 2, 3}', unique_keys => ARRAY['é', U&'e\0301', 'E']) AS p (id);
SELECT jobq.clear('keys');

-- retry: a dead job cannot wait for a key that another waits for; it stays dead until it can.
SELECT jobq.push('keys', '"dead"', unique_key => 'k') AS dead \gset
SELECT jobq.bury(id, attempt) FROM jobq.pull('keys');
SELECT jobq.push('keys', '"waits"', unique_key => 'k') AS waits \gset
SELECT test.refused(format('SELECT jobq.retry(%L)', :'dead'));
SELECT jobq.retry_dead('keys');
SELECT state FROM jobq.job(:'dead');
SELECT jobq.cancel(:'waits');
SELECT jobq.retry_dead('keys');
SELECT state, unique_key FROM jobq.job(:'dead');
SELECT jobq.push('keys', unique_key => 'k') = :'dead' AS same;

-- retry_dead: of several dead jobs of one key the newest is queued again.
SELECT jobq.bury(id, attempt) FROM jobq.pull('keys');
SELECT jobq.push('keys', '"dead too"', unique_key => 'k') IS NOT NULL AS pushed;
SELECT jobq.bury(id, attempt) FROM jobq.pull('keys');
SELECT jobq.retry_dead('keys');
SELECT payload, state FROM jobq.jobs WHERE queue = 'keys' AND state IN ('queued', 'dead');
