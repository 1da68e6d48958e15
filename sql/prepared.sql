\set ECHO none
\getenv here PG_ABS_SRCDIR
\set setup :here '/sql/setup.inc'
\i :setup
\set ECHO all
-- Two-phase commit. On a server that does not allow it, which is the default, there is nothing to show (prepared_1.out).
SELECT current_setting('max_prepared_transactions')::int > 0 AS allowed \gset
\if :allowed
\else
    \quit
\endif
DO $$ BEGIN PERFORM jobq.create_queue('prepared'); END $$;

-- A push in a transaction that is prepared is a job when that is committed, and not before.
BEGIN;
SELECT jobq.push('prepared', '1', unique_key => 'k', group_key => 'g') IS NOT NULL AS pushed;
PREPARE TRANSACTION 'jobq regress 1';
SELECT payload FROM jobq.pull('prepared', 10);
COMMIT PREPARED 'jobq regress 1';
SELECT payload FROM jobq.pull('prepared', 10);

-- Rolled back it never was.
BEGIN;
SELECT jobq.push('prepared', '2') IS NOT NULL AS pushed;
PREPARE TRANSACTION 'jobq regress 2';
ROLLBACK PREPARED 'jobq regress 2';
SELECT payload FROM jobq.pull('prepared', 10);

-- A pull that is prepared holds its job, and gives it back if it is rolled back, also when others have gone past it.
SELECT count(*) FROM jobq.push_many('prepared', '{3, 4, 5, 6}');
BEGIN;
SELECT payload FROM jobq.pull('prepared');
PREPARE TRANSACTION 'jobq regress 3';
SELECT jobq.complete(id, attempt) FROM jobq.pull('prepared');
SELECT jobq.complete(id, attempt) FROM jobq.pull('prepared');
ROLLBACK PREPARED 'jobq regress 3';
SELECT payload, attempt FROM jobq.pull('prepared', 10);

-- So does a completion.
SELECT jobq.push('prepared', '7') AS id \gset
SELECT attempt FROM jobq.pull('prepared');
BEGIN;
SELECT jobq.complete(:'id', 1);
PREPARE TRANSACTION 'jobq regress 4';
SELECT state FROM jobq.job(:'id');
COMMIT PREPARED 'jobq regress 4';
SELECT state FROM jobq.job(:'id');

-- A failed job whose transaction is prepared runs again after its commit, in its place.
SELECT jobq.push('prepared', '8') AS id \gset
SELECT attempt FROM jobq.pull('prepared');
BEGIN;
SELECT jobq.fail(:'id', 1, 'no', '0') IS NOT NULL AS again;
PREPARE TRANSACTION 'jobq regress 5';
SELECT payload FROM jobq.pull('prepared', 10);
COMMIT PREPARED 'jobq regress 5';
SELECT payload, attempt FROM jobq.pull('prepared', 10);
