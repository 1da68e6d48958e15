\set ECHO none
\getenv here PG_ABS_SRCDIR
\set setup :here '/sql/setup.inc'
\i :setup
\set ECHO all
-- Pushing: jobq.push, push_many and push_bytes.
DO $$ BEGIN
    PERFORM jobq.create_queue('push');
    PERFORM jobq.create_queue('push_defaults', max_attempts => 7, options => '{"types": {"often": {"max_attempts": 90}, "as usual": {"retry_first": "1 s"}}}');
END $$;

-- The id is a UUID of version 7 (variant 10); the job waits, with everything at its default.
SELECT jobq.push('push') AS id \gset
SELECT substr(:'id', 15, 1) AS version, substr(:'id', 20, 1) IN ('8', '9', 'a', 'b') AS variant_10;
SELECT queue, type, state, payload, body, content_type, headers, priority, expires_at, attempt, failures, max_attempts,
       group_key, unique_key, pushed_by = current_user AS by_me, worker, started_at, finished_at, duration, lease_until,
       progress, note, result, error
FROM jobq.job(:'id') \gx
SELECT run_at - created_at BETWEEN '-1 s' AND '1 s' AS due_at_once FROM jobq.job(:'id');

-- created_at is read from the id, and lies between the clock before and after the push.
SELECT clock_timestamp() AS before \gset
SELECT jobq.push('push') AS id \gset
SELECT created_at BETWEEN :'before'::timestamptz - interval '1 ms' AND clock_timestamp() AS created_now FROM jobq.job(:'id');

-- Every argument and option shows in jobq.jobs.
SELECT jobq.push('push', '{"n": 1}', 'mail', '2100-01-02 03:04:05+00', NULL, -3, 'g', 'u',
    '{"max_attempts": 3, "headers": {"x-a": "b"}, "pushed_by": "shop", "expires_at": "2101-01-01 00:00:00+00", "on_conflict": "error"}') AS id \gset
SELECT queue, type, state, payload, headers, priority, run_at AT TIME ZONE 'UTC' AS run_at, expires_at AT TIME ZONE 'UTC' AS expires_at,
       max_attempts, group_key, unique_key, pushed_by
FROM jobq.job(:'id') \gx

-- Ids rise in the order of pushes, also within one millisecond.
WITH pushed AS MATERIALIZED (SELECT n, jobq.push('push', to_jsonb(n)) AS id FROM generate_series(1, 2000) AS n)
SELECT count(DISTINCT id) AS ids, bool_and(rising) AS rising
FROM (SELECT id, id > lag(id, 1, '00000000-0000-0000-0000-000000000000') OVER (ORDER BY n) AS rising FROM pushed) AS p;
SELECT jobq.clear('push') > 2000 AS cleared;

-- Payloads of every kind come back as they were: null is a payload like any other.
DO $$ BEGIN PERFORM jobq.create_queue('push_payloads'); END $$;
SELECT count(jobq.push('push_payloads', payload)) FROM unnest(ARRAY['null', 'true', '0', '-1.50', '""', '[]', '{}', '[1, [2, null]]',
    '{"a": {"b": "\u00e9\ud83d\ude00\n\t\u0001\"\\"}}']::jsonb[]) AS payload;
SELECT payload, payload IS NULL AS is_null FROM jobq.pull('push_payloads', 20);

-- Text of every kind comes back as it was; '' is a value, not a missing one.
SELECT jobq.push('push', type => 'grüße 😀', group_key => E'a\tb\nc\x01', unique_key => E'\x7f"''\\') AS id \gset
SELECT type, group_key, unique_key FROM jobq.job(:'id');
SELECT jobq.push('push', type => '', group_key => '', unique_key => '') AS id \gset
SELECT type = '' AS type, group_key = '' AS group_key, unique_key = '' AS unique_key FROM jobq.job(:'id');
SELECT jobq.push('push', unique_key => '') = :'id' AS same_job;

-- Names and keys may be as long as their limits, counted in bytes.
SELECT jobq.create_queue(repeat('ü', 24));
SELECT jobq.push(repeat('ü', 24), type => repeat('t', 255), group_key => repeat('g', 1024), unique_key => repeat('ü', 512)) IS NOT NULL AS pushed;

-- max_attempts: the option, else the type's, else the queue's.
SELECT count(id) FROM (VALUES
    (jobq.push('push_defaults', '1')),
    (jobq.push('push_defaults', '2', type => 'other')),
    (jobq.push('push_defaults', '3', type => 'often')),
    (jobq.push('push_defaults', '4', type => 'as usual')),
    (jobq.push('push_defaults', '5', type => 'often', options => '{"max_attempts": 10000}')),
    (jobq.push_bytes('push_defaults', '6', type => 'often'))) AS v (id);
SELECT count(*) FROM jobq.push_many('push_defaults', '{7, 8, 9}', types => '{often, NULL, other}', type => 'as usual');
SELECT payload, type, max_attempts FROM jobq.jobs WHERE queue = 'push_defaults' ORDER BY id;

