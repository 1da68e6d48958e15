-- The extension itself: created, dropped, created again; what it gives to whom. Without the preload the
-- notice at its creation is part of the output (install.out), with it there is none (install_1.out).
SET client_min_messages = warning;
DROP EXTENSION IF EXISTS jobq CASCADE;
RESET client_min_messages;

-- It says what is missing, if something is, and what works meanwhile.
CREATE EXTENSION jobq;

-- Rolled back it leaves nothing and says nothing.
DROP EXTENSION jobq;
BEGIN;
CREATE EXTENSION jobq;
ROLLBACK;
SELECT (SELECT count(*) FROM pg_extension WHERE extname = 'jobq') AS extensions, (SELECT count(*) FROM pg_class WHERE relnamespace = to_regnamespace('jobq')) AS relations;

-- Not into a schema where somebody else could put functions of his own beside those that run as the owner.
DROP SCHEMA IF EXISTS jobq;
CREATE ROLE regress_jobq_stranger;
CREATE SCHEMA jobq AUTHORIZATION regress_jobq_stranger;
\set VERBOSITY terse
CREATE EXTENSION jobq;
ALTER SCHEMA jobq OWNER TO CURRENT_USER;
GRANT CREATE ON SCHEMA jobq TO PUBLIC;
CREATE EXTENSION jobq;
-- ... nor where he could and did, even if he cannot any more: this one would be called instead of jobq.check_number(text, numeric...).
ALTER SCHEMA jobq OWNER TO regress_jobq_stranger;
SET ROLE regress_jobq_stranger;
CREATE FUNCTION jobq.check_number(name text, value int, low int, high int) RETURNS void LANGUAGE sql AS 'SELECT';
RESET ROLE;
ALTER SCHEMA jobq OWNER TO CURRENT_USER;
REVOKE CREATE ON SCHEMA jobq FROM PUBLIC;
CREATE EXTENSION jobq;
DROP FUNCTION jobq.check_number;
-- Whatever it is.
CREATE OPERATOR jobq.=== (LEFTARG = oid, RIGHTARG = oid, FUNCTION = oideq);
CREATE EXTENSION jobq;
DROP OPERATOR jobq.=== (oid, oid);
CREATE TYPE jobq.job_state AS ENUM ();
CREATE EXTENSION jobq;
DROP TYPE jobq.job_state;
CREATE TABLE jobq.anything (id int);
CREATE EXTENSION jobq;
DROP TABLE jobq.anything;
ALTER DEFAULT PRIVILEGES IN SCHEMA jobq GRANT ALL ON TABLES TO regress_jobq_stranger;
CREATE EXTENSION jobq;
ALTER DEFAULT PRIVILEGES IN SCHEMA jobq REVOKE ALL ON TABLES FROM regress_jobq_stranger;
-- An empty one is what pg_restore makes.
SET client_min_messages = warning;
CREATE EXTENSION jobq;
DROP EXTENSION jobq;
RESET client_min_messages;
\set VERBOSITY default
DROP SCHEMA jobq;
DROP ROLE regress_jobq_stranger;

-- It lives in its own schema and nowhere else.
\set VERBOSITY terse
CREATE EXTENSION jobq SCHEMA public;
\set VERBOSITY default
CREATE EXTENSION jobq;
SELECT count(*) AS elsewhere FROM pg_depend AS d
LEFT JOIN pg_class AS c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid
LEFT JOIN pg_proc AS p ON d.classid = 'pg_proc'::regclass AND p.oid = d.objid
LEFT JOIN pg_type AS t ON d.classid = 'pg_type'::regclass AND t.oid = d.objid
WHERE d.refclassid = 'pg_extension'::regclass AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'jobq') AND d.deptype = 'e'
  AND 'jobq'::regnamespace NOT IN (coalesce(c.relnamespace, 0), coalesce(p.pronamespace, 0), coalesce(t.typnamespace, 0))
  AND d.classid <> 'pg_namespace'::regclass AND d.objid NOT IN (SELECT oid FROM pg_namespace WHERE nspname = 'jobq');

