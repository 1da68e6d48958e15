\set ECHO none
\getenv here PG_ABS_SRCDIR
\set setup :here '/sql/setup.inc'
\i :setup
\set ECHO all
-- What the four systems that inspired jobq can do, each as a test of its own. What takes two sessions is
-- shown by test/specs (named here), what takes a delivery by test/t.

-- ==== The Rust queue

-- Rust 1: push, with an optional schedule; the id comes back.
SELECT jobq.create_queue('rust', max_attempts => 5, options => '{"retry_first": "0 s"}');
SELECT jobq.push('rust', '{"job": "now"}') IS NOT NULL AS now, jobq.push('rust', '{"job": "later"}', run_at => now() + interval '1 h') IS NOT NULL AS later;

-- Rust 2: pull at most n due jobs, in the order of their schedule. (That those another worker holds are skipped: specs/pull_disjoint.)
SELECT count(*) FROM jobq.push_many('rust', '{3, 1, 2, 4}', run_ats => '{2020-01-03, 2020-01-01, 2020-01-02, 2100-01-01}');
SELECT payload FROM jobq.pull('rust', 3);
SELECT payload FROM jobq.pull('rust', 3);
SELECT payload FROM jobq.pull('rust', 3);

-- Rust 3: delete or complete.
SELECT count(*) FROM (SELECT jobq.complete(id, attempt) FROM jobq.jobs WHERE queue = 'rust' AND state = 'running') AS c;
SELECT jobq.cancel(id) FROM jobq.jobs WHERE queue = 'rust' AND payload = '4';
SELECT state, count(*) FROM jobq.jobs WHERE queue = 'rust' GROUP BY state ORDER BY state;

-- Rust 4: fail, with a count of attempts up to a maximum: 5 there by default, here by the queue.
SELECT jobq.push('rust', '{"job": "fails"}') AS id \gset
DO $$
DECLARE
    job jobq.pulled;
BEGIN
    LOOP
        SELECT * INTO job FROM jobq.pull('rust');
        EXIT WHEN NOT FOUND;
        PERFORM jobq.fail(job.id, job.attempt, 'failure ' || job.attempt);
    END LOOP;
END $$;
SELECT state, attempt, failures, max_attempts, error FROM jobq.job(:'id');

-- Rust 5: clear.
SELECT jobq.clear('rust');
SELECT count(*) FROM jobq.jobs WHERE queue = 'rust' AND state = 'queued';

-- Rust 6: ids that sort by time, as bytes and as text, like ULIDs.
CREATE TEMP TABLE ids AS SELECT n, id FROM jobq.push_many('rust', (SELECT array_agg(to_jsonb(n)) FROM generate_series(1, 500) AS n)) WITH ORDINALITY AS p (id, n);
SELECT array_agg(n ORDER BY id) = array_agg(n ORDER BY n) AS by_value, array_agg(n ORDER BY id::text COLLATE "C") = array_agg(n ORDER BY n) AS as_text, count(DISTINCT id) FROM ids;
SELECT bool_and(jobq.created_at(id) BETWEEN now() - interval '1 h' AND clock_timestamp() + interval '1 s') AS tell_their_time FROM ids;

