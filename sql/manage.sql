\set ECHO none
\getenv here PG_ABS_SRCDIR
\set setup :here '/sql/setup.inc'
\i :setup
\set ECHO all
-- Managing: queues, endpoints, pause, cancel, clear, drop.

-- create_queue: every setting at its default, or as given, by argument or by option.
SELECT jobq.create_queue('manage');
SELECT endpoint_id, paused, max_attempts, lease, keep, retry_first, retry_factor, retry_longest, retry_jitter, max_running, types FROM jobq.queue WHERE name = 'manage' \gx
SELECT jobq.create_queue('manage_all', max_attempts => 3, lease => '1 min', keep => '1 day',
    options => '{"retry_first": "5 s", "retry_factor": 1.5, "retry_longest": "1 min", "retry_jitter": 0, "max_running": 7, "types": {"t": {"max_attempts": 1, "retry_jitter": 1}}}');
SELECT max_attempts, lease, keep, retry_first, retry_factor, retry_longest, retry_jitter, max_running, types FROM jobq.queue WHERE name = 'manage_all' \gx
SELECT jobq.create_queue('manage_options', options => '{"max_attempts": 4, "lease": "2 min", "keep": null, "max_running": null, "endpoint": null}');
SELECT max_attempts, lease, keep, max_running, endpoint_id FROM jobq.queue WHERE name = 'manage_options';
-- An argument goes over the option of the same name.
SELECT jobq.create_queue('manage_both', max_attempts => 5, options => '{"max_attempts": 6, "lease": "7 min"}');
SELECT max_attempts, lease FROM jobq.queue WHERE name = 'manage_both';

-- create_queue: a name is taken once; if_not_exists leaves the queue as it is and says so.
SELECT test.refused($$SELECT jobq.create_queue('manage')$$);
SELECT jobq.create_queue('manage', max_attempts => 9, if_not_exists => true);
SELECT max_attempts FROM jobq.queue WHERE name = 'manage';

-- Names are any text of 1 to 48 bytes without control characters; quotes and blanks are nothing special.
SELECT jobq.create_queue('it''s "a" queue; 100% %I $$');
SELECT jobq.push('it''s "a" queue; 100% %I $$', '1') IS NOT NULL AS pushed;
SELECT queue, payload FROM jobq.pull('it''s "a" queue; 100% %I $$');
SELECT test.refused($$SELECT jobq.push('it''s not a queue')$$);
SELECT jobq.drop_queue('it''s "a" queue; 100% %I $$', force => true);

-- alter_queue: what is named changes, what is not stays; a null option unsets what may be unset.
SELECT jobq.alter_queue('manage_all');
SELECT max_attempts, lease, keep, retry_first, retry_factor, max_running, types FROM jobq.queue WHERE name = 'manage_all' \gx
SELECT jobq.alter_queue('manage_all', lease => '3 min', options => '{"max_running": null, "keep": null, "types": {}}');
SELECT max_attempts, lease, keep, retry_first, retry_factor, max_running, types FROM jobq.queue WHERE name = 'manage_all' \gx
SELECT jobq.alter_queue('manage_all', options => '{}');
-- The session's way to write intervals and dates changes nothing.
SET intervalstyle = sql_standard; SET datestyle = german;
SELECT jobq.alter_queue('manage_all', lease => '1 day 02:03:04.5', keep => '1 mon 2 days -03:00:00');
RESET intervalstyle; RESET datestyle;
SELECT lease, keep FROM jobq.queue WHERE name = 'manage_all';

-- A refused change changes nothing at all.
SELECT test.refused($$SELECT jobq.alter_queue('manage_all', max_attempts => 8, options => '{"retry_jitter": 3}')$$);
SELECT test.refused($$SELECT jobq.create_queue('manage_refused', options => '{"retry_jitter": 3}')$$);
SELECT max_attempts FROM jobq.queue WHERE name IN ('manage_all', 'manage_refused');

-- Settings are rows: an UPDATE by an administrator is checked as well, and the id stays.
UPDATE jobq.queue SET max_attempts = 11 WHERE name = 'manage';
SELECT max_attempts FROM jobq.queue WHERE name = 'manage';
SELECT test.refused($$UPDATE jobq.queue SET max_attempts = 0 WHERE name = 'manage'$$);
SELECT test.refused($$UPDATE jobq.queue SET id = 1000000 WHERE name = 'manage'$$);
SELECT test.refused($$INSERT INTO jobq.queue (name, lease) VALUES ('inserted', '0')$$);
SELECT test.refused($$UPDATE jobq.queue SET endpoint_id = -1 WHERE name = 'manage'$$) LIKE '23503 %' AS refused LIMIT 1;