-- The library speaks of itself, and the SQL runs, with the preload or without.
SELECT jobq.preloaded() IN (true, false) AS preloaded, count(*) > 0 AS status FROM jobq.status();
SELECT jobq.create_queue('install');
SELECT jobq.push('install', '1', unique_key => 'k', group_key => 'g') IS NOT NULL AS pushed;
SELECT payload FROM jobq.pull('install');

-- PUBLIC has nothing: no schema, table, view or sequence, and of the functions only the one that the views call.
SELECT has_schema_privilege('public', 'jobq', 'USAGE') AS usage, has_schema_privilege('public', 'jobq', 'CREATE') AS create;
SELECT c.oid::regclass FROM pg_class AS c WHERE c.relnamespace = 'jobq'::regnamespace AND c.relkind IN ('r', 'v', 'S', 'p', 'm')
  AND EXISTS (SELECT FROM aclexplode(coalesce(c.relacl, acldefault(CASE c.relkind WHEN 'S' THEN 'S' ELSE 'r' END::"char", c.relowner))) AS a WHERE a.grantee = 0);
SELECT p.oid::regprocedure FROM pg_proc AS p WHERE p.pronamespace = 'jobq'::regnamespace AND has_function_privilege('public', p.oid, 'EXECUTE');

-- What runs as its owner pins what names mean: in its settings, or, in C, by itself.
SELECT p.oid::regprocedure FROM pg_proc AS p JOIN pg_language AS l ON l.oid = p.prolang
WHERE p.pronamespace = 'jobq'::regnamespace AND p.prosecdef AND l.lanname <> 'c' AND NOT coalesce(p.proconfig::text LIKE '%"search_path=pg_catalog, pg_temp"%', false);

-- Every table with data of the user's is dumped; what the extension owns can be told by extconfig.
SELECT c.oid::regclass FROM pg_class AS c
WHERE c.relnamespace = 'jobq'::regnamespace AND c.relkind IN ('r', 'S')
  AND c.oid <> ALL ((SELECT extconfig FROM pg_extension WHERE extname = 'jobq')::oid[]);

-- Only a superuser makes it.
CREATE ROLE regress_jobq_nobody;
SET client_min_messages = warning;
DROP EXTENSION jobq;
RESET client_min_messages;
SET ROLE regress_jobq_nobody;
\set VERBOSITY terse
CREATE EXTENSION jobq;
\set VERBOSITY default
RESET ROLE;
DROP ROLE regress_jobq_nobody;

-- Dropped and created again in the session that used it: nothing remembers the old tables.
SET client_min_messages = warning;
CREATE EXTENSION jobq;
RESET client_min_messages;
SELECT jobq.push('install');
SELECT jobq.create_queue('install');
SELECT jobq.push('install', '2', unique_key => 'k', group_key => 'g') IS NOT NULL AS pushed;
SELECT count(*) FROM jobq.push_many('install', '{3, 4}');
SELECT payload FROM jobq.pull('install', 10);
SELECT count(*) FROM (SELECT jobq.complete(id, attempt) FROM jobq.jobs WHERE state = 'running') AS c;
SELECT payload, state FROM jobq.jobs ORDER BY id;
-- ... also within one transaction, with a push before and after.
BEGIN;
SELECT jobq.push('install') IS NOT NULL AS pushed;
DROP EXTENSION jobq;
CREATE EXTENSION jobq;
SELECT jobq.create_queue('install');
SELECT jobq.push('install', '5') IS NOT NULL AS pushed;
SELECT payload FROM jobq.pull('install', 10);
ROLLBACK;
SELECT payload, state FROM jobq.jobs ORDER BY id;

-- Objects that use it hold it, as they should.
CREATE TABLE uses (id int);
CREATE TRIGGER pushed AFTER INSERT ON uses FOR EACH ROW EXECUTE FUNCTION jobq.push_row('install');
\set VERBOSITY terse
DROP EXTENSION jobq;
\set VERBOSITY default
DROP TABLE uses;
