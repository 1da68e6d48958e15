\set ECHO none
\getenv here PG_ABS_SRCDIR
\set setup :here '/sql/setup.inc'
\i :setup
\set ECHO all
-- Retries: exponential backoff with jitter, then dead; and the way back.
DO $$ BEGIN
    PERFORM jobq.create_queue('retries', max_attempts => 6,
        options => '{"retry_first": "100 s", "retry_factor": 3, "retry_longest": "1500 s", "retry_jitter": 0,
                     "types": {"quick": {"retry_first": "0 s", "max_attempts": 2},
                               "steady": {"retry_factor": 1, "retry_first": "1 h", "retry_longest": "2 h"},
                               "wild": {"retry_jitter": 1}}}');
END $$;

-- Fails the queue's next job of a type until it does not wait any more; the waits in seconds.
CREATE FUNCTION test.fail_until_dead(type text) RETURNS SETOF numeric LANGUAGE plpgsql AS $$
DECLARE
    job jobq.pulled;
    again timestamptz;
BEGIN
    LOOP
        SELECT * INTO job FROM jobq.pull('retries', types => ARRAY[type], at => 'infinity');
        EXIT WHEN NOT FOUND;
        again := jobq.fail(job.id, job.attempt, 'attempt ' || job.attempt);
        RETURN NEXT round(extract(epoch FROM again - clock_timestamp()) / 100) * 100;
    END LOOP;
END $$;

-- The wait grows by the factor to the longest one; after max_attempts failures there is none.
SELECT jobq.push('retries', type => 'plain') AS id \gset
SELECT * FROM test.fail_until_dead('plain');
SELECT state, attempt, failures, max_attempts, error FROM jobq.job(:'id');
SELECT attempt, outcome, error FROM jobq.attempts WHERE id = :'id' ORDER BY attempt;

-- Settings of a type go over those of the queue, each by itself.
SELECT jobq.push('retries', type => 'quick') AS id \gset
SELECT * FROM test.fail_until_dead('quick');
SELECT state, attempt, failures, max_attempts FROM jobq.job(:'id');
SELECT jobq.push('retries', type => 'steady') AS id \gset
SELECT * FROM test.fail_until_dead('steady');

-- Jitter spreads the waits, here over 0 to 200 s.
SELECT count(*) FROM jobq.push_many('retries', (SELECT array_agg(to_jsonb(n)) FROM generate_series(1, 400) AS n), type => 'wild');
CREATE TEMP TABLE waits AS
    SELECT jobq.fail(id, attempt) - clock_timestamp() AS wait FROM jobq.pull('retries', 400, types => '{wild}');
SELECT count(*), count(DISTINCT wait) > 350 AS spread, min(wait) >= '-20 s' AND max(wait) <= '200 s' AS within, avg(wait) BETWEEN '60 s' AND '120 s' AS around_the_middle FROM waits;
SELECT jobq.clear('retries');

-- With the defaults the attempts of a job span more than eight hours.
SELECT jobq.create_queue('retries_default');
SELECT max_attempts, retry_first, retry_factor, retry_longest, retry_jitter,
       (SELECT sum(least(extract(epoch FROM retry_longest), extract(epoch FROM retry_first) * retry_factor ^ (n - 1))) * (1 - retry_jitter)
        FROM generate_series(1, max_attempts - 1) AS n) > 8 * 3600 AS over_eight_hours
FROM jobq.queue WHERE name = 'retries_default';

-- Altered settings are those of the next failure; the number of attempts was taken at the push.
SELECT jobq.push('retries', type => 'plain') AS id \gset
SELECT jobq.alter_queue('retries', max_attempts => 1, options => '{"retry_first": "200 s"}');
SELECT * FROM test.fail_until_dead('plain');
SELECT max_attempts FROM jobq.job(:'id');

-- retry: a dead job is queued again at once, under its id, with its attempts given back; their numbers go on.
SELECT jobq.retry(:'id');
SELECT state, attempt, failures, run_at <= clock_timestamp() AS due, error, finished_at FROM jobq.job(:'id');
SELECT attempt, max_attempts FROM jobq.pull('retries');
SELECT jobq.complete(:'id', 7);
SELECT count(*) AS attempts, max(attempt) AS last FROM jobq.attempts WHERE id = :'id';

-- retry: one that waits for its retry, or is scheduled, runs now, and what it has failed so far stays.
SELECT jobq.push('retries', '"waits"', options => '{"max_attempts": 3}') AS id \gset
SELECT jobq.fail(:'id', 1, 'no', '1 h') IS NOT NULL AS again FROM jobq.pull('retries');
SELECT jobq.retry(:'id');
SELECT state, failures, run_at <= clock_timestamp() AS due FROM jobq.job(:'id');
SELECT payload, attempt FROM jobq.pull('retries');

-- retry: not while it runs, nor when it is completed.
SELECT test.refused(format('SELECT jobq.retry(%L)', :'id'));
SELECT jobq.complete(:'id', 2);
SELECT test.refused(format('SELECT jobq.retry(%L)', :'id'));

