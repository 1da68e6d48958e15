\set ECHO none
\getenv here PG_ABS_SRCDIR
\set setup :here '/sql/setup.inc'
\i :setup
\set ECHO all
-- Groups: at most one running job a group, in the order of pushes.
DO $$ BEGIN PERFORM jobq.create_queue('groups'); PERFORM jobq.create_queue('groups_b'); END $$;

-- One at a time, in the order of pushes; other groups and jobs without one go beside.
SELECT count(*) FROM jobq.push_many('groups', '{1, 2, 3, 4, 5, 6}', group_keys => '{a, a, b, NULL, NULL, b}');
SELECT payload, group_key FROM jobq.pull('groups', 10);
SELECT payload, group_key FROM jobq.pull('groups', 10);
SELECT jobq.complete(id, attempt) FROM jobq.jobs WHERE queue = 'groups' AND state = 'running';
SELECT payload, group_key FROM jobq.pull('groups', 10);
SELECT jobq.complete(id, attempt) FROM jobq.jobs WHERE queue = 'groups' AND state = 'running';

-- A batch has at most one job of a group, even when it is all there is.
SELECT count(*) FROM jobq.push_many('groups', '{1, 2, 3}', group_keys => '{a, a, a}');
SELECT payload FROM jobq.pull('groups', 3);
SELECT jobq.complete(id, attempt) FROM jobq.jobs WHERE queue = 'groups' AND state = 'running';
SELECT jobq.clear('groups');

-- Priority is ignored inside a group; between groups it counts, by the priority of their heads.
SELECT jobq.push('groups', '"a1"', group_key => 'a', priority => 5) IS NOT NULL AND
       jobq.push('groups', '"a2"', group_key => 'a', priority => -5) IS NOT NULL AND
       jobq.push('groups', '"b1"', group_key => 'b', priority => 0) IS NOT NULL AS pushed;
SELECT payload FROM jobq.pull('groups');
SELECT payload FROM jobq.pull('groups');
SELECT payload FROM jobq.pull('groups');
SELECT jobq.complete(id, attempt) FROM jobq.jobs WHERE queue = 'groups' AND state = 'running';
SELECT payload FROM jobq.pull('groups', 10);
SELECT jobq.complete(id, attempt) FROM jobq.jobs WHERE queue = 'groups' AND state = 'running';

-- A head that is scheduled for later holds its group.
SELECT jobq.push('groups', '"later"', group_key => 'a', delay => '1 h') IS NOT NULL AND jobq.push('groups', '"now"', group_key => 'a') IS NOT NULL AS pushed;
SELECT payload FROM jobq.pull('groups', 10);
SELECT test.make_due('groups');
SELECT payload FROM jobq.pull('groups', 10);
SELECT jobq.complete(id, attempt) FROM jobq.jobs WHERE queue = 'groups' AND state = 'running';
SELECT payload FROM jobq.pull('groups', 10);
SELECT jobq.complete(id, attempt) FROM jobq.jobs WHERE queue = 'groups' AND state = 'running';

-- A head of a type that is not asked for holds its group.
SELECT jobq.push('groups', '"x"', 'x', group_key => 'a') IS NOT NULL AND jobq.push('groups', '"y"', 'y', group_key => 'a') IS NOT NULL AS pushed;
SELECT payload FROM jobq.pull('groups', 10, types => '{y}');
SELECT payload FROM jobq.pull('groups', 10, types => '{x}');
SELECT payload FROM jobq.pull('groups', 10, types => '{y}');
SELECT jobq.complete(id, attempt) FROM jobq.jobs WHERE queue = 'groups' AND state = 'running';
SELECT payload FROM jobq.pull('groups', 10, types => '{y}');
SELECT jobq.complete(id, attempt) FROM jobq.jobs WHERE queue = 'groups' AND state = 'running';

