\set ECHO none
\getenv here PG_ABS_SRCDIR
\set setup :here '/sql/setup.inc'
\i :setup
\set ECHO all
-- Ending attempts: complete, fail, extend, release, bury and their _many.
DO $$ BEGIN PERFORM jobq.create_queue('finish', options => '{"retry_first": "100 s", "retry_jitter": 0}'); END $$;

-- complete: with a result, which stays with the job.
SELECT jobq.push('finish', '1', type => 't', group_key => 'g', unique_key => 'u', options => '{"headers": {"x-a": "b"}}') AS id \gset
SELECT attempt FROM jobq.pull('finish', worker => 'w');
SELECT jobq.complete(:'id', 1, '{"sent": true}');
SELECT queue, type, state, payload, headers, attempt, failures, group_key, unique_key, worker, result, error,
       started_at >= created_at AS started, finished_at >= started_at AS finished, duration = finished_at - started_at AS duration, lease_until
FROM jobq.job(:'id') \gx
SELECT attempt, outcome, worker, status_code, error, duration IS NOT NULL AS duration FROM jobq.attempts WHERE id = :'id';

-- complete: without a result it is NULL; JSON's null is a result.
SELECT count(*) FROM jobq.push_many('finish', '{2, 3}');
SELECT jobq.complete(id, attempt, CASE payload WHEN '3' THEN 'null'::jsonb END) FROM jobq.pull('finish', 2);
SELECT payload, result, result IS NULL AS is_null FROM jobq.jobs WHERE queue = 'finish' AND payload IN ('2', '3') ORDER BY id;

-- fail: charged, tried again after retry_in, and the error is shown.
SELECT jobq.push('finish', '4') AS id \gset
SELECT attempt FROM jobq.pull('finish', worker => 'w');
SELECT test.is_in(jobq.fail(:'id', 1, 'mailbox full', '1 h'), '1 h') AS in_an_hour;
SELECT state, attempt, failures, error, worker, lease_until, test.is_in(run_at, '1 h') AS in_an_hour FROM jobq.job(:'id');
SELECT payload FROM jobq.pull('finish');
SELECT attempt, outcome, error, worker FROM jobq.attempts WHERE id = :'id';

-- fail: retry_in 0 means at once; the next attempt has the next number.
SELECT test.make_due('finish');
SELECT attempt, payload FROM jobq.pull('finish');
SELECT jobq.fail(:'id', 2, retry_in => '0') <= clock_timestamp() AS at_once;
SELECT attempt, payload FROM jobq.pull('finish');
SELECT jobq.complete(:'id', 3);
SELECT attempt, outcome, error FROM jobq.attempts WHERE id = :'id' ORDER BY attempt;
SELECT state, attempt, failures, error FROM jobq.job(:'id');

-- fail: without retry_in by the queue's retry settings; here 100 s.
SELECT jobq.push('finish', '5') AS id \gset
SELECT attempt FROM jobq.pull('finish');
SELECT test.is_in(jobq.fail(:'id', 1), '100 s') AS as_set;
SELECT jobq.cancel(:'id');

-- fail: with the attempts used up the job is dead, and fail returns NULL.
SELECT jobq.push('finish', '6', options => '{"max_attempts": 1}') AS id \gset
SELECT attempt FROM jobq.pull('finish', worker => 'w');
SELECT jobq.fail(:'id', 1, 'gave up', '1 h') IS NULL AS dead;
SELECT state, attempt, failures, error, worker, finished_at IS NOT NULL AS finished, duration IS NOT NULL AS duration, result FROM jobq.job(:'id');
SELECT attempt, outcome, error FROM jobq.attempts WHERE id = :'id';

-- extend: the lease goes on from now, by the argument or the queue's; progress and note are shown, and stay when not given.
SELECT jobq.push('finish', '7') AS id \gset
SELECT attempt FROM jobq.pull('finish', lease => '10 s');
SELECT test.is_in(jobq.extend(:'id', 1), '5 min') AS as_the_queue;
SELECT test.is_in(jobq.extend(:'id', 1, '1 min', 40, 'resizing'), '1 min') AS as_given;
SELECT progress, note, test.is_in(lease_until, '1 min') AS leased FROM jobq.job(:'id');
SELECT jobq.extend(:'id', 1, progress => 100) IS NOT NULL AS extended;
SELECT progress, note FROM jobq.job(:'id');
SELECT jobq.extend(:'id', 1, note => '') IS NOT NULL AS extended;
SELECT progress, note = '' AS note FROM jobq.job(:'id');