-- create_endpoint: every setting at its default, or as given.
SELECT jobq.create_endpoint('manage', 'http://127.0.0.1:1/hook');
SELECT url, headers, max_in_flight, timeout, connect_timeout, keep_response, enabled FROM jobq.endpoint WHERE name = 'manage' \gx
SELECT jobq.create_endpoint('manage_all', 'https://example.com:8443/a?b=c#d', max_in_flight => 3, timeout => '5 s', headers => '{"x-a": "b"}',
    options => '{"connect_timeout": "1 s", "keep_response": 0, "enabled": false}');
SELECT url, headers, max_in_flight, timeout, connect_timeout, keep_response, enabled FROM jobq.endpoint WHERE name = 'manage_all' \gx
SELECT test.refused($$SELECT jobq.create_endpoint('manage', 'http://127.0.0.1:2/')$$);
SELECT jobq.create_endpoint('manage', 'http://127.0.0.1:2/', if_not_exists => true);

-- alter_endpoint: what is named changes, what is not stays.
SELECT jobq.alter_endpoint('manage_all', headers => '{}', options => '{"enabled": true}');
SELECT jobq.alter_endpoint('manage', 'http://127.0.0.1:1/other', timeout => '10 s', options => '{"enabled": false}');
SELECT name, url, headers, max_in_flight, timeout, connect_timeout, enabled FROM jobq.endpoint WHERE name LIKE 'manage%' ORDER BY name;
SELECT jobq.alter_endpoint('manage_all', options => '{"enabled": false}');

-- A queue gets an endpoint, another, and none.
SELECT jobq.create_queue('manage_delivered', endpoint => 'manage');
SELECT q.name, e.name AS endpoint FROM jobq.queue AS q LEFT JOIN jobq.endpoint AS e ON e.id = q.endpoint_id WHERE q.name = 'manage_delivered';
SELECT jobq.alter_queue('manage_delivered', endpoint => 'manage_all');
SELECT queue, endpoint FROM jobq.stats WHERE queue = 'manage_delivered';
SELECT jobq.alter_queue('manage_delivered', options => '{"endpoint": "manage"}');
SELECT queue, endpoint FROM jobq.stats WHERE queue = 'manage_delivered';

-- A job may name another endpoint than its queue's; the queue must have one.
SELECT jobq.push('manage_delivered', options => '{"endpoint": "manage_all"}') AS id \gset
SELECT e.name FROM jobq.job AS j JOIN jobq.endpoint AS e ON e.id = j.endpoint_id WHERE j.id = :'id';
SELECT test.refused($$SELECT jobq.push('manage', options => '{"endpoint": "manage_all"}')$$);
SELECT test.refused($$SELECT jobq.push('manage_delivered', options => '{"endpoint": "nowhere"}')$$);

-- drop_endpoint: not while a queue, a waiting or a dead job uses it.
SELECT test.refused($$SELECT jobq.drop_endpoint('manage')$$);
SELECT test.refused($$SELECT jobq.drop_endpoint('manage_all')$$);
UPDATE jobq.job SET attempt = 1, started_at = now(), lease_until = now() + '1 h' WHERE id = :'id'; -- as a delivery does
SELECT jobq.bury(:'id', 1);
SELECT test.refused($$SELECT jobq.drop_endpoint('manage_all')$$);
SELECT jobq.retry(:'id'), jobq.cancel(:'id');
SELECT jobq.drop_endpoint('manage_all');
-- A cancelled job that was for it cannot be retried.
SELECT test.refused(format('SELECT jobq.retry(%L)', :'id'));
SELECT test.refused($$SELECT jobq.drop_endpoint('manage_all')$$);
SELECT jobq.drop_endpoint('manage_all', if_exists => true);
SELECT jobq.alter_queue('manage_delivered', options => '{"endpoint": null}');
SELECT jobq.drop_endpoint('manage');

-- Created, paused and resumed within one statement.
SELECT jobq.create_queue('manage_pause'), jobq.pause('manage_pause'), jobq.pause('manage_pause');
SELECT paused FROM jobq.queue WHERE name = 'manage_pause';
SELECT jobq.resume('manage_pause'), jobq.resume('manage_pause');
SELECT paused FROM jobq.queue WHERE name = 'manage_pause';

-- cancel: a job that waits, whether due or not.
SELECT jobq.push('manage', '1', unique_key => 'k', group_key => 'g') AS due, jobq.push('manage', '2', delay => '1 h') AS later \gset
SELECT jobq.cancel(:'due'), jobq.cancel(:'later');
SELECT payload, state, attempt, started_at, finished_at IS NOT NULL AS ended, duration, error FROM jobq.jobs WHERE id IN (:'due', :'later') ORDER BY id;
SELECT count(*) FROM jobq.attempts WHERE id IN (:'due', :'later');
SELECT payload FROM jobq.pull('manage', 10);

