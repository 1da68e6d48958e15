\set ECHO none
\getenv here PG_ABS_SRCDIR
\set setup :here '/sql/setup.inc'
\i :setup
\set ECHO all
-- Triggers: jobq.push_row for each row and for each statement.
DO $$ BEGIN PERFORM jobq.create_queue('rows'); END $$;

-- The next jobs of the queue, each completed.
CREATE FUNCTION test.rows() RETURNS TABLE (payload jsonb, type text, group_key text, unique_key text, priority smallint) LANGUAGE plpgsql AS $$
DECLARE
    job jobq.pulled;
BEGIN
    FOR job IN SELECT * FROM jobq.pull('rows', 1000, at => 'infinity') LOOP
        RETURN QUERY SELECT j.payload, j.type, j.group_key, j.unique_key, j.priority FROM jobq.job(job.id) AS j;
        PERFORM jobq.complete(job.id, job.attempt);
    END LOOP;
END $$;

-- For each row: the row as JSON, of the type given; a row that was not written is none.
CREATE TABLE orders (id int PRIMARY KEY, customer text, total numeric(10, 2), placed timestamptz, tags text[], extra jsonb);
CREATE TRIGGER pushed AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION jobq.push_row('rows', 'created');
INSERT INTO orders VALUES (1, 'ada', 9.90, '2020-01-02 03:04:05+00', '{a, "b c"}', '{"x": [1, null]}'), (2, 'grüße "😀"', NULL, NULL, NULL, NULL);
INSERT INTO orders VALUES (1), (3) ON CONFLICT DO NOTHING;
SELECT payload - 'placed' AS payload, type, group_key, unique_key, priority, (payload->>'placed')::timestamptz = '2020-01-02 03:04:05+00' AS placed FROM test.rows();
-- ... and exactly what to_jsonb makes of it.
INSERT INTO orders VALUES (4, 'bob', 0.10, '2020-02-03', '{}', 'null');
SELECT r.payload = to_jsonb(o) AS same FROM test.rows() AS r, orders AS o WHERE o.id = 4;

-- UPDATE pushes the new row, DELETE the old one; conditions of the trigger hold.
DROP TRIGGER pushed ON orders;
CREATE TRIGGER changed AFTER UPDATE OF total ON orders FOR EACH ROW WHEN (OLD.total IS DISTINCT FROM NEW.total)
    EXECUTE FUNCTION jobq.push_row('rows', 'changed', '{"columns": ["id", "total"]}');
CREATE TRIGGER gone AFTER DELETE ON orders FOR EACH ROW EXECUTE FUNCTION jobq.push_row('rows', 'gone', '{"columns": ["id"]}');
UPDATE orders SET total = 5 WHERE id = 1;
UPDATE orders SET total = 5 WHERE id = 1;
UPDATE orders SET customer = 'eve' WHERE id = 1;
DELETE FROM orders WHERE id = 1;
SELECT payload, type FROM test.rows();

-- Options: which columns are sent, in whose order; which give type, group and unique key; delay and priority; those of push.
DROP TRIGGER changed ON orders; DROP TRIGGER gone ON orders;
CREATE TRIGGER pushed AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION jobq.push_row('rows', 'otherwise',
    '{"columns": ["total", "id"], "type_column": "extra", "group_column": "customer", "unique_column": "id", "delay": "1 h", "priority": 7,
      "max_attempts": 2, "headers": {"x-a": "b"}, "pushed_by": "shop", "expires_at": "2100-01-01", "on_conflict": "replace"}');
INSERT INTO orders (id, customer, total, extra) VALUES (10, 'ada', 1, '"typed"'), (11, NULL, 2, NULL);
SELECT payload, type, group_key, unique_key, priority, max_attempts, headers, pushed_by, expires_at::date AS expires_at, test.is_in(run_at, '1 h') AS in_an_hour
FROM jobq.jobs WHERE queue = 'rows' AND state = 'queued' ORDER BY id;
-- on_conflict holds for the rows' unique keys: the later row takes the waiting job's place.
DELETE FROM orders WHERE id = 11;
INSERT INTO orders (id, total) VALUES (11, 99);
SELECT payload, unique_key FROM test.rows();

-- An empty type is none; the type column's NULL falls back to the type given.
DROP TRIGGER pushed ON orders;
CREATE TRIGGER pushed AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION jobq.push_row('rows', '', '{"columns": ["id"]}');
INSERT INTO orders (id) VALUES (20);
SELECT payload, type IS NULL AS no_type FROM test.rows();