-- extend: a lease that is over, but not taken back yet, can still be extended: nobody else has the job.
BEGIN;
SELECT test.end_leases('finish');
SELECT jobq.extend(:'id', 1) > clock_timestamp() AS extended;
COMMIT;
SELECT payload FROM jobq.pull('finish');
SELECT jobq.complete(:'id', 1);

-- release: not charged, due when it was or after the delay; the attempt number goes on.
SELECT jobq.push('finish', '8', run_at => '2020-02-03 04:05:06+00', options => '{"max_attempts": 1}') AS id \gset
SELECT attempt FROM jobq.pull('finish', worker => 'w');
SELECT jobq.release(:'id', 1) AT TIME ZONE 'UTC' AS due;
SELECT state, attempt, failures, error, run_at AT TIME ZONE 'UTC' AS run_at FROM jobq.job(:'id');
SELECT attempt FROM jobq.pull('finish');
SELECT test.is_in(jobq.release(:'id', 2, '30 s'), '30 s') AS in_half_a_minute;
SELECT payload FROM jobq.pull('finish');
SELECT test.make_due('finish');
SELECT attempt FROM jobq.pull('finish');
SELECT attempt, outcome, worker, error FROM jobq.attempts WHERE id = :'id' ORDER BY attempt;
SELECT jobq.complete(:'id', 3);

-- bury: dead at once, with attempts left.
SELECT jobq.push('finish', '9') AS id \gset
SELECT attempt FROM jobq.pull('finish');
SELECT jobq.bury(:'id', 1, 'malformed address');
SELECT state, attempt, failures, max_attempts, error FROM jobq.job(:'id');
SELECT attempt, outcome, error FROM jobq.attempts WHERE id = :'id';

-- The attempt is a fencing token: only the one that runs can end, be extended or given back.
SELECT jobq.push('finish', '10') AS id \gset
SELECT attempt FROM jobq.pull('finish');
SELECT jobq.release(:'id', 1) IS NOT NULL AS released;
SELECT attempt FROM jobq.pull('finish');
SELECT call, line FROM (VALUES ('complete(%L, 1)'), ('fail(%L, 1)'), ('extend(%L, 1)'), ('release(%L, 1)'), ('bury(%L, 1)'),
    ('complete(%L, 3)'), ('complete(%L, 0)'), ('complete(%L, -1)')) AS v (call), test.refused('SELECT jobq.' || format(call, :'id')) AS line;
SELECT state, attempt FROM jobq.job(:'id');
SELECT jobq.complete(:'id', 2);

-- What has ended, or waits, cannot be ended.
SELECT line FROM test.refused(format('SELECT jobq.complete(%L, 2)', :'id')) AS line;
SELECT jobq.push('finish', '11') AS waits \gset
SELECT line FROM test.refused(format('SELECT jobq.complete(%L, 1)', :'waits')) AS line;
SELECT line FROM test.refused(format('SELECT jobq.extend(%L, 0)', :'waits')) AS line;
SELECT line FROM test.refused($$SELECT jobq.fail('00000000-0000-7000-8000-000000000000', 1)$$) AS line;
SELECT jobq.cancel(:'waits');
SELECT line FROM test.refused(format('SELECT jobq.bury(%L, 1)', :'waits')) AS line;

-- The _many end what they can, return the ids of that, and leave the rest as it is.
SELECT jobq.create_queue('finish_many');
CREATE TEMP TABLE many AS SELECT * FROM jobq.push_many('finish_many', '{1, 2, 3, 4, 5}') WITH ORDINALITY AS p (id, n);
SELECT count(*) FROM jobq.pull('finish_many', 4);
SELECT n FROM many WHERE id IN (
    SELECT jobq.complete_many(array_agg(id ORDER BY n), '{1, 2, 1, 1, 1}', '{"[1]", "[2]", NULL, "[4]", "[5]"}') FROM many) ORDER BY n;
SELECT n, state, result FROM many JOIN jobq.jobs USING (id) ORDER BY n;
SELECT count(*) FROM (SELECT jobq.complete_many(array_agg(id), array_fill(1, '{5}')) FROM many) AS again;
SELECT * FROM jobq.complete_many('{00000000-0000-7000-8000-000000000000}', '{1}');
SELECT * FROM jobq.complete_many('{}', '{}');