-- A null option is one that is not given.
SELECT jobq.push('push', options => '{"max_attempts": null, "headers": null, "endpoint": null, "pushed_by": null, "expires_at": null, "on_conflict": null}') AS id \gset
SELECT max_attempts, headers, pushed_by = current_user AS by_me, expires_at FROM jobq.job(:'id');

-- NULL for an argument with a default is its default.
SELECT jobq.push('push', '{}', NULL, NULL, NULL, NULL, NULL, NULL, NULL) AS id \gset
SELECT priority, type, group_key FROM jobq.job(:'id');

-- A payload may be as large as jobq.max_payload, and not a byte larger.
SET jobq.max_payload = 100;
SELECT jobq.push_bytes('push', decode(repeat('00', 100), 'hex')) IS NOT NULL AS pushed;
SELECT test.refused($$SELECT jobq.push_bytes('push', decode(repeat('00', 101), 'hex'))$$);
SELECT test.refused($$SELECT jobq.push('push', to_jsonb(repeat('x', 200)))$$);
SELECT test.refused($$SELECT jobq.push_many('push', ARRAY['1', to_jsonb(repeat('x', 200))])$$);
RESET jobq.max_payload;
-- That it compresses well does not count.
SELECT test.refused($$SELECT jobq.push_bytes('push', decode(repeat('00', 1024 * 1024 + 1), 'hex'))$$);
SELECT jobq.push_bytes('push', decode(repeat('00', 1024 * 1024), 'hex')) AS id \gset
SELECT length(body) FROM jobq.job(:'id');
-- Nor that its text is longer than what is stored: the text is what is sent and pulled.
SELECT test.refused($$SELECT jobq.push('push', (SELECT jsonb_agg(1e131000) FROM generate_series(1, 9000)))$$);
CREATE FUNCTION test.fits(payload jsonb, bytes int) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('jobq.max_payload', bytes::text, true);
    PERFORM jobq.push('push', payload);
    RETURN true;
EXCEPTION WHEN program_limit_exceeded THEN
    RETURN false;
END $$;
SELECT left(v::text, 20), test.fits(v, octet_length(v::text)) AS fits, test.fits(v, octet_length(v::text) - 1) AS fits_in_less
FROM (VALUES ('1e1000'::jsonb), ('-1e-300'), ('[1e300, 2, [1e300, true, [], {}]]'), ('{"a": {"b": [1e300], "c": null}, "d": false}'),
             (to_jsonb(repeat(E'\x01', 100))), (jsonb_build_array(repeat(E'"\\\b\f\n\r\t\x1f', 20), 'ü'))) AS t (v);
DROP FUNCTION test.fits;

-- push_bytes: any bytes, and what they are.
SELECT jobq.push_bytes('push', '\x00ff0a') AS a, jobq.push_bytes('push', '', 'image/png; x="y"', type => 'empty', priority => 2, group_key => 'g2') AS b \gset
SELECT payload, body, content_type, type, priority, group_key FROM jobq.jobs WHERE id IN (:'a', :'b') ORDER BY id;

-- push_many: a job a payload, ids in their order, the common settings for all.
SELECT jobq.create_queue('push_many');
CREATE TEMP TABLE pushed AS
    SELECT i, id FROM jobq.push_many('push_many', '{1, 2, 3}', type => 'common', delay => '1 h', priority => 5,
        options => '{"max_attempts": 2}') WITH ORDINALITY AS p (id, i);
SELECT i, payload, type, priority, max_attempts, run_at > now() + interval '59 min' AS later FROM pushed JOIN jobq.jobs USING (id) ORDER BY i;

-- push_many: one value a payload; a NULL there is as if it were not given.
TRUNCATE pushed;
INSERT INTO pushed (id, i)
    SELECT * FROM jobq.push_many('push_many', '{1, "null", 3}', type => 'common', run_at => '2100-01-01 00:00+00',
        types => '{a, NULL, c}', group_keys => '{NULL, g, ""}', unique_keys => '{z, NULL, a}',
        run_ats => '{2100-01-03 00:00+00, NULL, 2100-01-02 00:00+00}') WITH ORDINALITY;
SELECT i, payload, type, group_key, unique_key, run_at AT TIME ZONE 'UTC' AS run_at FROM pushed JOIN jobq.jobs USING (id) ORDER BY i;

-- push_many: jobs are in the order of the payloads, whatever the order of their unique keys.
SELECT jobq.create_queue('push_many_order');
SELECT count(*) FROM jobq.push_many('push_many_order', '{1, 2, 3, 4}', unique_keys => '{d, b, NULL, a}', run_at => '2020-01-01');
SELECT count(*) FROM jobq.push_many('push_many_order', (SELECT array_agg(to_jsonb(n) ORDER BY n) FROM generate_series(5, 500) AS n), run_at => '2020-01-01');
SELECT array_agg(payload::int ORDER BY n) = array_agg(payload::int ORDER BY payload::int) AS in_order, count(*)
FROM jobq.pull('push_many_order', 1000) WITH ORDINALITY AS p (id, attempt, queue, type, payload, group_key, headers, max_attempts, lease_until, body, content_type, n);