-- Rust 7: 50 in flight at once. (Of deliveries: an endpoint's max_in_flight, which is 50 by default.)
SELECT count(*) FROM jobq.pull('rust', 50);
SELECT running FROM jobq.stats WHERE queue = 'rust';
SELECT column_default FROM information_schema.columns WHERE table_schema = 'jobq' AND table_name = 'endpoint' AND column_name = 'max_in_flight';

-- ==== The Tokio/ZeroMQ server

-- Tokio 1: High, Normal and Low.
SELECT jobq.create_queue('tokio', max_attempts => 2, options => '{"max_running": 3, "retry_first": "0 s"}');
SELECT jobq.push('tokio', '"low"', priority => 10) IS NOT NULL, jobq.push('tokio', '"normal"') IS NOT NULL, jobq.push('tokio', '"high"', priority => -10) IS NOT NULL;
SELECT payload FROM jobq.pull('tokio', 3, worker => 'tokio-1');

-- Tokio 2: a fixed number of active jobs, here 3, whoever asks. (Two at the same moment: specs/max_running.)
SELECT jobq.push('tokio', '"fourth"') IS NOT NULL AS pushed;
SELECT count(*) FROM jobq.pull('tokio', 10, worker => 'tokio-2');
SELECT jobq.complete(id, attempt) FROM jobq.jobs WHERE queue = 'tokio' AND payload = '"high"';
SELECT payload FROM jobq.pull('tokio', 10, worker => 'tokio-2');

-- Tokio 3: queued, processing, completed, failed. Failed for good is called dead.
SELECT jobq.push('tokio', '"queued"') IS NOT NULL AS pushed;
SELECT jobq.bury(id, attempt, 'no such customer') FROM jobq.jobs WHERE queue = 'tokio' AND payload = '"low"';
SELECT payload, state FROM jobq.jobs WHERE queue = 'tokio' ORDER BY state, id;

-- Tokio 4: the failure's reason.
SELECT payload, error FROM jobq.jobs WHERE queue = 'tokio' AND state = 'dead';

-- Tokio 5: the submitter's name: the role, or a name given with the push, for poolers that share one role.
SELECT jobq.push('tokio', '"mine"') AS mine, jobq.push('tokio', '"hers"', options => '{"pushed_by": "ada"}') AS hers \gset
SELECT payload, pushed_by = current_user AS by_role, CASE WHEN pushed_by <> current_user THEN pushed_by END AS by_name FROM jobq.jobs WHERE id IN (:'mine', :'hers') ORDER BY id;

-- Tokio 6: a worker that reconnects under its name gets what it still holds.
\c -
SELECT payload, attempt FROM jobq.pull_held('tokio-1');
SELECT payload, attempt FROM jobq.pull_held('tokio-2');

-- Tokio 7: jobs that a dead server left unfinished are recovered at the start, the attempt on record.
BEGIN;
SELECT test.end_leases('tokio');
SELECT jobq.maintain() >= 2 AS recovered;
COMMIT;
-- They go first, in their old order.
SELECT payload, attempt FROM jobq.pull('tokio', 10, worker => 'tokio-1');
SELECT payload, a.attempt, outcome, a.worker FROM jobq.attempts AS a JOIN jobq.jobs AS j USING (id) WHERE queue = 'tokio' AND payload IN ('"normal"', '"fourth"') ORDER BY payload, a.attempt;

-- Tokio 8: the recorded duration, the way it was asked for there.
SELECT count(*) FROM (SELECT jobq.complete(id, attempt) FROM jobq.jobs WHERE queue = 'tokio' AND state = 'running') AS c;
SELECT avg(duration) > '0' AS average FROM jobq.jobs WHERE queue = 'tokio' AND state = 'completed';
SELECT bool_and(created_at <= started_at AND started_at <= finished_at) AS times FROM jobq.jobs WHERE queue = 'tokio' AND state = 'completed';

-- Tokio 9: the pushed job is acknowledged: the caller has its id, and can ask for it.
SELECT jobq.push('tokio', '{"hello": "world"}') AS id \gset
SELECT queue, payload, state FROM jobq.job(:'id');

-- Tokio 10: a bad message is reported and skipped, and those beside it go through.
DO $$
DECLARE
    message text;
BEGIN
    FOREACH message IN ARRAY ARRAY['{"good": 1}', 'not json', '{"bad": "priority"}', '{"good": 2}'] LOOP
        BEGIN
            PERFORM jobq.push('tokio', message::jsonb, type => 'message', priority => CASE WHEN message ~ 'bad' THEN 100000 ELSE -100 END);
        EXCEPTION WHEN invalid_text_representation OR invalid_parameter_value THEN
            RAISE NOTICE 'skipped: %', SQLERRM;
        END;
    END LOOP;
END $$;
SELECT payload FROM jobq.pull('tokio', 10, types => '{message}');

-- ==== Aide-de-Camp

-- Aide 1: job types, and workers that take only the types they know.
SELECT jobq.create_queue('aide', options => '{"retry_first": "0 s", "types": {"fragile": {"max_attempts": 1}, "stubborn": {"max_attempts": 3}}}');
SELECT count(*) FROM jobq.push_many('aide', '{1, 2, 3}', types => '{resize, mail, resize}');
SELECT payload, type FROM jobq.pull('aide', 10, types => '{mail, sms}');
SELECT payload, type FROM jobq.pull('aide', 10, types => '{resize}');

-- Aide 2: schedule now, in and at.
SELECT jobq.push('aide', '"now"') IS NOT NULL, jobq.push('aide', '"in"', delay => '30 min') IS NOT NULL, jobq.push('aide', '"at"', run_at => now() + interval '1 day') IS NOT NULL;

-- Aide 3: poll with a given "now".
SELECT payload FROM jobq.pull('aide', 10, at => now() - interval '1 day');
SELECT payload FROM jobq.pull('aide', 10);
SELECT payload FROM jobq.pull('aide', 10, at => now() + interval '1 h');
SELECT payload FROM jobq.pull('aide', 10, at => now() + interval '2 days');

-- Aide 4: complete, fail, and a dead queue with retries by type.
SELECT count(*) FROM jobq.push_many('aide', ARRAY['"a"', '"b"', '"c"']::jsonb[], types => '{fragile, stubborn, fine}');
DO $$
DECLARE
    job jobq.pulled;
BEGIN
    LOOP
        SELECT * INTO job FROM jobq.pull('aide', types => '{fragile, stubborn, fine}');
        EXIT WHEN NOT FOUND;
        IF job.type = 'fine' THEN
            PERFORM jobq.complete(job.id, job.attempt);
        ELSE
            PERFORM jobq.fail(job.id, job.attempt, 'broken ' || job.type);
        END IF;
    END LOOP;
END $$;
SELECT payload, type, state, attempt, error FROM jobq.jobs WHERE queue = 'aide' AND type IN ('fragile', 'stubborn', 'fine') ORDER BY type;

-- Aide 5: waiting for the next job by wake-up instead of polling: specs/listen.

-- Aide 6: what it only wished for: batches,
SELECT count(*) FROM jobq.push_many('aide', (SELECT array_agg(to_jsonb(n)) FROM generate_series(1, 250) AS n), type => 'batch');
SELECT count(*) FROM jobq.pull('aide', 200, types => '{batch}');

-- Aide 7: several queues,
SELECT jobq.create_queue('aide_urgent');
SELECT jobq.push('aide_urgent', '"quick"') IS NOT NULL AS pushed;
SELECT queue, count(*) FROM jobq.pull_any('{aide_urgent, aide}', 10, types => NULL) GROUP BY queue ORDER BY queue DESC;

-- Aide 8: and insight into the queue and its dead jobs, and a way back for these.
SELECT queue, due, scheduled, running > 0 AS running, dead FROM jobq.stats WHERE queue LIKE 'aide%' ORDER BY queue;
SELECT payload, type, attempt, error, finished_at IS NOT NULL AS when_it_died FROM jobq.jobs WHERE queue = 'aide' AND state = 'dead' ORDER BY type;
SELECT jobq.retry_dead('aide', types => '{stubborn}');
SELECT payload, state, attempt, failures FROM jobq.jobs WHERE queue = 'aide' AND type = 'stubborn';

-- ==== The FIFO proof of concept

-- FIFO 1: at most one running job of a (queue, group), in order. (A push that commits late: specs/group_late_commit; two at the same moment: specs/group_two_pullers.)
SELECT jobq.create_queue('fifo', options => '{"retry_first": "0 s"}');
SELECT count(*) FROM jobq.push_many('fifo', '{1, 2, 3, 4}', group_keys => '{a, a, b, a}');
SELECT payload, group_key FROM jobq.pull('fifo', 10, worker => 'w');
SELECT count(*) FROM jobq.pull('fifo', 10, worker => 'v');
SELECT jobq.complete(id, attempt, '{"ok": true}') FROM jobq.jobs WHERE queue = 'fifo' AND payload = '1';
SELECT payload, group_key FROM jobq.pull('fifo', 10, worker => 'v');

-- FIFO 2: in order also over a failure: the one that failed is the next, not the one behind it.
SELECT jobq.fail(id, attempt, 'not yet') IS NOT NULL AS again FROM jobq.jobs WHERE queue = 'fifo' AND payload = '2';
SELECT payload, attempt FROM jobq.pull('fifo', 10, worker => 'v');
SELECT jobq.complete(id, attempt) FROM jobq.jobs WHERE queue = 'fifo' AND payload = '2';
SELECT payload, attempt FROM jobq.pull('fifo', 10, worker => 'v');
SELECT jobq.bury(id, attempt, 'never') FROM jobq.jobs WHERE queue = 'fifo' AND payload = '4';

-- FIFO 3: attempts, started and finished times, result and error.
SELECT payload, group_key, state, attempt, started_at IS NOT NULL AS started, finished_at IS NOT NULL AS finished, result, error FROM jobq.jobs WHERE queue = 'fifo' ORDER BY id;
SELECT a.attempt, outcome, a.error, a.finished_at >= a.started_at AS times FROM jobq.attempts AS a JOIN jobq.jobs AS j USING (id) WHERE queue = 'fifo' AND payload = '2' ORDER BY a.attempt;

-- FIFO 4: queues that need no groups: everything at once.
SELECT jobq.create_queue('fifo_free');
SELECT count(*) FROM jobq.push_many('fifo_free', '{1, 2, 3}');
SELECT payload FROM jobq.pull('fifo_free', 10);

-- FIFO 5: the rule in full: priority is ignored inside a group, a head that waits holds it (scheduled, retrying, or of a type not asked for),
-- and a batch has one job of a group at most.
SELECT jobq.create_queue('fifo_rule');
SELECT jobq.push('fifo_rule', '"p1"', group_key => 'p', priority => 9) IS NOT NULL, jobq.push('fifo_rule', '"p2"', group_key => 'p', priority => -9) IS NOT NULL;
SELECT jobq.push('fifo_rule', '"s1"', group_key => 's', delay => '1 h') IS NOT NULL, jobq.push('fifo_rule', '"s2"', group_key => 's') IS NOT NULL;
SELECT jobq.push('fifo_rule', '"t1"', 'other', group_key => 't') IS NOT NULL, jobq.push('fifo_rule', '"t2"', 'known', group_key => 't') IS NOT NULL;
SELECT jobq.push('fifo_rule', '"r1"', 'known', group_key => 'r') AS r1, jobq.push('fifo_rule', '"r2"', 'known', group_key => 'r') IS NOT NULL AS r2 \gset
SELECT jobq.fail(id, attempt, 'again', '1 h') IS NOT NULL AS retrying FROM jobq.pull('fifo_rule', 10, types => '{known}');
SELECT payload FROM jobq.pull('fifo_rule', 10, types => '{known}');
SELECT payload FROM jobq.pull('fifo_rule', 10);
