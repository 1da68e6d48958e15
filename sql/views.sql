\set ECHO none
\getenv here PG_ABS_SRCDIR
\set setup :here '/sql/setup.inc'
\i :setup
\set ECHO all
-- Seeing: jobq.jobs, job(id), attempts, stats and status().
DO $$ BEGIN PERFORM jobq.create_queue('views', options => '{"retry_first": "1 h"}'); END $$;

-- One job through its states, as the three views tell it.
SELECT jobq.push('views', '1', type => 't') AS id \gset
SELECT state, attempt, failures FROM jobq.jobs WHERE id = :'id';
SELECT * FROM jobq.attempts WHERE id = :'id';
SELECT due, scheduled, running, dead, oldest_due >= '0' AS oldest_due, finished_per_minute, median_duration, p99_duration FROM jobq.stats WHERE queue = 'views';
SELECT attempt FROM jobq.pull('views', worker => 'w');
SELECT state, attempt, failures, worker FROM jobq.jobs WHERE id = :'id';
SELECT attempt, outcome, worker, finished_at, duration FROM jobq.attempts WHERE id = :'id';
SELECT due, scheduled, running, dead, oldest_due FROM jobq.stats WHERE queue = 'views';
SELECT jobq.fail(:'id', 1, 'first') IS NOT NULL AS again;
SELECT state, attempt, failures, worker, error FROM jobq.jobs WHERE id = :'id';
SELECT due, scheduled, running, dead, oldest_due FROM jobq.stats WHERE queue = 'views';
SELECT test.make_due('views');
SELECT attempt FROM jobq.pull('views', worker => 'v');
SELECT state, attempt, error FROM jobq.jobs WHERE id = :'id';
SELECT jobq.complete(:'id', 2, '"done"');
SELECT state, attempt, failures, worker, result, error FROM jobq.jobs WHERE id = :'id';
SELECT attempt, outcome, worker, error, finished_at >= started_at AS ended, duration = finished_at - started_at AS duration, status_code, response FROM jobq.attempts WHERE id = :'id' ORDER BY attempt;
SELECT due, scheduled, running, dead, oldest_due, finished_per_minute, median_duration > '0' AS median, p99_duration = median_duration AS p99 FROM jobq.stats WHERE queue = 'views';

-- Every queue has its row in stats, also an empty and a paused one; what waits, by when.
SELECT jobq.create_queue('views_b'), jobq.pause('views_b');
SELECT count(*) FROM jobq.push_many('views_b', '{1, 2, 3, 4, 5}', run_ats => ARRAY[now() - interval '1 h', now() - interval '1 min', now(), now() + interval '1 h', now() + interval '2 h']);
SELECT queue, endpoint, paused, due, scheduled, running, dead, oldest_due BETWEEN '1 h' AND '1 h 1 min' AS an_hour_old, finished_per_minute FROM jobq.stats WHERE queue IN ('views', 'views_b') ORDER BY queue;

-- A job that runs before its time is running, and neither due nor scheduled.
SELECT jobq.resume('views_b');
SELECT count(*) FROM jobq.pull('views_b', 10, at => 'infinity');
SELECT due, scheduled, running FROM jobq.stats WHERE queue = 'views_b';
SELECT jobq.bury(id, attempt) FROM jobq.jobs WHERE queue = 'views_b' AND payload IN ('1', '2');
SELECT due, scheduled, running, dead FROM jobq.stats WHERE queue = 'views_b';

-- job(id): no row for an unknown one, or NULL.
SELECT count(*) FROM jobq.job('00000000-0000-7000-8000-000000000000');
SELECT count(*) FROM jobq.job(NULL);

-- A job is in exactly one place, whatever becomes of it.
SELECT count(*) FILTER (WHERE n > 1) AS twice FROM (SELECT count(*) AS n FROM jobq.jobs GROUP BY id) AS j;

-- Average duration by type, the way a report asks for it.
SELECT type, count(*), avg(duration) > '0' AS took_time FROM jobq.jobs WHERE queue = 'views' AND state = 'completed' GROUP BY type;

-- status(): one line at least, and each says what it is about.
SELECT count(*) > 0 AS lines, bool_and(component IN ('library', 'launcher', 'dispatcher') AND state IS NOT NULL) AS told FROM jobq.status();
SELECT component, state, message FROM jobq.status() WHERE NOT jobq.preloaded() AND component <> 'library';

-- Everything that can be called or read is commented.
SELECT p.oid::regprocedure FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
WHERE n.nspname = 'jobq' AND obj_description(p.oid, 'pg_proc') IS NULL
  AND p.proname IN ('push', 'push_many', 'push_bytes', 'push_row', 'pull', 'pull_any', 'pull_held', 'complete', 'fail', 'extend', 'release', 'bury',
                    'complete_many', 'fail_many', 'extend_many', 'release_many', 'bury_many', 'cancel', 'retry', 'retry_dead', 'clear',
                    'create_queue', 'alter_queue', 'drop_queue', 'create_endpoint', 'alter_endpoint', 'drop_endpoint', 'pause', 'resume',
                    'status', 'job', 'adopt', 'maintain', 'preloaded', 'created_at');
SELECT c.oid::regclass FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = 'jobq' AND c.relkind IN ('r', 'v') AND obj_description(c.oid, 'pg_class') IS NULL;

-- No function name is overloaded.
SELECT proname, count(*) FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace WHERE n.nspname = 'jobq' GROUP BY proname HAVING count(*) > 1;

-- A queue that is too long to be counted is estimated, and says so.
SELECT count(*) FROM jobq.push_many('views_b', array_fill('1'::jsonb, ARRAY[15000]));
ANALYZE jobq.job;
SELECT due BETWEEN 7500 AND 30000 AS about, estimated FROM jobq.stats WHERE queue = 'views_b';
SELECT jobq.clear('views_b');
SELECT due, estimated FROM jobq.stats WHERE queue = 'views_b';
