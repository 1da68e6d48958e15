\set ECHO none
\getenv here PG_ABS_SRCDIR
\set setup :here '/sql/setup.inc'
\i :setup
\set ECHO all
-- Pulling: jobq.pull, pull_any and pull_held.
DO $$ BEGIN
    PERFORM jobq.create_queue('pull');
    PERFORM jobq.create_queue('pull_b');
END $$;

-- A pulled job has all that a worker needs.
SELECT jobq.push('pull', '{"n": 1}', type => 't', group_key => 'g', options => '{"headers": {"x-a": "b"}, "max_attempts": 4}') AS id \gset
SELECT id = :'id' AS same, attempt, queue, type, payload, group_key, headers, max_attempts, body, content_type,
       test.is_in(lease_until, '5 min') AS leased
FROM jobq.pull('pull', worker => 'w') \gx

-- It runs now: with a start, a worker, a lease and no outcome.
SELECT state, attempt, failures, worker, started_at BETWEEN created_at AND clock_timestamp() AS started,
       lease_until > clock_timestamp() AS leased, finished_at, duration, progress, note
FROM jobq.job(:'id') \gx
SELECT attempt, outcome, worker, finished_at FROM jobq.attempts WHERE id = :'id';

-- A running job is not pulled again, and an empty queue gives no rows.
SELECT * FROM jobq.pull('pull');
SELECT jobq.complete(:'id', 1);
SELECT * FROM jobq.pull('pull');

-- A body of bytes comes as it was pushed, with its content type.
SELECT jobq.push_bytes('pull', '\x000102', 'image/png') AS id \gset
SELECT payload, body, content_type FROM jobq.pull('pull');

-- A batch has at most so many jobs; those that are left come next.
SELECT count(*) FROM jobq.push_many('pull', '{1, 2, 3, 4, 5}');
SELECT payload FROM jobq.pull('pull', 2);
SELECT payload FROM jobq.pull('pull', batch => 2);
SELECT payload FROM jobq.pull('pull', 10000);

-- In a select list, and called once a row, it is the same.
SELECT count(*) FROM jobq.push_many('pull', '{1, 2, 3}');
SELECT (p).payload FROM (SELECT jobq.pull('pull', 2) AS p) AS x;
SELECT payload FROM generate_series(1, 3) AS worker, LATERAL jobq.pull('pull', worker / worker) AS p;

-- The lease: the argument, else the queue's; by the clock, not by the start of the transaction.
SELECT jobq.alter_queue('pull', lease => '90 s');
SELECT count(*) FROM jobq.push_many('pull', '{1, 2, 3}');
BEGIN;
SELECT test.is_in(lease_until, '90 s') AS of_the_queue FROM jobq.pull('pull');
SELECT test.is_in(lease_until, '2 h') AS as_given FROM jobq.pull('pull', lease => '2 h');
SELECT lease_until > clock_timestamp() AS not_born_expired FROM jobq.pull('pull', lease => '1 s'), pg_sleep(0);
COMMIT;
SELECT jobq.alter_queue('pull', lease => '5 min');

-- Types: NULL asks for all; an empty list for none; jobs without a type are asked for by NULL only.
SELECT count(*) FROM jobq.push_many('pull', '{1, 2, 3, 4}', types => '{a, NULL, b, ""}');
SELECT payload, type FROM jobq.pull('pull', 10, types => '{}');
SELECT payload, type FROM jobq.pull('pull', 10, types => '{c, NULL}');
SELECT payload, type FROM jobq.pull('pull', 10, types => '{b, c, "", b}');
SELECT payload, type FROM jobq.pull('pull', 10, types => NULL);

-- `at` takes the jobs that are due then; the lease goes by the clock all the same.
SELECT count(*) FROM jobq.push_many('pull', ARRAY['"tomorrow"', '"today"', '"long ago"']::jsonb[],
    run_ats => ARRAY[now() + interval '1 day', now(), '2000-01-01']);
SELECT payload FROM jobq.pull('pull', 10, at => '-infinity');
SELECT payload FROM jobq.pull('pull', 10, at => '1999-12-31');
SELECT payload, test.is_in(lease_until, '5 min') AS lease_by_the_clock FROM jobq.pull('pull', 10, at => '2000-01-01');
SELECT payload FROM jobq.pull('pull', 10);
SELECT payload, test.is_in(lease_until, '5 min') AS lease_by_the_clock FROM jobq.pull('pull', 10, at => now() + interval '2 days');

-- `at` never touches leases: one that would be over "then" is not.
SELECT count(*) FROM jobq.pull('pull', 10, at => 'infinity');
SELECT count(*) FILTER (WHERE state = 'running') > 0 AS run, count(*) FILTER (WHERE attempt > 1) AS taken_back FROM jobq.jobs WHERE queue = 'pull';
DO $$ BEGIN PERFORM jobq.complete(id, attempt) FROM jobq.jobs WHERE queue = 'pull' AND state = 'running'; END $$;

