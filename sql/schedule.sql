\set ECHO none
\getenv here PG_ABS_SRCDIR
\set setup :here '/sql/setup.inc'
\i :setup
\set ECHO all
-- Scheduling: run_at, delay, and pulling in the order of schedule.
DO $$ BEGIN PERFORM jobq.create_queue('schedule'); END $$;

-- Now, in, at: none is due before its time.
SELECT jobq.push('schedule', '"now"') IS NOT NULL AND
       jobq.push('schedule', '"in"', delay => '1 h') IS NOT NULL AND
       jobq.push('schedule', '"at"', run_at => now() + interval '2 h') IS NOT NULL AND
       jobq.push('schedule', '"at, long ago"', run_at => '2001-02-03 04:05:06+00') IS NOT NULL AS pushed;
SELECT payload, state, run_at <= clock_timestamp() AS due FROM jobq.jobs WHERE queue = 'schedule' ORDER BY id;
SELECT test.is_in(run_at, '1 h') AS in_an_hour FROM jobq.jobs WHERE queue = 'schedule' AND payload = '"in"';
SELECT payload FROM jobq.pull('schedule', 10);
SELECT payload FROM jobq.pull('schedule', 10, at => now() + interval '1 h 30 min');
SELECT payload FROM jobq.pull('schedule', 10, at => now() + interval '2 h 30 min');

-- The order is that of the schedule, then that of the pushes.
SELECT count(*) FROM jobq.push_many('schedule', '{5, 1, 3, 2, 4}',
    run_ats => '{2020-01-03, 2020-01-01, 2020-01-02, 2020-01-01, 2020-01-02}');
SELECT payload FROM jobq.pull('schedule', 3);
SELECT payload FROM jobq.pull('schedule', 3);

-- A delay counts from the push, not from the start of its transaction, and months and days go by the calendar.
BEGIN;
SELECT jobq.push('schedule', delay => '0') AS id \gset
SELECT run_at >= now() AND run_at >= created_at - interval '1 ms' AS from_the_push FROM jobq.job(:'id');
COMMIT;
SELECT payload FROM jobq.pull('schedule');
SELECT jobq.push('schedule', delay => '1 month') AS id \gset
SELECT run_at::date = (created_at + interval '1 month')::date AS by_the_calendar FROM jobq.job(:'id');

-- A delay that only looks negative is none: -1 month 31 days is never before now.
SELECT jobq.push('schedule', delay => '-1 month 31 days') IS NOT NULL AS pushed;
SELECT test.refused($$SELECT jobq.push('schedule', delay => '1 month -32 days')$$);

-- A time far off is a time like any other.
SELECT jobq.push('schedule', run_at => '294276-12-31 23:59:59.999999+00') AS late, jobq.push('schedule', run_at => '4713-01-02 00:00:00+00 BC') AS early \gset
SELECT payload FROM jobq.pull('schedule', 10, at => '4713-01-03 00:00:00+00 BC');
SELECT state FROM jobq.job(:'late');

-- Jobs for later do not stand in the way of those that are due, in any priority.
SELECT jobq.clear('schedule') > 0 AS cleared;
SELECT count(*) FROM jobq.push_many('schedule', (SELECT array_agg(to_jsonb(n)) FROM generate_series(1, 3000) AS n), delay => '1 day', priority => -1);
SELECT jobq.push('schedule', '"due"', priority => 1) IS NOT NULL AS pushed;
SELECT payload FROM jobq.pull('schedule', 10);
SELECT jobq.clear('schedule');

-- A job that comes due is pulled then, without anything else happening.
SELECT jobq.push('schedule', '"soon"', delay => '50 ms') IS NOT NULL AS pushed;
DO $$
DECLARE
    give_up timestamptz := clock_timestamp() + interval '30 s';
BEGIN
    LOOP
        PERFORM jobq.complete(p.id, p.attempt, to_jsonb(clock_timestamp() >= j.run_at))
            FROM jobq.pull('schedule') AS p JOIN jobq.jobs AS j ON j.id = p.id;
        EXIT WHEN FOUND OR clock_timestamp() > give_up;
        PERFORM pg_sleep(0.01);
    END LOOP;
END $$;
SELECT payload, state, result AS not_early FROM jobq.jobs WHERE queue = 'schedule' AND payload = '"soon"';
