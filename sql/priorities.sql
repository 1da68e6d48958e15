\set ECHO none
\getenv here PG_ABS_SRCDIR
\set setup :here '/sql/setup.inc'
\i :setup
\set ECHO all
-- Priorities: lower numbers run first, 0 is normal.
DO $$ BEGIN PERFORM jobq.create_queue('priorities'); END $$;

-- From the lowest to the highest that there is; within one by schedule, then in push order.
SELECT count(id) FROM (VALUES
    (jobq.push('priorities', '"last"', priority => 32767)), (jobq.push('priorities', '"first"', priority => -32768)),
    (jobq.push('priorities', '"normal 2"')), (jobq.push('priorities', '"normal 3"', priority => 0)), (jobq.push('priorities', '"low"', priority => 10)),
    (jobq.push('priorities', '"high"', priority => -10)), (jobq.push('priorities', '"normal 1"', run_at => '2020-01-01'))) AS p (id);
SELECT payload FROM jobq.pull('priorities', 2);
SELECT payload FROM jobq.pull('priorities', 10);

-- A more important job for later does not hold a less important one that is due.
SELECT jobq.push('priorities', '"later"', priority => -5, delay => '1 h') IS NOT NULL AND jobq.push('priorities', '"due"', priority => 5) IS NOT NULL AS pushed;
SELECT payload FROM jobq.pull('priorities', 10);

-- Nor does one of a type that is not asked for.
SELECT jobq.push('priorities', '"x"', 'x', priority => -5) IS NOT NULL AND jobq.push('priorities', '"y"', 'y', priority => 5) IS NOT NULL AS pushed;
SELECT payload FROM jobq.pull('priorities', 10, types => '{y}');
SELECT payload FROM jobq.pull('priorities', 10);

-- A batch goes over as many priorities as it takes.
SELECT jobq.clear('priorities');
SELECT count(jobq.push('priorities', to_jsonb(n), priority => n)) FROM generate_series(300, 1, -1) AS n;
SELECT count(*), min(payload::int), max(payload::int) FROM jobq.pull('priorities', 250);
SELECT count(*), min(payload::int), max(payload::int) FROM jobq.pull('priorities', 250);