-- COPY fires it, MERGE and INSERT ... ON CONFLICT DO UPDATE do, and a rollback takes it back.
COPY orders (id) FROM stdin;
21
22
\.
MERGE INTO orders USING (VALUES (22), (23)) AS v (n) ON id = n WHEN MATCHED THEN UPDATE SET total = 1 WHEN NOT MATCHED THEN INSERT (id) VALUES (n);
INSERT INTO orders (id) VALUES (23), (24) ON CONFLICT (id) DO UPDATE SET total = 2;
BEGIN;
INSERT INTO orders (id) VALUES (25);
ROLLBACK;
SELECT payload FROM test.rows();

-- For each statement with a transition table: one job a row, none for no row, in one go.
DROP TRIGGER pushed ON orders;
CREATE TRIGGER pushed AFTER INSERT ON orders REFERENCING NEW TABLE AS made FOR EACH STATEMENT
    EXECUTE FUNCTION jobq.push_row('rows', 'made', '{"columns": ["id", "customer"], "group_column": "customer"}');
CREATE TRIGGER changed AFTER UPDATE ON orders REFERENCING OLD TABLE AS was NEW TABLE AS became FOR EACH STATEMENT
    EXECUTE FUNCTION jobq.push_row('rows', 'changed', '{"columns": ["id", "customer"]}');
CREATE TRIGGER gone AFTER DELETE ON orders REFERENCING OLD TABLE AS lost FOR EACH STATEMENT
    EXECUTE FUNCTION jobq.push_row('rows', 'gone', '{"columns": ["id"]}');
INSERT INTO orders (id, customer) VALUES (30, 'ada'), (31, 'bob'), (32, NULL);
SELECT payload, type, group_key FROM test.rows();
INSERT INTO orders SELECT WHERE false;
UPDATE orders SET customer = 'eve' WHERE id < 0;
DELETE FROM orders WHERE id < 0;
SELECT count(*) FROM test.rows();
UPDATE orders SET customer = 'eve' WHERE id IN (30, 31);
DELETE FROM orders WHERE id IN (30, 31);
SELECT payload, type FROM test.rows();
INSERT INTO orders (id) SELECT generate_series(1001, 2000);
SELECT count(*), min((payload->>'id')::int), max((payload->>'id')::int) FROM test.rows();
COPY orders (id) FROM stdin;
3001
3002
\.
SELECT payload FROM test.rows();
-- ... also where another trigger reads the same transition table first.
CREATE FUNCTION test.count_rows() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE '% rows', (SELECT count(*) FROM made); RETURN NULL; END $$;
CREATE TRIGGER a_first AFTER INSERT ON orders REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION test.count_rows();
CREATE TRIGGER z_last AFTER INSERT ON orders REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION test.count_rows();
INSERT INTO orders (id) VALUES (3003), (3004);
SELECT payload FROM test.rows();

-- A table whose columns were dropped and added.
CREATE TABLE changing (a int, b int, c int);
ALTER TABLE changing DROP COLUMN a;
ALTER TABLE changing ADD COLUMN d text DEFAULT 'd';
CREATE TRIGGER pushed AFTER INSERT ON changing FOR EACH ROW EXECUTE FUNCTION jobq.push_row('rows');
CREATE TRIGGER pushed_once AFTER INSERT ON changing REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION jobq.push_row('rows');
INSERT INTO changing VALUES (1, 2);
ALTER TABLE changing DROP COLUMN b;
ALTER TABLE changing ADD COLUMN "E e" boolean;
INSERT INTO changing VALUES (3, 'x', true);
SELECT payload FROM test.rows();

