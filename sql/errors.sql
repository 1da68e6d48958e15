\set ECHO none
\getenv here PG_ABS_SRCDIR
\set setup :here '/sql/setup.inc'
\i :setup
\set ECHO all
-- Bad input: each is refused with an SQLSTATE, says why, and leaves nothing behind.
DO $$ BEGIN
    PERFORM jobq.create_queue('errors');
    PERFORM jobq.create_endpoint('errors', 'http://127.0.0.1:1/', options => '{"enabled": false}');
END $$;
SELECT jobq.push('errors', '"stays"') AS waits \gset
\pset format unaligned
\pset tuples_only on

-- Statements, one a line, each with what it is refused with.
CREATE FUNCTION test.all_refused(statements text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
    statement text;
BEGIN
    FOREACH statement IN ARRAY string_to_array(btrim(statements, E'\n'), E'\n') LOOP
        RETURN NEXT statement;
        RETURN QUERY SELECT '    ' || line FROM test.refused('SELECT ' || statement) AS line;
    END LOOP;
END $$;

-- Unknown queues and endpoints, with the way out.
SELECT * FROM test.all_refused($$
jobq.push('nosuch')
jobq.push_bytes('nosuch', 'x')
jobq.push_many('nosuch', '{1}')
jobq.push_many('nosuch', '{}')
jobq.push_many('nosuch', '{1, 2}')
jobq.push_many('nosuch', '{1, 2}', unique_keys => '{a, b}')
jobq.push('')
jobq.pull('nosuch')
jobq.pull_any('{errors, nosuch}')
jobq.retry_dead('nosuch')
jobq.clear('nosuch')
jobq.pause('nosuch')
jobq.resume('nosuch')
jobq.alter_queue('nosuch')
jobq.drop_queue('nosuch')
jobq.create_queue('new', endpoint => 'nosuch')
jobq.alter_queue('errors', endpoint => 'nosuch')
jobq.alter_queue('errors', options => '{"endpoint": "no''such"}')
jobq.alter_endpoint('nosuch')
jobq.drop_endpoint('nosuch')
$$);

-- NULL where it makes no sense.
SELECT * FROM test.all_refused($$
jobq.push(NULL)
jobq.push('errors', NULL)
jobq.push_bytes(NULL, 'x')
jobq.push_bytes('errors', NULL)
jobq.push_bytes('errors', 'x', NULL)
jobq.push_many(NULL, '{1}')
jobq.push_many('errors', NULL)
jobq.push_many('errors', '{NULL}')
jobq.pull(NULL)
jobq.pull('errors', NULL)
jobq.pull_any(NULL)
jobq.pull_any('{errors, NULL}')
jobq.complete(NULL, 1)
jobq.complete('00000000-0000-7000-8000-000000000000', NULL)
jobq.fail(NULL, 1)
jobq.fail('00000000-0000-7000-8000-000000000000', NULL)
jobq.extend(NULL, 1)
jobq.release(NULL, 1)
jobq.bury(NULL, 1)
jobq.complete_many(NULL, '{1}')
jobq.complete_many('{00000000-0000-7000-8000-000000000000}', NULL)
jobq.complete_many('{NULL}', '{1}')
jobq.fail_many('{00000000-0000-7000-8000-000000000000}', '{NULL}')
jobq.extend_many(NULL, NULL)
jobq.release_many(NULL, '{1}')
jobq.bury_many('{NULL, NULL}', '{1, 2}')
jobq.cancel(NULL)
jobq.retry(NULL)
jobq.retry_dead(NULL)
jobq.clear(NULL)
jobq.clear('errors', NULL)
jobq.create_queue(NULL)
jobq.alter_queue(NULL)
jobq.drop_queue(NULL)
jobq.drop_queue(NULL, if_exists => true)
jobq.create_endpoint(NULL, 'http://127.0.0.1/')
jobq.create_endpoint('new', NULL)
jobq.alter_endpoint(NULL)
jobq.drop_endpoint(NULL)
jobq.drop_endpoint(NULL, if_exists => true)
jobq.pause(NULL)
jobq.resume(NULL)
jobq.create_queue('new', options => '{"max_attempts": null}')
jobq.alter_queue('errors', options => '{"lease": null}')
jobq.alter_queue('errors', options => '{"types": null}')
jobq.alter_endpoint('errors', options => '{"url": null}')
jobq.alter_endpoint('errors', options => '{"headers": null}')
$$);

-- Times: negative, zero, endless, too long, or two of them.
SELECT * FROM test.all_refused($$
jobq.push('errors', delay => '-1 us')
jobq.push('errors', delay => '-1 month 27 days')
jobq.push('errors', run_at => now(), delay => '1 s')
jobq.push('errors', run_at => 'infinity')
jobq.push('errors', run_at => '-infinity')
jobq.push('errors', delay => '300000 years')
jobq.push_many('errors', '{1, 2}', run_ats => '{now, infinity}')
jobq.push('errors', options => '{"expires_at": "soon"}')
jobq.push('errors', options => '{"expires_at": 17}')
jobq.pull('errors', lease => '0')
jobq.pull('errors', lease => '-1 s')
jobq.pull('errors', lease => '2 years')
jobq.pull('errors', lease => '300000 years')
jobq.pull_any('{errors}', lease => '-1 s')
jobq.extend('00000000-0000-7000-8000-000000000000', 1, '0')
jobq.extend('00000000-0000-7000-8000-000000000000', 1, '2 years')
jobq.extend_many('{}', '{}', '-1 s')
jobq.fail('00000000-0000-7000-8000-000000000000', 1, retry_in => '-1 s')
jobq.fail_many('{}', '{}', retry_in => '-1 s')
jobq.release('00000000-0000-7000-8000-000000000000', 1, '-1 s')
jobq.release_many('{}', '{}', '-1 s')
jobq.retry_dead('errors', spread => '-1 s')
jobq.create_queue('new', lease => '0')
jobq.create_queue('new', lease => '2 years')
jobq.create_queue('new', keep => '-1 s')
jobq.create_queue('new', options => '{"lease": "soon"}')
jobq.create_queue('new', options => '{"retry_first": "-1 s"}')
jobq.create_queue('new', options => '{"retry_longest": "2 years"}')
jobq.create_endpoint('new', 'http://127.0.0.1/', timeout => '0')
jobq.create_endpoint('new', 'http://127.0.0.1/', timeout => '2 h')
jobq.create_endpoint('new', 'http://127.0.0.1/', options => '{"connect_timeout": "-1 s"}')
$$);
-- Endless intervals exist from 17 on; there they are refused as well.
DO $$ BEGIN
    IF current_setting('server_version_num')::int < 170000 THEN RETURN; END IF;
    ASSERT (SELECT bool_and((SELECT min(line) FROM test.refused('SELECT ' || call) AS line) LIKE '22023 %') FROM unnest(ARRAY[
        $s$ jobq.push('errors', delay => 'infinity') $s$, $s$ jobq.push('errors', delay => '-infinity') $s$,
        $s$ jobq.pull('errors', lease => 'infinity') $s$, $s$ jobq.pull('errors', lease => '-infinity') $s$,
        $s$ jobq.extend('00000000-0000-7000-8000-000000000000', 1, 'infinity') $s$,
        $s$ jobq.fail('00000000-0000-7000-8000-000000000000', 1, retry_in => 'infinity') $s$,
        $s$ jobq.release('00000000-0000-7000-8000-000000000000', 1, 'infinity') $s$,
        $s$ jobq.create_queue('new', lease => 'infinity') $s$, $s$ jobq.create_queue('new', keep => 'infinity') $s$,
        $s$ jobq.retry_dead('errors', spread => 'infinity') $s$]) AS call);
END $$;

-- Numbers out of their range.
SELECT * FROM test.all_refused($$
jobq.pull('errors', 0)
jobq.pull('errors', -1)
jobq.pull('errors', 10001)
jobq.pull_any('{errors}', 0)
jobq.push('errors', priority => 32768)
jobq.push('errors', priority => -32769)
jobq.push('errors', options => '{"max_attempts": 0}')
jobq.push('errors', options => '{"max_attempts": 10001}')
jobq.push('errors', options => '{"max_attempts": 1.5}')
jobq.push('errors', options => '{"max_attempts": "3"}')
jobq.push('errors', options => '{"max_attempts": true}')
jobq.push('errors', options => '{"max_attempts": [3]}')
jobq.push('errors', options => '{"max_attempts": 99999999999999999999}')
jobq.create_queue('new', max_attempts => 0)
jobq.create_queue('new', max_attempts => 10001)
jobq.create_queue('new', options => '{"max_attempts": 1.5}')
jobq.create_queue('new', options => '{"max_attempts": "many"}')
jobq.create_queue('new', options => '{"retry_factor": 0.5}')
jobq.create_queue('new', options => '{"retry_factor": "NaN"}')
jobq.create_queue('new', options => '{"retry_jitter": 1.1}')
jobq.create_queue('new', options => '{"retry_jitter": -0.1}')
jobq.create_queue('new', options => '{"max_running": 0}')
jobq.create_queue('new', options => '{"types": []}')
jobq.create_queue('new', options => '{"types": {"t": 1}}')
jobq.create_queue('new', options => '{"types": {"t": null}}')
jobq.create_queue('new', options => '{"types": {"t": {"max_attempts": 0}}}')
jobq.create_queue('new', options => '{"types": {"t": {"retry_first": "later"}}}')
jobq.create_endpoint('new', 'http://127.0.0.1/', max_in_flight => 0)
jobq.create_endpoint('new', 'http://127.0.0.1/', options => '{"keep_response": -1}')
jobq.create_endpoint('new', 'http://127.0.0.1/', options => '{"keep_response": 1048577}')
jobq.extend('00000000-0000-7000-8000-000000000000', 1, progress => -1)
jobq.extend('00000000-0000-7000-8000-000000000000', 1, progress => 100.1)
jobq.extend('00000000-0000-7000-8000-000000000000', 1, progress => 'NaN')
jobq.retry_dead('errors', at_most => -1)
jobq.clear('errors', 'running')
jobq.clear('errors', 'nonsense')
$$);

-- Unknown keys, wrong kinds.
SELECT * FROM test.all_refused($$
jobq.push('errors', options => '{"max_attempt": 3}')
jobq.push('errors', options => '{"delay": "1 s"}')
jobq.push('errors', options => '[]')
jobq.push('errors', options => '"max_attempts"')
jobq.push('errors', options => 'null')
jobq.push_many('errors', '{}', options => '{"nonsense": 1}')
jobq.push_bytes('errors', 'x', options => '{"nonsense": 1}')
jobq.push('errors', options => '{"on_conflict": "ignore"}')
jobq.push('errors', options => '{"on_conflict": 1}')
jobq.push('errors', options => '{"endpoint": 5}')
jobq.push('errors', options => '{"pushed_by": 5}')
jobq.create_queue('new', options => '{"paused": true}')
jobq.create_queue('new', options => '[]')
jobq.create_queue('new', options => '{"types": {"t": {"lease": "1 s"}}}')
jobq.alter_queue('errors', options => '{"name": "other"}')
jobq.create_endpoint('new', 'http://127.0.0.1/', options => '{"nonsense": "x"}')
jobq.alter_endpoint('errors', options => 'true')
$$);

-- Names: too long by a byte, empty, with control characters; and other texts that go into a header.
SELECT * FROM test.all_refused($$
jobq.create_queue(repeat('q', 49))
jobq.create_queue(repeat('ü', 24) || 'q')
jobq.create_queue('')
jobq.create_queue(E'a\nb')
jobq.create_endpoint(repeat('e', 49), 'http://127.0.0.1/')
jobq.create_endpoint('', 'http://127.0.0.1/')
jobq.push('errors', type => repeat('t', 256))
jobq.push('errors', type => E'a\r\nx-b: c')
jobq.push('errors', type => E'a\x7f')
jobq.push_bytes('errors', 'x', E'text/plain\r\nx-b: c')
jobq.push_bytes('errors', 'x', '')
jobq.push_bytes('errors', 'x', repeat('t', 256))
jobq.push('errors', group_key => repeat('g', 1025))
jobq.push('errors', unique_key => repeat('u', 1025))
jobq.push_many('errors', '{1}', group_keys => ARRAY[repeat('g', 1025)])
jobq.push('errors', options => '{"pushed_by": "a\nb"}')
$$);

-- Headers: names and values that would break out of the request, or that jobq sets itself.
SELECT * FROM test.all_refused($$
jobq.push('errors', options => '{"headers": {"x-a": "b\r\nx-c: d"}}')
jobq.push('errors', options => '{"headers": {"x-a": "b\u0001"}}')
jobq.push('errors', options => '{"headers": {"x-a\r\nx-c": "b"}}')
jobq.push('errors', options => '{"headers": {"x a": "b"}}')
jobq.push('errors', options => '{"headers": {"": "b"}}')
jobq.push('errors', options => '{"headers": {"x-a": 1}}')
jobq.push('errors', options => '{"headers": {"x-a": null}}')
jobq.push('errors', options => '{"headers": {"x-a": ["b"]}}')
jobq.push('errors', options => '{"headers": []}')
jobq.push('errors', options => '{"headers": "x-a: b"}')
jobq.push('errors', options => '{"headers": {"Webhook-Id": "b"}}')
jobq.push('errors', options => '{"headers": {"JOBQ-Queue": "b"}}')
jobq.push('errors', options => '{"headers": {"host": "b"}}')
jobq.push('errors', options => '{"headers": {"content-length": "1"}}')
jobq.push('errors', options => '{"headers": {"transfer-encoding": "chunked"}}')
jobq.push('errors', options => jsonb_build_object('headers', (SELECT jsonb_object_agg('x-' || n, 'b') FROM generate_series(1, 65) AS n)))
jobq.push('errors', options => jsonb_build_object('headers', (SELECT jsonb_object_agg('x-' || n, repeat('b', 8190)) FROM generate_series(1, 2) AS n)))
jobq.push('errors', options => jsonb_build_object('headers', jsonb_build_object('x-a', repeat('b', 8193))))
jobq.create_endpoint('new', 'http://127.0.0.1/', headers => (SELECT jsonb_object_agg('x-' || n, 'b') FROM generate_series(1, 65) AS n))
jobq.create_endpoint('new', 'http://127.0.0.1/', headers => '{"x-a": "b\nc"}')
jobq.create_endpoint('new', 'http://127.0.0.1/', headers => '[]')
jobq.create_endpoint('new', 'http://127.0.0.1/', headers => 'null')
jobq.alter_endpoint('errors', headers => '{"webhook-signature": "x"}')
$$);

-- URLs: other schemes, no host, credentials, blanks, nonsense.
SELECT * FROM test.all_refused($$
jobq.create_endpoint('new', '')
jobq.create_endpoint('new', 'example.com')
jobq.create_endpoint('new', 'ftp://example.com/')
jobq.create_endpoint('new', 'file:///etc/passwd')
jobq.create_endpoint('new', 'gopher://127.0.0.1:6379/')
jobq.create_endpoint('new', 'javascript:alert(1)')
jobq.create_endpoint('new', 'http://')
jobq.create_endpoint('new', 'http:///path')
jobq.create_endpoint('new', 'http:/example.com')
jobq.create_endpoint('new', 'http://user:password@example.com/')
jobq.create_endpoint('new', 'http://example.com:0/')
jobq.create_endpoint('new', 'http://example.com:65536/')
jobq.create_endpoint('new', 'http://example.com:http/')
jobq.create_endpoint('new', 'http://example.com/a b')
jobq.create_endpoint('new', E'http://example.com/\r\nx-a: b')
jobq.create_endpoint('new', 'http://[::1/')
jobq.create_endpoint('new', 'http://example.com/' || repeat('x', 10000))
jobq.alter_endpoint('errors', 'ftp://example.com/')
$$);

-- Arrays: lengths that differ, more than one dimension.
SELECT * FROM test.all_refused($$
jobq.push_many('errors', '{1, 2}', types => '{a}')
jobq.push_many('errors', '{1, 2}', group_keys => '{}')
jobq.push_many('errors', '{1, 2}', unique_keys => '{a, b, c}')
jobq.push_many('errors', '{1}', run_ats => '{now, now}')
jobq.push_many('errors', '{{1, 2}, {3, 4}}')
jobq.push_many('errors', '{1, 2, 3, 4}', types => '{{a, b}, {c, d}}')
jobq.pull_any('{{errors}}')
jobq.complete_many('{00000000-0000-7000-8000-000000000000}', '{}')
jobq.complete_many('{00000000-0000-7000-8000-000000000000}', '{1}', '{}')
jobq.complete_many('{{00000000-0000-7000-8000-000000000000}}', '{{1}}')
jobq.fail_many('{00000000-0000-7000-8000-000000000000}', '{1}', '{a, b}')
jobq.bury_many('{}', '{1}')
jobq.extend_many('{}', '{1}')
jobq.release_many('{00000000-0000-7000-8000-000000000000}', '{}')
$$);

-- Jobs that do not exist, and the _many for them, which find nothing to do.
SELECT * FROM test.all_refused($$
jobq.complete('00000000-0000-7000-8000-000000000000', 1)
jobq.fail('00000000-0000-7000-8000-000000000000', 1)
jobq.extend('00000000-0000-7000-8000-000000000000', 1)
jobq.release('00000000-0000-7000-8000-000000000000', 1)
jobq.bury('00000000-0000-7000-8000-000000000000', 1)
jobq.cancel('00000000-0000-7000-8000-000000000000')
jobq.retry('00000000-0000-7000-8000-000000000000')
count(*) FROM jobq.complete_many('{00000000-0000-7000-8000-000000000000}', '{1}')
count(*) FROM jobq.fail_many('{00000000-0000-7000-8000-000000000000}', '{1}')
$$);

-- Functions that are not for calling, called.
SELECT * FROM test.all_refused($$
jobq.push_row()
jobq.settings_changed()
$$);

-- A name that exists already.
SELECT * FROM test.all_refused($$
jobq.create_queue('errors')
jobq.create_endpoint('errors', 'http://127.0.0.1/')
$$);

-- Nothing of all this has left a trace: one job, one queue, one endpoint, as they were.
SELECT payload, state, attempt FROM jobq.jobs WHERE queue = 'errors';
SELECT count(*) FROM jobq.queue WHERE name = 'new' OR name ~ '^(q+|ü+q)$';
SELECT count(*) FROM jobq.endpoint WHERE name IN ('new', '');
SELECT max_attempts, lease FROM jobq.queue WHERE name = 'errors';
SELECT url, headers FROM jobq.endpoint WHERE name = 'errors';

-- An error inside a transaction aborts it like any other, and a savepoint saves the rest.
BEGIN;
SELECT jobq.push('errors', '"saved"') IS NOT NULL;
SAVEPOINT s;
\set VERBOSITY terse
SELECT jobq.push('nosuch');
SELECT jobq.push('errors');
ROLLBACK TO s;
SELECT jobq.push('errors', '"saved too"') IS NOT NULL;
COMMIT;
SELECT payload FROM jobq.pull('errors', 10);

-- PL/pgSQL catches them by their names.
DO $$ BEGIN
    PERFORM jobq.push('nosuch');
EXCEPTION WHEN undefined_object THEN RAISE NOTICE 'caught: %', SQLERRM;
END $$;
-- A thousand errors later the session is as it was.
DO $$ BEGIN
    FOR i IN 1..1000 LOOP
        BEGIN
            PERFORM jobq.push('errors', options => '{"nonsense": 1}');
        EXCEPTION WHEN invalid_parameter_value THEN NULL;
        END;
    END LOOP;
END $$;
SELECT jobq.push('errors') IS NOT NULL;
DROP FUNCTION test.all_refused;