-- cancel: a job that runs; its worker is told so by the next call.
SELECT jobq.push('manage', '3') AS id \gset
SELECT attempt FROM jobq.pull('manage', worker => 'w');
SELECT jobq.cancel(:'id');
SELECT state, attempt, worker, duration IS NOT NULL AS duration FROM jobq.job(:'id');
SELECT attempt, outcome FROM jobq.attempts WHERE id = :'id';
SELECT test.refused(format('SELECT jobq.complete(%L, 1)', :'id'));
SELECT test.refused(format('SELECT jobq.extend(%L, 1)', :'id'));
SELECT * FROM jobq.complete_many(ARRAY[:'id']::uuid[], '{1}');

-- cancel: not what has ended.
SELECT test.refused(format('SELECT jobq.cancel(%L)', :'id'));
SELECT jobq.push('manage', '4') AS id \gset
SELECT jobq.bury(id, attempt) FROM jobq.pull('manage');
SELECT test.refused(format('SELECT jobq.cancel(%L)', :'id'));

-- clear: the jobs of one state, and nothing else; what runs stays.
SELECT jobq.create_queue('manage_clear');
SELECT count(*) FROM jobq.push_many('manage_clear', '{1, 2, 3, 4, 5, 6}');
DO $$ BEGIN
    PERFORM jobq.complete(id, attempt) FROM jobq.pull('manage_clear');
    PERFORM jobq.fail(id, attempt, retry_in => '0') FROM jobq.pull('manage_clear');
    PERFORM jobq.bury(id, attempt) FROM jobq.pull('manage_clear');
    PERFORM jobq.cancel(id) FROM jobq.pull('manage_clear');
    PERFORM jobq.pull('manage_clear');
    PERFORM jobq.push('manage_clear', '7', delay => '1 h');
END $$;
SELECT state, count(*) FROM jobq.jobs WHERE queue = 'manage_clear' GROUP BY state ORDER BY state;
SELECT jobq.clear('manage_clear');
SELECT state, count(*) FROM jobq.jobs WHERE queue = 'manage_clear' GROUP BY state ORDER BY state;
SELECT jobq.clear('manage_clear', 'dead'), jobq.clear('manage_clear', 'completed'), jobq.clear('manage_clear', 'cancelled'), jobq.clear('manage_clear', 'expired');
SELECT state, count(*) FROM jobq.jobs WHERE queue = 'manage_clear' GROUP BY state ORDER BY state;
SELECT count(*) AS attempts_left FROM jobq.attempt AS a WHERE NOT EXISTS (SELECT FROM jobq.jobs AS j WHERE j.id = a.job_id);
SELECT jobq.clear('manage_clear', state => 'queued');

-- drop_queue: not while it has jobs that wait, run or are dead; with force, all of it.
SELECT test.refused($$SELECT jobq.drop_queue('manage_clear')$$);
SELECT jobq.complete(id, attempt) FROM jobq.jobs WHERE queue = 'manage_clear' AND state = 'running';
SELECT jobq.drop_queue('manage_clear');
SELECT test.refused($$SELECT jobq.push('manage_clear')$$);
SELECT jobq.create_queue('manage_clear');
SELECT count(*) FROM jobq.push_many('manage_clear', '{1, 2, 3}');
SELECT jobq.bury(id, attempt) FROM jobq.pull('manage_clear');
SELECT count(*) FROM jobq.pull('manage_clear');
SELECT jobq.drop_queue('manage_clear', force => true);
SELECT count(*) FROM jobq.jobs WHERE queue = 'manage_clear';
SELECT (SELECT count(*) FROM jobq.job AS j WHERE NOT EXISTS (SELECT FROM jobq.queue AS q WHERE q.id = j.queue_id)) AS jobs,
       (SELECT count(*) FROM jobq.finished AS f WHERE NOT EXISTS (SELECT FROM jobq.queue AS q WHERE q.id = f.queue_id)) AS finished,
       (SELECT count(*) FROM jobq.dead AS d WHERE NOT EXISTS (SELECT FROM jobq.queue AS q WHERE q.id = d.queue_id)) AS dead,
       (SELECT count(*) FROM jobq.attempt AS a WHERE NOT EXISTS (SELECT FROM jobq.jobs AS j WHERE j.id = a.job_id)) AS attempts;

-- drop_queue: if_exists says so and goes on.
SELECT jobq.drop_queue('manage_clear', if_exists => true);
SELECT test.refused($$SELECT jobq.drop_queue('manage_clear')$$);

-- A queue made again under the name of one that was dropped is a new one.
SELECT jobq.create_queue('manage_clear');
SELECT payload FROM jobq.pull('manage_clear');

-- A migration that fails in the middle leaves nothing.
BEGIN;
SELECT jobq.create_endpoint('manage_gone', 'http://127.0.0.1:1/');
SELECT jobq.create_queue('manage_gone', endpoint => 'manage_gone');
SELECT jobq.push('manage_gone') IS NOT NULL AS pushed;
ROLLBACK;
SELECT count(*) FROM jobq.stats WHERE queue = 'manage_gone';