-- A head that waits for its retry holds its group: it stays first.
SELECT count(*) FROM jobq.push_many('groups', '{1, 2}', group_keys => '{a, a}');
SELECT jobq.fail(id, attempt, 'no', '1 h') IS NOT NULL AS again FROM jobq.pull('groups');
SELECT payload FROM jobq.pull('groups', 10);
SELECT test.make_due('groups');
SELECT payload, attempt FROM jobq.pull('groups', 10);

-- A dead head lets the next one go, as does a cancelled, a buried and a cleared one.
SELECT jobq.bury(id, attempt) FROM jobq.jobs WHERE queue = 'groups' AND state = 'running';
SELECT payload FROM jobq.pull('groups', 10);
SELECT jobq.complete(id, attempt) FROM jobq.jobs WHERE queue = 'groups' AND state = 'running';
SELECT count(*) FROM jobq.push_many('groups', '{1, 2}', group_keys => '{a, a}', delay => '1 h');
SELECT jobq.cancel(id) FROM jobq.jobs WHERE queue = 'groups' AND state = 'queued' AND payload = '1';
SELECT test.make_due('groups');
SELECT payload FROM jobq.pull('groups', 10);

-- A cancelled job that runs no longer holds its group.
SELECT jobq.push('groups', '3', group_key => 'a') IS NOT NULL AS pushed;
SELECT payload FROM jobq.pull('groups', 10);
SELECT jobq.cancel(id) FROM jobq.jobs WHERE queue = 'groups' AND state = 'running';
SELECT payload FROM jobq.pull('groups', 10);

-- A released one is first again.
SELECT jobq.push('groups', '4', group_key => 'a') IS NOT NULL AS pushed;
SELECT jobq.release(id, attempt) IS NOT NULL AS released FROM jobq.jobs WHERE queue = 'groups' AND state = 'running';
SELECT payload, attempt FROM jobq.pull('groups', 10);

-- A lease that is over frees the group for the same job, which is its first.
BEGIN;
SELECT test.end_leases('groups');
SELECT payload, attempt FROM jobq.pull('groups', 10);
COMMIT;
SELECT jobq.complete(id, attempt) FROM jobq.jobs WHERE queue = 'groups' AND state = 'running';
SELECT payload FROM jobq.pull('groups', 10);
SELECT jobq.complete(id, attempt) FROM jobq.jobs WHERE queue = 'groups' AND state = 'running';

-- A dead job that is retried takes its old place, before what was pushed after it.
SELECT count(*) FROM jobq.push_many('groups', '{1, 2}', group_keys => '{a, a}');
SELECT id, attempt FROM jobq.pull('groups') \gset
SELECT jobq.bury(:'id', :attempt);
SELECT jobq.retry(:'id');
SELECT payload, attempt FROM jobq.pull('groups', 10);
SELECT jobq.complete(id, attempt) FROM jobq.jobs WHERE queue = 'groups' AND state = 'running';
SELECT jobq.clear('groups');

-- The same key in another queue is another group; '' is a group as well, NULL is none.
SELECT jobq.push('groups', '"a"', group_key => 'a') IS NOT NULL AND jobq.push('groups_b', '"b"', group_key => 'a') IS NOT NULL AS pushed;
SELECT count(*) FROM jobq.push_many('groups', '{1, 2, 3, 4}', group_keys => '{"", "", NULL, NULL}');
SELECT queue, payload, group_key FROM jobq.pull_any('{groups, groups_b}', 10);
SELECT jobq.complete(id, attempt) FROM jobq.jobs WHERE queue IN ('groups', 'groups_b') AND state = 'running';
SELECT payload, group_key = '' AS empty FROM jobq.pull('groups', 10);
SELECT jobq.complete(id, attempt) FROM jobq.jobs WHERE queue IN ('groups', 'groups_b') AND state = 'running';

