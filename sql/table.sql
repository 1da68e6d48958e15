\set ECHO none
\getenv here PG_ABS_SRCDIR
\set setup :here '/sql/setup.inc'
\i :setup
\set ECHO all
-- What an administrator may do to jobq.job, which is written past the executor.
DO $$ BEGIN PERFORM jobq.create_queue('table'); END $$;
BEGIN;
ALTER TABLE jobq.job ADD COLUMN extra int;
CREATE INDEX by_value ON jobq.job ((payload ->> 'a'));
CREATE INDEX urgent ON jobq.job (run_at) WHERE priority < 0 AND type IS NOT NULL;
CREATE UNIQUE INDEX one_only ON jobq.job ((payload ->> 'once')) WHERE payload ? 'once';

-- Such indexes are kept, by pushes of one and of many, and by claims and retries.
SELECT count(jobq.push('table', jsonb_build_object('a', i), priority => -i, type => 'x')) FROM generate_series(1, 2) AS i;
SELECT count(*) FROM jobq.push_many('table', '{"{\"a\": 3}", "{\"a\": 4}", "{\"once\": 1}"}');
SELECT payload FROM jobq.pull('table', 1);
SET LOCAL enable_seqscan = off;
SELECT payload, lease_until IS NOT NULL AS running, extra FROM jobq.job WHERE payload ->> 'a' IN ('2', '3') ORDER BY payload ->> 'a';
SELECT payload FROM jobq.job WHERE priority < 0 AND type = 'x' AND payload ? 'a' ORDER BY run_at, seq;
SELECT jobq.fail(id, attempt, 'no') IS NOT NULL AS again FROM jobq.jobs WHERE queue = 'table' AND state = 'running';
SELECT payload, failures FROM jobq.job WHERE payload ->> 'a' = '2';
SELECT payload, jobq.complete(id, attempt) FROM jobq.pull('table', 10);

-- A unique one refuses, as it would an INSERT.
SELECT count(*) FROM jobq.push_many('table', '{"{\"once\": 2}"}');
SELECT test.refused($$SELECT jobq.push('table', '{"once": 2}')$$);

-- One that cannot be kept says so.
ALTER TABLE jobq.job ADD CONSTRAINT later UNIQUE (seq) DEFERRABLE;
SELECT test.refused($$SELECT jobq.push('table')$$);
ROLLBACK;