-- push_many: none is none, and works in a select list as well.
SELECT * FROM jobq.push_many('push_many', '{}');
SELECT * FROM jobq.push_many('push_many', '{}', types => '{}', group_keys => '{}', unique_keys => '{}', run_ats => '{}');
SELECT jobq.push_many('push_many', '{1, 2}') IS NOT NULL AS id;

-- push_many: all or nothing.
SELECT count(*) FROM jobq.jobs WHERE queue = 'push_many';
SELECT test.refused($$SELECT jobq.push_many('push_many', '{1, 2, NULL}')$$);
SELECT test.refused($$SELECT jobq.push_many('push_many', '{1, 2}', types => ARRAY['ok', E'not\nok'])$$);
SELECT count(*) FROM jobq.jobs WHERE queue = 'push_many';

-- A transaction that rolls back leaves no job; a savepoint takes back its own.
SELECT jobq.create_queue('push_rollback');
BEGIN;
SELECT jobq.push('push_rollback') IS NOT NULL AS pushed;
ROLLBACK;
BEGIN;
SELECT jobq.push('push_rollback', '"kept"') IS NOT NULL AS pushed;
SAVEPOINT s;
SELECT jobq.push('push_rollback', '"taken back"') IS NOT NULL AS pushed;
ROLLBACK TO s;
SELECT jobq.push('push_rollback', '"after"') IS NOT NULL AS pushed;
COMMIT;
SELECT payload FROM jobq.pull('push_rollback', 10);

-- A job of this transaction can be pulled and finished within it.
BEGIN;
SELECT jobq.push('push_rollback', '"at once"') IS NOT NULL AS pushed;
SELECT id, attempt, payload FROM jobq.pull('push_rollback') \gset
SELECT jobq.complete(:'id', :attempt);
COMMIT;
SELECT state, payload FROM jobq.job(:'id');

-- REPEATABLE READ and SERIALIZABLE transactions push; a read-only one cannot.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT jobq.push('push') IS NOT NULL AS pushed;
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT jobq.push('push', unique_key => 'serial') IS NOT NULL AS pushed;
COMMIT;
BEGIN READ ONLY;
SELECT test.refused($$SELECT jobq.push('push')$$);
ROLLBACK;

-- Prepared statements, also when their plan has become generic.
PREPARE push_it (text, jsonb, text) AS SELECT jobq.push($1, $2, unique_key => $3) IS NOT NULL AS pushed;
DO $$ BEGIN
    FOR i IN 1..20 LOOP
        EXECUTE format('EXECUTE push_it(%L, %L, %L)', 'push', i, CASE WHEN i % 2 = 0 THEN 'p' || i END);
    END LOOP;
END $$;
DEALLOCATE push_it;
SELECT count(*) FROM jobq.jobs WHERE queue = 'push' AND unique_key LIKE 'p%';

-- pushed_by is the role that pushes: the one that was SET, and inside a SECURITY DEFINER function its owner.
CREATE ROLE regress_jobq_definer;
CREATE ROLE regress_jobq_caller;
GRANT USAGE ON SCHEMA jobq, test TO regress_jobq_definer, regress_jobq_caller;
GRANT EXECUTE ON FUNCTION jobq.push TO regress_jobq_definer, regress_jobq_caller;
CREATE FUNCTION test.push_as_definer() RETURNS uuid LANGUAGE sql SECURITY DEFINER AS $$ SELECT jobq.push('push', '"definer"') $$;
CREATE FUNCTION test.push_as_invoker() RETURNS uuid LANGUAGE sql SECURITY INVOKER AS $$ SELECT jobq.push('push', '"invoker"') $$;
ALTER FUNCTION test.push_as_definer() OWNER TO regress_jobq_definer;
SET ROLE regress_jobq_caller;
SELECT test.push_as_definer() AS definer, test.push_as_invoker() AS invoker, jobq.push('push', '"direct"') AS direct,
       jobq.push('push', '"named"', options => '{"pushed_by": "Ada"}') AS named \gset
RESET ROLE;
SELECT payload, pushed_by FROM jobq.jobs WHERE id IN (:'definer', :'invoker', :'direct', :'named') ORDER BY id;
DROP FUNCTION test.push_as_definer(), test.push_as_invoker();
DROP OWNED BY regress_jobq_definer, regress_jobq_caller;
DROP ROLE regress_jobq_definer, regress_jobq_caller;

-- A paused queue takes pushes.
SELECT jobq.create_queue('push_paused');
SELECT jobq.pause('push_paused');
SELECT jobq.push('push_paused') IS NOT NULL AS pushed;