-- A rollback gives the group back too.
SELECT count(*) FROM jobq.push_many('groups', '{1, 2}', group_keys => '{a, a}');
BEGIN;
SELECT payload FROM jobq.pull('groups', 10);
SAVEPOINT s;
SELECT payload FROM jobq.pull('groups', 10);
ROLLBACK TO s;
SELECT jobq.complete(id, attempt) FROM jobq.jobs WHERE queue = 'groups' AND state = 'running';
SELECT payload FROM jobq.pull('groups', 10);
ROLLBACK;
SELECT payload FROM jobq.pull('groups', 10);
SELECT jobq.complete(id, attempt) FROM jobq.jobs WHERE queue = 'groups' AND state = 'running';
SELECT jobq.clear('groups');

-- Many groups: each gives its jobs in order, whoever pulls, until nothing is left.
SELECT count(*) FROM jobq.push_many('groups', (SELECT array_agg(to_jsonb(n) ORDER BY n) FROM generate_series(1, 600) AS n),
    group_keys => (SELECT array_agg('g' || n % 7 ORDER BY n) FROM generate_series(1, 600) AS n));
CREATE TEMP TABLE done (seq serial, payload int, group_key text);
DO $$
DECLARE
    job record;
    idle boolean := false;
BEGIN
    WHILE NOT idle LOOP
        idle := true;
        FOR job IN SELECT * FROM jobq.pull('groups', 5) LOOP
            idle := false;
            INSERT INTO done (payload, group_key) VALUES (job.payload::int, job.group_key);
            PERFORM jobq.complete(job.id, job.attempt);
        END LOOP;
    END LOOP;
END $$;
SELECT count(*), bool_and(in_order) AS in_order FROM (
    SELECT payload > lag(payload, 1, 0) OVER (PARTITION BY group_key ORDER BY seq) AS in_order FROM done) AS d;

-- However an attempt ends, its group is known to run no longer.
DO $$ BEGIN PERFORM jobq.create_queue('ends'); END $$;
SELECT count(*) FROM jobq.push_many('ends', '{1, 2, 3, 4, 5, 6, 7, 8}', group_keys => '{complete, complete_many, fail, release, bury, cancel, lease, none}');
CREATE TEMP TABLE pulled AS SELECT * FROM jobq.pull('ends', 7);
SELECT array_agg(r.group_key ORDER BY r.group_key) FROM jobq.running_group AS r;
SELECT jobq.complete(id, attempt) FROM pulled WHERE group_key = 'complete';
SELECT count(*) FROM pulled AS p, jobq.complete_many(ARRAY[p.id], ARRAY[p.attempt]) WHERE group_key = 'complete_many';
SELECT jobq.fail(id, attempt, retry_in => '1 h') IS NOT NULL AS again FROM pulled WHERE group_key = 'fail';
SELECT jobq.release(id, attempt, '1 h') IS NOT NULL AS back FROM pulled WHERE group_key = 'release';
SELECT jobq.bury(id, attempt) FROM pulled WHERE group_key = 'bury';
SELECT jobq.cancel(id) FROM pulled WHERE group_key = 'cancel';
SELECT array_agg(r.group_key) FROM jobq.running_group AS r;
BEGIN;
SELECT test.end_leases('ends');
SELECT jobq.maintain();
SELECT array_agg(r.group_key) FROM jobq.running_group AS r;
ROLLBACK;

-- A job that somebody deleted past jobq while it ran does not hold its group.
SELECT jobq.push('ends', '"next"', group_key => 'lease') IS NOT NULL AS pushed;
SELECT payload FROM jobq.pull('ends', 10) WHERE group_key = 'lease';
DELETE FROM jobq.job AS j USING pulled AS p WHERE j.id = p.id AND p.group_key = 'lease';
SELECT payload FROM jobq.pull('ends', 10);
SELECT count(*) FROM jobq.running_group AS r WHERE r.group_key = 'lease';
SELECT jobq.drop_queue('ends', force => true);
SELECT count(*) FROM jobq.running_group;