-- A job whose lease is over goes to the next who pulls, with a new attempt number; the old one is too late.
SELECT jobq.push('pull', '"slow"') AS id \gset
SELECT attempt, payload FROM jobq.pull('pull', worker => 'first');
BEGIN;
SELECT test.end_leases('pull');
SELECT attempt, payload FROM jobq.pull('pull', worker => 'second');
COMMIT;
SELECT test.refused(format('SELECT jobq.complete(%L, 1)', :'id'));
SELECT jobq.complete(:'id', 2);
SELECT attempt, outcome, worker, error FROM jobq.attempts WHERE id = :'id' ORDER BY attempt;

-- A lease that is over charges the attempt: in the end the job is dead.
SELECT jobq.push('pull', '"crashes"', options => '{"max_attempts": 2}') AS id \gset
SELECT attempt FROM jobq.pull('pull');
BEGIN;
SELECT test.end_leases('pull');
SELECT attempt FROM jobq.pull('pull');
COMMIT;
BEGIN;
SELECT test.end_leases('pull');
SELECT attempt FROM jobq.pull('pull');
COMMIT;
SELECT state, attempt, failures, error FROM jobq.job(:'id');

-- Without anybody who pulls, jobq.maintain() takes leases back.
SELECT jobq.push('pull', '"abandoned"') AS id \gset
SELECT attempt FROM jobq.pull('pull');
BEGIN;
SELECT test.end_leases('pull');
SELECT jobq.maintain() >= 1 AS maintained;
COMMIT;
SELECT state, attempt, failures FROM jobq.job(:'id');
SELECT jobq.cancel(:'id');

-- A cursor over a pull claims its whole batch when it is first read, and a rollback gives it back as it was.
SELECT count(*) FROM jobq.push_many('pull', '{1, 2, 3}');
BEGIN;
DECLARE c CURSOR FOR SELECT attempt, payload FROM jobq.pull('pull', 2);
FETCH 1 FROM c;
SELECT payload, state FROM jobq.jobs WHERE queue = 'pull' AND state IN ('queued', 'running') ORDER BY id;
FETCH ALL FROM c;
ROLLBACK;
SELECT payload, state, attempt, failures FROM jobq.jobs WHERE queue = 'pull' AND state IN ('queued', 'running') ORDER BY id;

-- A savepoint gives back what was pulled after it, and nothing else.
BEGIN;
SELECT attempt, payload FROM jobq.pull('pull');
SAVEPOINT s;
SELECT attempt, payload FROM jobq.pull('pull');
ROLLBACK TO s;
SELECT attempt, payload FROM jobq.pull('pull', 2);
COMMIT;
DO $$ BEGIN PERFORM jobq.complete(id, attempt) FROM jobq.jobs WHERE queue = 'pull' AND state = 'running'; END $$;

-- An error in a PL/pgSQL block that is caught gives the job back too.
SELECT count(*) FROM jobq.push_many('pull', '{1}');
DO $$ BEGIN
    PERFORM jobq.pull('pull');
    RAISE division_by_zero;
EXCEPTION WHEN division_by_zero THEN NULL;
END $$;
SELECT attempt, payload FROM jobq.pull('pull');
DO $$ BEGIN PERFORM jobq.complete(id, attempt) FROM jobq.jobs WHERE queue = 'pull' AND state = 'running'; END $$;

-- A pull that runs where a claim could not see what others commit is refused, and says how to mend it.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT test.refused($$SELECT jobq.pull('pull')$$);
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT test.refused($$SELECT jobq.pull_any('{pull}')$$);
ROLLBACK;
SELECT jobq.push('pull', '"not for readers"') AS id \gset
BEGIN READ ONLY;
SELECT test.refused($$SELECT jobq.pull('pull')$$);
ROLLBACK;
SELECT jobq.cancel(:'id');

-- A paused queue gives nothing until it is resumed; what runs already can end.
SELECT jobq.push('pull', '"before"') IS NOT NULL AS pushed;
SELECT id, attempt FROM jobq.pull('pull') \gset
SELECT jobq.push('pull', '"while"') IS NOT NULL AS pushed;
SELECT jobq.pause('pull');
SELECT payload FROM jobq.pull('pull');
SELECT jobq.complete(:'id', :attempt);
SELECT jobq.resume('pull');
SELECT payload FROM jobq.pull('pull');

-- A queue with an endpoint is not for pulling, and says what to do.
DO $$ BEGIN
    PERFORM jobq.create_endpoint('pull', 'http://127.0.0.1:1/', options => '{"enabled": false}');
    PERFORM jobq.create_queue('pull_delivered', endpoint => 'pull');
    PERFORM jobq.push('pull_delivered', '"mine"');
END $$;
SELECT test.refused($$SELECT jobq.pull('pull_delivered')$$);
SELECT jobq.alter_queue('pull_delivered', options => '{"endpoint": null}');
SELECT payload FROM jobq.pull('pull_delivered');