-- An id that comes twice is ended once.
TRUNCATE many;
INSERT INTO many SELECT * FROM jobq.push_many('finish_many', '{6, 7, 8, 9}') WITH ORDINALITY;
SELECT count(*) FROM jobq.pull('finish_many', 100);
SELECT count(*) FROM (SELECT jobq.complete_many(ARRAY[id, id], '{1, 1}') FROM many WHERE n = 1) AS c;
SELECT count(*) FROM (SELECT jobq.fail_many(ARRAY[id, id, id], '{1, 1, 2}', '{a, b, c}') FROM many WHERE n = 2) AS c;
SELECT count(*) FROM (SELECT jobq.release_many(ARRAY[id, id], '{1, 1}') FROM many WHERE n = 3) AS c;
SELECT count(*) FROM (SELECT jobq.extend_many(ARRAY[id, id], '{1, 1}') FROM many WHERE n = 4) AS c;
SELECT n, state, attempt, failures FROM many JOIN jobq.jobs USING (id) ORDER BY n;
SELECT n, a.attempt, outcome FROM many JOIN jobq.attempts AS a USING (id) ORDER BY n;

-- fail_many: an error each, retry_in for all; some are dead.
SELECT jobq.create_queue('fail_many');
TRUNCATE many;
INSERT INTO many SELECT * FROM jobq.push_many('fail_many', '{1, 2, 3}') WITH ORDINALITY;
SELECT jobq.push('fail_many', '4', options => '{"max_attempts": 1}') AS id \gset
INSERT INTO many VALUES (:'id', 4);
SELECT count(*) FROM jobq.pull('fail_many', 100);
SELECT n FROM many WHERE id IN (
    SELECT jobq.fail_many(array_agg(id ORDER BY n), '{1, 1, 7, 1}', '{one, NULL, three, four}', retry_in => '1 h') FROM many) ORDER BY n;
SELECT n, state, failures, error, run_at > clock_timestamp() AS later FROM many JOIN jobq.jobs USING (id) ORDER BY n;

-- extend_many, release_many, bury_many.
SELECT n FROM many WHERE id IN (SELECT jobq.extend_many(array_agg(id), array_fill(1, '{4}'), '1 h') FROM many);
SELECT test.is_in(lease_until, '1 h') AS extended FROM jobq.jobs WHERE queue = 'fail_many' AND state = 'running';
SELECT test.make_due('fail_many');
SELECT count(*) FROM jobq.pull('fail_many', 100);
SELECT n FROM many WHERE id IN (SELECT jobq.release_many(array_agg(id ORDER BY n), '{2, 1, 1, 1}', '1 min') FROM many) ORDER BY n;
SELECT n FROM many WHERE id IN (SELECT jobq.bury_many(array_agg(id ORDER BY n), '{2, 2, 2, 2}', '{a, b, c, d}') FROM many) ORDER BY n;
SELECT n, state, attempt, failures, error, run_at > clock_timestamp() AS later FROM many JOIN jobq.jobs USING (id) ORDER BY n;

-- A whole batch in one call, and in one transaction with the work.
SELECT jobq.create_queue('finish_batch');
SELECT count(*) FROM jobq.push_many('finish_batch', (SELECT array_agg(to_jsonb(n)) FROM generate_series(1, 5000) AS n));
WITH pulled AS (SELECT * FROM jobq.pull('finish_batch', 5000))
SELECT count(*) FROM (SELECT jobq.complete_many(array_agg(id), array_agg(attempt)) FROM pulled) AS c;
SELECT state, count(*) FROM jobq.jobs WHERE queue = 'finish_batch' GROUP BY state;

-- A transaction that rolls back has ended nothing.
SELECT jobq.push('finish', '12') AS id \gset
SELECT attempt FROM jobq.pull('finish');
BEGIN;
SELECT jobq.complete(:'id', 1);
SELECT state FROM jobq.job(:'id');
ROLLBACK;
SELECT state FROM jobq.job(:'id');
SELECT jobq.complete(:'id', 1);

