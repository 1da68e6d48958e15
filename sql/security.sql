\set ECHO none
\getenv here PG_ABS_SRCDIR
\set setup :here '/sql/setup.inc'
\i :setup
\set ECHO all
-- Who may do what, and what a stranger cannot make the owner do.
DO $$ BEGIN
    PERFORM jobq.create_queue('security');
    PERFORM jobq.create_endpoint('security', 'http://127.0.0.1:1/', options => '{"enabled": false}');
END $$;
CREATE ROLE regress_jobq_pusher;
CREATE ROLE regress_jobq_worker;
CREATE ROLE regress_jobq_reader;
CREATE ROLE regress_jobq_admin;
CREATE ROLE regress_jobq_evil;
GRANT USAGE ON SCHEMA test TO PUBLIC;

-- A role without grants: nothing at all.
SET ROLE regress_jobq_evil;
SELECT test.refused($$SELECT jobq.push('security')$$);
SELECT test.refused($$SELECT * FROM jobq.jobs$$);
RESET ROLE;

-- With USAGE alone: every function and table is still closed.
GRANT USAGE ON SCHEMA jobq TO regress_jobq_pusher, regress_jobq_worker, regress_jobq_reader, regress_jobq_admin, regress_jobq_evil;
SET ROLE regress_jobq_evil;
SELECT test.refused($$SELECT * FROM jobq.queue_stats(1)$$);
SELECT count(*) > 40 AS functions, bool_and(has_function_privilege(p.oid, 'EXECUTE') = (p.proname IN ('created_at', 'queue_stats', 'endpoint_state'))) AS closed
FROM pg_proc AS p WHERE p.pronamespace = 'jobq'::regnamespace;
SELECT count(*) > 10 AS relations, bool_or(CASE relkind WHEN 'S' THEN has_sequence_privilege(oid, 'USAGE, SELECT, UPDATE')
    ELSE has_table_privilege(oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER') END) AS open
FROM pg_class WHERE relnamespace = 'jobq'::regnamespace AND relkind IN ('r', 'v', 'S');
SELECT test.refused($$SELECT jobq.push('security')$$);
SELECT test.refused($$SELECT jobq.pull('security')$$);
SELECT test.refused($$SELECT jobq.wake(1, 'security')$$);
SELECT test.refused($$SELECT jobq.adopt()$$);
SELECT test.refused($$SELECT * FROM jobq.job$$);
SELECT test.refused($$SELECT * FROM jobq.endpoint$$);
SELECT test.refused($$SELECT * FROM jobq.secret$$);
SELECT test.refused($$SELECT jobq.secrets('security')$$);
SELECT test.refused($$SET jobq.max_payload = 1$$);
CREATE TEMP TABLE mine (id int);
SELECT test.refused($$CREATE TRIGGER t AFTER INSERT ON mine FOR EACH ROW EXECUTE FUNCTION jobq.push_row('security')$$);
RESET ROLE;

-- Who may push pushes, and can neither read, pull nor cancel.
GRANT EXECUTE ON FUNCTION jobq.push, jobq.push_many, jobq.push_bytes TO regress_jobq_pusher;
SET ROLE regress_jobq_pusher;
SELECT jobq.push('security', '1') AS id \gset
SELECT count(*) FROM jobq.push_many('security', '{2, 3}', unique_keys => '{a, a}');
SELECT jobq.push('security', unique_key => 'a', options => '{"on_conflict": "replace"}') IS NOT NULL AS replaced;
SELECT jobq.push_bytes('security', '\x00') IS NOT NULL AS pushed;
SELECT test.refused($$SELECT jobq.pull('security')$$);
SELECT test.refused(format('SELECT jobq.cancel(%L)', :'id'));
SELECT test.refused(format('SELECT jobq.job(%L)', :'id'));
SELECT current_user;
RESET ROLE;

-- Who may pull works, and sees no table.
GRANT EXECUTE ON FUNCTION jobq.pull, jobq.complete, jobq.fail, jobq.extend, jobq.release, jobq.bury, jobq.pull_held, jobq.complete_many TO regress_jobq_worker;
SET ROLE regress_jobq_worker;
SELECT id, attempt, payload FROM jobq.pull('security', worker => 'security-w') \gset
SELECT :payload AS payload, (SELECT count(*) FROM jobq.pull_held('security-w')) AS held;
SELECT jobq.extend(:'id', :attempt) IS NOT NULL AS extended;
SELECT jobq.fail(:'id', :attempt, 'no', '0') IS NOT NULL AS failed;
SELECT count(c) FROM (SELECT jobq.complete_many(array_agg(id), array_agg(attempt)) AS c FROM jobq.pull('security', 10)) AS x;
SELECT test.refused($$SELECT * FROM jobq.jobs$$);
SELECT test.refused($$SELECT jobq.push('security')$$);
RESET ROLE;

-- Who may read reads: SELECT on the views is enough.
GRANT SELECT ON jobq.jobs, jobq.attempts, jobq.stats TO regress_jobq_reader;
SET ROLE regress_jobq_reader;
SELECT payload, state, pushed_by, created_at IS NOT NULL AS created FROM jobq.jobs WHERE queue = 'security' AND payload = '1';
SELECT count(*) AS attempts FROM jobq.attempts WHERE id = :'id';
SELECT due, dead FROM jobq.stats WHERE queue = 'security';
SELECT test.refused($$SELECT * FROM jobq.endpoint$$);
RESET ROLE;

-- Who may change settings does, with an UPDATE, and the checks run as well.
GRANT SELECT, UPDATE ON jobq.queue, jobq.endpoint TO regress_jobq_admin;
SET ROLE regress_jobq_admin;
UPDATE jobq.queue SET max_attempts = 3 WHERE name = 'security';
UPDATE jobq.endpoint SET max_in_flight = 3 WHERE name = 'security';
SELECT test.refused($$UPDATE jobq.queue SET max_attempts = 0 WHERE name = 'security'$$);
SELECT test.refused($$UPDATE jobq.endpoint SET url = 'ftp://127.0.0.1/' WHERE name = 'security'$$);
SELECT test.refused($$SELECT jobq.alter_queue('security', max_attempts => 4)$$);
RESET ROLE;
SELECT max_attempts FROM jobq.queue WHERE name = 'security';

-- Functions and operators of a stranger that stand before those of PostgreSQL in the caller's search_path are never run.
CREATE SCHEMA evil AUTHORIZATION regress_jobq_evil;
SET ROLE regress_jobq_evil;
CREATE TABLE evil.caught (who text, what text);
GRANT INSERT, SELECT ON evil.caught TO PUBLIC;
GRANT USAGE ON SCHEMA evil TO PUBLIC;
DO $do$
DECLARE
    op record;
    f record;
BEGIN
    FOR op IN SELECT o.oprname, o.oprleft::regtype AS l, o.oprright::regtype AS r, o.oprresult::regtype AS result, o.oprcode::oid::regproc AS code
              FROM pg_operator AS o
              WHERE o.oprnamespace = 'pg_catalog'::regnamespace
                AND (o.oprname IN ('=', '<>', '<', '>', '<=', '>=', '+', '-', '||', '->', '->>', '?', '*')
                     AND o.oprleft IN ('text'::regtype, 'uuid'::regtype, 'timestamptz'::regtype, 'interval'::regtype, 'int4'::regtype, 'int2'::regtype,
                                       'int8'::regtype, 'jsonb'::regtype, 'numeric'::regtype)
                     AND o.oprright IN ('text'::regtype, 'uuid'::regtype, 'timestamptz'::regtype, 'interval'::regtype, 'int4'::regtype, 'int2'::regtype,
                                       'int8'::regtype, 'jsonb'::regtype, 'numeric'::regtype, 'float8'::regtype)) LOOP
        EXECUTE format($f$CREATE FUNCTION evil.%I(%s, %s) RETURNS %s LANGUAGE plpgsql AS
            $b$BEGIN INSERT INTO evil.caught VALUES (current_user, %L); RETURN pg_catalog.%s($1, $2); END$b$ $f$,
            'op_' || md5(op.oprname || op.l || op.r), op.l, op.r, op.result, op.oprname, op.code);
        EXECUTE format('CREATE OPERATOR evil.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = evil.%I)', op.oprname, op.l, op.r, 'op_' || md5(op.oprname || op.l || op.r));
    END LOOP;
    FOR f IN SELECT * FROM (VALUES ('clock_timestamp', '', 'timestamptz'), ('now', '', 'timestamptz'), ('nextval', 'text', 'bigint'), ('nextval', 'regclass', 'bigint'),
                ('jsonb_typeof', 'jsonb', 'text'), ('jsonb_strip_nulls', 'jsonb', 'jsonb'), ('format', 'text, text', 'text'), ('random', '', 'float8'),
                ('count', 'int', 'bigint'), ('current_database', '', 'name'), ('cardinality', 'uuid[]', 'int'), ('isfinite', 'interval', 'boolean')) AS v (name, args, result) LOOP
        EXECUTE format($f$CREATE FUNCTION evil.%I(%s) RETURNS %s LANGUAGE plpgsql AS
            $b$BEGIN INSERT INTO evil.caught VALUES (current_user, %L); RETURN NULL; END$b$ $f$, f.name, f.args, f.result, f.name);
    END LOOP;
END $do$;
RESET ROLE;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA jobq TO regress_jobq_evil;
-- In a new session, so that no plan has been made yet. In evil's schema the test's own statements are written out in full.
\c -
SET ROLE regress_jobq_evil;
SET search_path = evil, pg_catalog;
SELECT 1 OPERATOR(pg_catalog.=) 1 AS still_here;
SELECT 1 = 1 AS trapped;
SELECT jobq.create_endpoint('evil', 'http://127.0.0.1:1/', headers => '{"x-a": "b"}', options => '{"enabled": false}');
SELECT jobq.create_queue('evil', max_attempts => 3, options => '{"types": {"t": {"max_attempts": 2}}}'), jobq.create_queue('evil_delivered', endpoint => 'evil');
SELECT jobq.push('evil', '1', 't', group_key => 'g', unique_key => 'u', options => '{"headers": {"x-a": "b"}, "expires_at": "2100-01-01"}') AS id \gset
SELECT jobq.push('evil', '1', 't', unique_key => 'u') IS NOT NULL, jobq.push('evil', '2', 't', unique_key => 'u', options => '{"on_conflict": "replace"}') IS NOT NULL;
SELECT jobq.push_many('evil', '{3, 4, 5, 6}', unique_keys => '{c, b, NULL, NULL}') IS NOT NULL AS pushed;
SELECT jobq.push_many('evil', '{7, 8}') IS NOT NULL AS pushed;
SELECT jobq.push_bytes('evil', '\x00') IS NOT NULL, jobq.push('evil_delivered', options => '{"endpoint": "evil"}') IS NOT NULL;
SELECT id, attempt FROM jobq.pull('evil', 1, types => '{t}', worker => 'security-w') \gset
SELECT jobq.extend(:'id', :attempt, '1 min', 50, 'half') IS NOT NULL, jobq.fail(:'id', :attempt, 'no', '0') IS NOT NULL;
SELECT (p).attempt FROM (SELECT jobq.pull_any('{evil}', 1) AS p) AS x;
SELECT (p).payload FROM (SELECT jobq.pull_held('security-w') AS p) AS x;
SELECT id, attempt FROM jobq.pull('evil', 1, worker => 'security-w') \gset
SELECT jobq.release(:'id', :attempt) IS NOT NULL;
SELECT id, attempt FROM jobq.pull('evil', 1, worker => 'security-w') \gset
SELECT jobq.bury(:'id', :attempt);
SELECT jobq.retry(:'id');
SELECT id, attempt FROM jobq.pull('evil', 1, worker => 'security-w') \gset
SELECT jobq.bury(:'id', :attempt), jobq.retry_dead('evil', types => '{t}', spread => '1 s'), jobq.retry_dead('evil');
SELECT id, attempt FROM jobq.pull('evil', 1) \gset
SELECT jobq.complete(:'id', :attempt, '{}');
SELECT id, attempt FROM jobq.pull('evil', 1) \gset
SELECT jobq.cancel(:'id');
SELECT jobq.maintain() IS NOT NULL, jobq.pause('evil'), jobq.resume('evil'), jobq.alter_queue('evil', lease => '1 min', options => '{"keep": null}');
SELECT jobq.alter_endpoint('evil', timeout => '1 s', options => '{"rate": 5, "retry_waits": ["1 s"], "final_statuses": ["4xx"], "ca_file": "/ca", "proxy": "http://127.0.0.1:1"}');
SELECT jobq.rotate_secret('evil') IS NOT NULL, jobq.rotate_secret('evil', '0') IS NOT NULL, (jobq.secrets('evil')).secret IS NOT NULL;
SELECT (j).state FROM (SELECT jobq.job(:'id') AS j) AS x;
SELECT jobq.clear('evil') > 0 AS cleared;
SELECT jobq.clear('evil', 'completed') IS NOT NULL, jobq.clear('evil_delivered') IS NOT NULL, jobq.clear('evil', 'dead') IS NOT NULL;
SELECT jobq.drop_queue('evil', force => true), jobq.drop_queue('evil_delivered', force => true), jobq.drop_endpoint('evil');
RESET ROLE;
RESET search_path;
-- Evil's own statements above fell into its traps; nobody else's did.
SELECT who, count(*) > 0 AS some FROM evil.caught GROUP BY who;

-- A cast or output function of the writer's runs as the writer, not as the owner of jobq.
SET ROLE regress_jobq_evil;
CREATE TYPE evil.thing AS ENUM ('it');
CREATE FUNCTION evil.to_json(evil.thing) RETURNS json LANGUAGE plpgsql AS $$ BEGIN INSERT INTO evil.caught VALUES (current_user, 'cast'); RETURN '{"cast": true}'; END $$;
RESET ROLE;
CREATE CAST (evil.thing AS json) WITH FUNCTION evil.to_json(evil.thing);
TRUNCATE evil.caught;
SET ROLE regress_jobq_evil;
CREATE TABLE evil.things (thing evil.thing);
CREATE TRIGGER pushed AFTER INSERT ON evil.things FOR EACH ROW EXECUTE FUNCTION jobq.push_row('security', 'thing');
INSERT INTO evil.things VALUES ('it');
RESET ROLE;
SELECT who, what FROM evil.caught;
SELECT payload, pushed_by FROM jobq.jobs WHERE queue = 'security' AND type = 'thing';

-- Afterwards the caller is who it was, also after an error in the middle.
SET ROLE regress_jobq_pusher;
SELECT jobq.push('security') IS NOT NULL AS pushed, current_user;
SELECT test.refused($$SELECT jobq.push('security', options => '{"endpoint": "nosuch"}')$$);
SELECT current_user;
SELECT test.refused($$DELETE FROM jobq.job$$);
RESET ROLE;
SHOW search_path;

SET client_min_messages = warning;
DROP SCHEMA evil CASCADE;
DROP OWNED BY regress_jobq_pusher, regress_jobq_worker, regress_jobq_reader, regress_jobq_admin, regress_jobq_evil;
DROP ROLE regress_jobq_pusher, regress_jobq_worker, regress_jobq_reader, regress_jobq_admin, regress_jobq_evil;