-- Stored generated columns are sent as they were computed.
CREATE TABLE generated (a int, b int GENERATED ALWAYS AS (a * 2) STORED, c int GENERATED ALWAYS AS IDENTITY);
CREATE TRIGGER pushed AFTER INSERT OR UPDATE ON generated FOR EACH ROW EXECUTE FUNCTION jobq.push_row('rows', '', '{"group_column": "b"}');
INSERT INTO generated (a) VALUES (1), (NULL);
UPDATE generated SET a = 5 WHERE a = 1;
SELECT payload, group_key FROM test.rows();
-- Virtual ones, which exist from 18 on, have no value there: they are left out, and cannot be named.
DO $$ BEGIN
    IF current_setting('server_version_num')::int < 180000 THEN RETURN; END IF;
    EXECUTE 'CREATE TABLE virtual (a int, b int GENERATED ALWAYS AS (a * 2) VIRTUAL)';
    EXECUTE $s$CREATE TRIGGER pushed AFTER INSERT ON virtual FOR EACH ROW EXECUTE FUNCTION jobq.push_row('rows')$s$;
    EXECUTE $s$CREATE TRIGGER pushed_once AFTER INSERT ON virtual REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION jobq.push_row('rows')$s$;
    EXECUTE 'INSERT INTO virtual VALUES (3)';
    ASSERT (SELECT array_agg(payload) = ARRAY['{"a": 3}', '{"a": 3}']::jsonb[] FROM test.rows());
    EXECUTE $s$CREATE TRIGGER named AFTER INSERT ON virtual FOR EACH ROW EXECUTE FUNCTION jobq.push_row('rows', '', '{"columns": ["b"]}')$s$;
    BEGIN
        EXECUTE 'INSERT INTO virtual VALUES (4)';
        RAISE 'not refused';
    EXCEPTION WHEN feature_not_supported THEN NULL;
    END;
    EXECUTE 'DROP TABLE virtual';
END $$;

-- A partitioned table, whose partitions have their columns in another order; also a row that moves.
CREATE TABLE parted (k int, v text) PARTITION BY LIST (k);
CREATE TABLE parted_1 (gone int, v text, k int);
ALTER TABLE parted_1 DROP COLUMN gone;
ALTER TABLE parted ATTACH PARTITION parted_1 FOR VALUES IN (1);
CREATE TABLE parted_2 PARTITION OF parted FOR VALUES IN (2);
CREATE TRIGGER pushed AFTER INSERT OR UPDATE ON parted FOR EACH ROW EXECUTE FUNCTION jobq.push_row('rows', 'row', '{"group_column": "k"}');
INSERT INTO parted VALUES (1, 'a'), (2, 'b');
INSERT INTO parted_1 (k, v) VALUES (1, 'direct');
UPDATE parted SET v = 'changed' WHERE v = 'a';
UPDATE parted SET k = 2 WHERE v = 'direct';
SELECT payload, type, group_key FROM test.rows();
SELECT payload, type, group_key FROM test.rows();
SELECT payload, type, group_key FROM test.rows();
DROP TRIGGER pushed ON parted;
CREATE TRIGGER pushed_once AFTER INSERT ON parted REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION jobq.push_row('rows', 'statement');
INSERT INTO parted VALUES (1, 'c'), (2, 'd');
SELECT payload, type FROM test.rows();

-- A foreign key's cascade, and a constraint trigger that is deferred to the commit.
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE child (id int REFERENCES parent ON DELETE CASCADE);
CREATE TRIGGER gone AFTER DELETE ON child FOR EACH ROW EXECUTE FUNCTION jobq.push_row('rows', 'cascade');
CREATE CONSTRAINT TRIGGER later AFTER INSERT ON child DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION jobq.push_row('rows', 'deferred');
INSERT INTO parent VALUES (1), (2);
BEGIN;
INSERT INTO child VALUES (1), (2);
SELECT count(*) FROM jobq.jobs WHERE queue = 'rows' AND state = 'queued';
COMMIT;
DELETE FROM parent WHERE id = 1;
SELECT payload, type FROM test.rows();

-- Types of every sort: composites, ranges, domains, enums, bytea, and values out of line.
CREATE TYPE test.mood AS ENUM ('fine', 'so-so');
CREATE TYPE test.pair AS (a int, b text);
CREATE DOMAIN test.short AS text CHECK (length(VALUE) < 9);
CREATE TABLE kinds (mood test.mood, pair test.pair, pairs test.pair[], span int4range, short test.short, bytes bytea, long text, doc json, at time, net inet, n float8);
CREATE TRIGGER pushed AFTER INSERT ON kinds FOR EACH ROW EXECUTE FUNCTION jobq.push_row('rows', '', '{"type_column": "mood", "group_column": "pair"}');
INSERT INTO kinds VALUES ('so-so', (1, 'x'), ARRAY[(2, NULL)::test.pair], '[1,5)', 'short', '\x00ff', repeat('long ', 20000), '{"b":1, "a":2}', '12:34', '10.0.0.1', 'NaN');
SELECT payload - 'long' AS payload, length(payload->>'long') AS long, type, group_key, payload = (SELECT to_jsonb(k) FROM kinds AS k) AS same FROM test.rows();