-- keep: 0 keeps no trace of what was completed or cancelled, nor of its attempts; dead jobs stay all the same.
SELECT jobq.create_queue('finish_keep', keep => '0');
CREATE TEMP TABLE kept AS SELECT * FROM jobq.push_many('finish_keep', '{"[\"completed\"]", "[\"cancelled\"]", "[\"buried\"]", "[\"retried\"]"}') WITH ORDINALITY AS p (id, n);
SELECT jobq.fail(id, attempt, retry_in => '0') IS NOT NULL AS again FROM jobq.pull('finish_keep', 10);
SELECT payload, attempt FROM jobq.pull('finish_keep', 10);
SELECT jobq.complete(id, 2) FROM kept WHERE n = 1;
SELECT jobq.cancel(id) FROM kept WHERE n = 2;
SELECT jobq.bury(id, 2) FROM kept WHERE n = 3;
SELECT jobq.push('finish_keep', '["expired"]', options => '{"expires_at": "2000-01-01"}') IS NOT NULL AS pushed;
SELECT payload FROM jobq.pull('finish_keep', 10);
SELECT payload, state FROM jobq.jobs WHERE queue = 'finish_keep' ORDER BY id;
SELECT n, attempt, outcome FROM kept JOIN jobq.attempts USING (id) ORDER BY n, attempt;
SELECT line FROM kept, test.refused(format('SELECT jobq.complete(%L, 2)', id)) AS line WHERE n = 1;

-- jobq.maintain() deletes what is kept no longer, and nothing else.
SELECT jobq.alter_queue('finish', keep => '1 h');
UPDATE jobq.finished SET finished_at = finished_at - interval '2 h' WHERE queue_id = (SELECT id FROM jobq.queue WHERE name = 'finish') AND payload = '1';
SELECT jobq.maintain() >= 0 AS maintained;
SELECT count(*) FILTER (WHERE payload = '1') AS old, count(*) > 0 AS newer FROM jobq.jobs WHERE queue = 'finish';
SELECT jobq.alter_queue('finish', options => '{"keep": null}');
UPDATE jobq.finished SET finished_at = '2000-01-01' WHERE queue_id = (SELECT id FROM jobq.queue WHERE name = 'finish');
SELECT jobq.maintain() >= 0 AS maintained;
SELECT count(*) > 0 AS for_ever FROM jobq.jobs WHERE queue = 'finish' AND finished_at < '2001-01-01';

-- Each queue's own keep.
SELECT jobq.create_queue('finish_long', keep => '30 days'), jobq.create_queue('finish_short', keep => '1 h');
SELECT count(*) FROM jobq.push_many('finish_long', '{1, 2}');
SELECT count(*) FROM jobq.push_many('finish_short', '{1, 2, 3}');
SELECT count(jobq.complete(id, attempt)) FROM jobq.pull_any('{finish_long, finish_short}', 10);
UPDATE jobq.finished SET finished_at = finished_at - CASE payload WHEN '1' THEN interval '40 days' WHEN '2' THEN interval '20 days' ELSE '0' END
WHERE queue_id IN (SELECT id FROM jobq.queue WHERE name IN ('finish_long', 'finish_short'));
SELECT jobq.maintain() >= 3 AS deleted;
SELECT queue, payload FROM jobq.jobs WHERE queue IN ('finish_long', 'finish_short') ORDER BY 1, 2;
-- Without a look at what others keep for longer.
CREATE FUNCTION test.rows_read() RETURNS bigint LANGUAGE sql AS
    $$ SELECT sum(pg_stat_get_xact_tuples_returned(indexrelid))::bigint FROM pg_index WHERE indrelid = 'jobq.finished'::regclass $$;
SELECT count(*) FROM jobq.push_many('finish_long', (SELECT array_agg(to_jsonb(n)) FROM generate_series(1, 500) AS n));
SELECT count(jobq.complete(id, attempt)) FROM jobq.pull('finish_long', 500);
SELECT jobq.alter_queue('finish_short', keep => '0');
UPDATE jobq.finished SET finished_at = finished_at - interval '2 days' WHERE queue_id IN (SELECT id FROM jobq.queue WHERE name = 'finish_long');
BEGIN;
SELECT test.rows_read() AS before \gset
SELECT jobq.maintain() >= 0 AS deleted;
SELECT test.rows_read() - :before < 100 AS few_read;
COMMIT;
DROP FUNCTION test.rows_read;