-- retry: a cancelled job, and an expired one, which does not expire again.
SELECT jobq.push('retries', '"cancelled"') AS id \gset
SELECT jobq.cancel(:'id');
SELECT jobq.retry(:'id');
SELECT payload, attempt FROM jobq.pull('retries');
SELECT jobq.cancel(:'id');
SELECT jobq.retry(:'id');
SELECT payload, attempt FROM jobq.pull('retries');
SELECT attempt, outcome FROM jobq.attempts WHERE id = :'id' ORDER BY attempt;
SELECT jobq.complete(:'id', 2);
SELECT jobq.push('retries', '"expired"', options => '{"expires_at": "2000-01-01"}') AS id \gset
SELECT payload FROM jobq.pull('retries');
SELECT state FROM jobq.job(:'id');
SELECT jobq.retry(:'id');
SELECT payload, attempt FROM jobq.pull('retries');
SELECT jobq.complete(:'id', 1);

-- retry: everything that was pushed with the job is there again.
SELECT jobq.push_bytes('retries', '\x01', 'image/png', 't', priority => 3, group_key => 'g', unique_key => 'u', options => '{"headers": {"x-a": "b"}, "pushed_by": "Ada"}') AS id \gset
CREATE TEMP TABLE before AS SELECT * FROM jobq.job(:'id');
SELECT jobq.bury(id, attempt) FROM jobq.pull('retries');
SELECT jobq.retry(:'id');
SELECT row(a.queue, a.type, a.state, a.body, a.content_type, a.headers, a.priority, a.max_attempts, a.group_key, a.unique_key, a.pushed_by, a.created_at)
     = row(b.queue, b.type, b.state, b.body, b.content_type, b.headers, b.priority, b.max_attempts, b.group_key, b.unique_key, b.pushed_by, b.created_at) AS same
FROM jobq.job(:'id') AS a, before AS b;
SELECT jobq.clear('retries');

-- retry_dead: all of a queue, oldest first; of some types; at most so many; spread over a time. Its number is returned.
SELECT jobq.clear('retries', 'dead') > 0 AS cleared;
SELECT count(*) FROM jobq.push_many('retries', '{1, 2, 3, 4, 5, 6}', types => '{a, b, a, b, NULL, NULL}');
SELECT jobq.bury(id, attempt) FROM jobq.pull('retries', 6);
SELECT jobq.retry_dead('retries', '{}');
SELECT jobq.retry_dead('retries', '{nothing, NULL}');
SELECT jobq.retry_dead('retries', at_most => 0);
SELECT jobq.retry_dead('retries', types => '{a}', at_most => 1);
SELECT payload, attempt FROM jobq.pull('retries', 10);
SELECT jobq.retry_dead('retries', types => '{a, c}');
SELECT payload FROM jobq.pull('retries', 10);
SELECT jobq.retry_dead('retries', at_most => 3);
SELECT payload, failures, attempt FROM jobq.jobs WHERE queue = 'retries' AND state = 'queued' ORDER BY id;
SELECT jobq.retry_dead('retries', spread => '1 h');
SELECT count(*), bool_and(run_at BETWEEN clock_timestamp() - interval '20 s' AND clock_timestamp() + interval '1 h') AS within FROM jobq.jobs WHERE queue = 'retries' AND state = 'queued';
SELECT jobq.retry_dead('retries');

-- retry_dead: thousands at once.
SELECT jobq.clear('retries');
SELECT count(*) FROM jobq.push_many('retries', (SELECT array_agg(to_jsonb(n)) FROM generate_series(1, 3000) AS n));
SELECT count(b) FROM (SELECT jobq.bury_many(array_agg(id), array_agg(attempt)) AS b FROM jobq.pull('retries', 3000)) AS x;
SELECT jobq.retry_dead('retries', spread => '10 min');
SELECT count(*), count(DISTINCT run_at) > 2000 AS spread FROM jobq.jobs WHERE queue = 'retries' AND state = 'queued';
DROP FUNCTION test.fail_until_dead;

-- retry_dead: of many dead jobs that share keys the newest of each comes back, by an index and not by comparing all with all.
SELECT jobq.create_queue('retries_keys');
SELECT count(*) FROM jobq.push_many('retries_keys', (SELECT array_agg(to_jsonb(n)) FROM generate_series(1, 3000) AS n));
SELECT count(jobq.bury(id, attempt)) FROM jobq.pull('retries_keys', 3000);
UPDATE jobq.dead SET unique_key = 'k' || payload::int % 1500 WHERE queue_id = (SELECT id FROM jobq.queue WHERE name = 'retries_keys');
BEGIN;
SELECT jobq.retry_dead('retries_keys');
SELECT seq_tup_read < 100000 AND idx_tup_fetch < 100000 AS few_read FROM pg_stat_xact_user_tables WHERE relid = 'jobq.dead'::regclass;
COMMIT;
SELECT state, count(*), min(payload::int), max(payload::int) FROM jobq.jobs WHERE queue = 'retries_keys' GROUP BY state ORDER BY state;
SELECT jobq.retry_dead('retries_keys');
SELECT jobq.drop_queue('retries_keys', force => true);

-- The last 50 attempts of a job are kept, however often it is given back.
SELECT jobq.create_queue('retries_released');
SELECT jobq.push('retries_released') AS id \gset
DO $$
DECLARE
    held record;
BEGIN
    FOR n IN 1..120 LOOP
        SELECT id, attempt INTO held FROM jobq.pull('retries_released');
        PERFORM jobq.release(held.id, held.attempt);
    END LOOP;
END $$;
SELECT count(*), min(attempt), max(attempt) FROM jobq.attempts WHERE id = :'id';
SELECT attempt, failures FROM jobq.jobs WHERE id = :'id';