-- pushed_by is who wrote the row: no right to push is needed for that, only to make the trigger.
CREATE ROLE regress_jobq_writer;
GRANT INSERT ON generated TO regress_jobq_writer;
SET ROLE regress_jobq_writer;
INSERT INTO generated (a) VALUES (7);
\set VERBOSITY terse
SELECT jobq.push('rows');
\set VERBOSITY default
RESET ROLE;
SELECT payload->'a' AS a, pushed_by FROM jobq.jobs WHERE queue = 'rows' AND state = 'queued';
SELECT count(*) FROM test.rows();
DROP OWNED BY regress_jobq_writer;
DROP ROLE regress_jobq_writer;

-- What cannot work is refused, and the row with it.
CREATE TABLE refused (id int, note text);
CREATE FUNCTION test.try_trigger(timing text, arguments text) RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('CREATE TRIGGER tried %s EXECUTE FUNCTION jobq.push_row(%s)', timing, arguments);
    RETURN QUERY SELECT line FROM test.refused('INSERT INTO refused VALUES (1)') AS line;
    DROP TRIGGER tried ON refused;
END $$;
\pset format unaligned
\pset tuples_only on
SELECT test.try_trigger('BEFORE INSERT ON refused FOR EACH ROW', $$'rows'$$);
SELECT test.try_trigger('AFTER INSERT ON refused FOR EACH STATEMENT', $$'rows'$$);
SELECT test.try_trigger('AFTER INSERT ON refused FOR EACH ROW', '');
SELECT test.try_trigger('AFTER INSERT ON refused FOR EACH ROW', $$'rows', 'type', '{}', 'more'$$);
SELECT test.try_trigger('AFTER INSERT ON refused FOR EACH ROW', $$'nosuch'$$);
SELECT test.try_trigger('AFTER INSERT ON refused FOR EACH ROW', $$''$$);
SELECT test.try_trigger('AFTER INSERT ON refused FOR EACH ROW', $$'rows', '', 'nonsense'$$);
SELECT test.try_trigger('AFTER INSERT ON refused FOR EACH ROW', $$'rows', '', '[]'$$);
SELECT test.try_trigger('AFTER INSERT ON refused FOR EACH ROW', $$'rows', '', '{"column": ["id"]}'$$);
SELECT test.try_trigger('AFTER INSERT ON refused FOR EACH ROW', $$'rows', '', '{"columns": ["id", "nosuch"]}'$$);
SELECT test.try_trigger('AFTER INSERT ON refused FOR EACH ROW', $$'rows', '', '{"columns": ["ctid"]}'$$);
SELECT test.try_trigger('AFTER INSERT ON refused FOR EACH ROW', $$'rows', '', '{"columns": []}'$$);
SELECT test.try_trigger('AFTER INSERT ON refused FOR EACH ROW', $$'rows', '', '{"columns": "id"}'$$);
SELECT test.try_trigger('AFTER INSERT ON refused FOR EACH ROW', $$'rows', '', '{"columns": [1]}'$$);
SELECT test.try_trigger('AFTER INSERT ON refused FOR EACH ROW', $$'rows', '', '{"type_column": "nosuch"}'$$);
SELECT test.try_trigger('AFTER INSERT ON refused FOR EACH ROW', $$'rows', '', '{"group_column": 1}'$$);
SELECT test.try_trigger('AFTER INSERT ON refused FOR EACH ROW', $$'rows', '', '{"unique_column": null}'$$);
SELECT test.try_trigger('AFTER INSERT ON refused FOR EACH ROW', $$'rows', '', '{"delay": "-1 s"}'$$);
SELECT test.try_trigger('AFTER INSERT ON refused FOR EACH ROW', $$'rows', '', '{"priority": "high"}'$$);
SELECT test.try_trigger('AFTER INSERT ON refused FOR EACH ROW', $$'rows', '', '{"priority": 40000}'$$);
SELECT test.try_trigger('AFTER INSERT ON refused FOR EACH ROW', $$'rows', E'a\nb'$$);
SET jobq.max_payload = 10;
SELECT test.try_trigger('AFTER INSERT ON refused FOR EACH ROW', $$'rows'$$);
RESET jobq.max_payload;
SELECT count(*) FROM refused;
SELECT count(*) FROM test.rows();
\pset tuples_only off
\pset format aligned
CREATE TRIGGER cut AFTER TRUNCATE ON refused FOR EACH STATEMENT EXECUTE FUNCTION jobq.push_row('rows');
SELECT test.refused('TRUNCATE refused');

DROP TABLE orders, changing, generated, parted, child, parent, kinds, refused;
DROP FUNCTION test.rows, test.count_rows, test.try_trigger;
DROP TYPE test.mood, test.pair;
DROP DOMAIN test.short;