-- pull_any: the first named queue is emptied first; the batch is over all of them.
SELECT jobq.create_queue('any_a'), jobq.create_queue('any_b'), jobq.create_queue('any_c');
SELECT count(*) FROM jobq.push_many('any_a', ARRAY['"a1"', '"a2"']::jsonb[]);
SELECT count(*) FROM jobq.push_many('any_b', ARRAY['"b1"', '"b2"']::jsonb[], types => '{x, y}');
SELECT queue, payload FROM jobq.pull_any('{any_c, any_b, any_a}', 3);
SELECT queue, payload FROM jobq.pull_any('{any_b, any_a, any_b}', 3, worker => 'w any');
SELECT * FROM jobq.pull_any('{}');
SELECT count(*) FROM jobq.push_many('any_b', ARRAY['"b3"', '"b4"']::jsonb[], types => '{x, y}');
SELECT queue, payload, test.is_in(lease_until, '1 min') AS leased FROM jobq.pull_any('{any_a, any_b}', 10, lease => '1 min', types => '{y}');
SELECT queue, payload FROM jobq.pull_any('{any_a, any_b}', 10, at => '2000-01-01');
SELECT queue, payload FROM jobq.pull_any('{any_a, any_b}', 10);

-- pull_any leaves paused queues out.
SELECT jobq.pause('any_a');
SELECT jobq.push('any_a', '"a5"') IS NOT NULL AND jobq.push('any_b', '"b5"') IS NOT NULL AS pushed;
SELECT queue, payload FROM jobq.pull_any('{any_a, any_b}', 10);

-- pull_held: what a worker of this name holds, as pull gave it; nothing for another name, NULL, or a lease that is over.
SELECT jobq.create_queue('held');
SELECT count(*) FROM jobq.push_many('held', '{1, 2, 3}', group_keys => '{g, NULL, NULL}', types => '{t, NULL, NULL}');
CREATE TEMP TABLE pulled AS SELECT * FROM jobq.pull('held', 2, worker => 'holder');
SELECT payload FROM jobq.pull('held', 1, worker => 'other');
SELECT count(*) AS same FROM (SELECT * FROM jobq.pull_held('holder') INTERSECT SELECT * FROM pulled) AS s;
SELECT payload, type, group_key, attempt FROM jobq.pull_held('holder');
SELECT payload FROM jobq.pull_held('nobody');
SELECT payload FROM jobq.pull_held(NULL);
SELECT jobq.complete(id, attempt) FROM jobq.pull_held('holder') WHERE payload = '1';
SELECT payload FROM jobq.pull_held('holder');
SELECT test.end_leases('held');
SELECT payload FROM jobq.pull_held('holder');

-- max_running: no more run at once, over all workers; each that ends makes room for one.
SELECT jobq.create_queue('limited', options => '{"max_running": 2}');
SELECT count(*) FROM jobq.push_many('limited', '{1, 2, 3, 4, 5}');
SELECT payload FROM jobq.pull('limited', 10);
SELECT payload FROM jobq.pull('limited', 10);
SELECT jobq.complete(id, attempt) FROM jobq.jobs WHERE queue = 'limited' AND payload = '1';
SELECT payload FROM jobq.pull('limited', 10);
SELECT jobq.alter_queue('limited', options => '{"max_running": null}');
SELECT payload FROM jobq.pull('limited', 10);

-- A job past its expires_at is not given out; it is ended as expired, and does not count in the batch.
SELECT jobq.create_queue('expiring');
SELECT jobq.push('expiring', '"stale"', options => '{"expires_at": "2000-01-01"}') AS id \gset
SELECT jobq.push('expiring', '"fresh"', options => '{"expires_at": "2100-01-01"}') IS NOT NULL AS pushed;
SELECT payload FROM jobq.pull('expiring', 1);
SELECT state, attempt, started_at, finished_at IS NOT NULL AS ended, error FROM jobq.job(:'id');

-- An expired job lets the next of its group go in the same pull, whatever their priorities and the batch.
SELECT count(*) FROM jobq.push_many('expiring', ARRAY['"head"', '"next to it"']::jsonb[], priority => 5, group_keys => '{g, g}', options => '{"expires_at": "2000-01-01"}');
SELECT jobq.push('expiring', '"alive"', priority => -5, group_key => 'g') IS NOT NULL AS pushed;
SELECT payload FROM jobq.pull('expiring', 10);

-- `at` ends nothing that has not expired by the clock.
SELECT jobq.push('expiring', '"to expire"', run_at => '2090-01-01', options => '{"expires_at": "2090-01-02"}') IS NOT NULL AS pushed;
SELECT payload FROM jobq.pull('expiring', 10, at => '2095-01-01');

-- With leases and groups the settings of the session change nothing, nor does its search_path.
SET enable_indexscan = off; SET enable_nestloop = off; SET search_path = nowhere; SET statement_timeout = '1 min';
SELECT jobq.push('pull', '"odd session"') IS NOT NULL AS pushed;
SELECT payload FROM jobq.pull('pull');
SHOW enable_seqscan; SHOW search_path;
RESET ALL;
