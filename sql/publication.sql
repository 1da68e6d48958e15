\set ECHO none
\getenv here PG_ABS_SRCDIR
\set setup :here '/sql/setup.inc'
\i :setup
\set ECHO all
-- A publication FOR ALL TABLES, as Debezium and upgrades by replication make it, publishes these tables too. UPDATE
-- and DELETE of a published table without replica identity are errors, also where they find no row.
SET client_min_messages = error; -- wal_level
CREATE PUBLICATION regress_jobq FOR ALL TABLES;
RESET client_min_messages;

SELECT c.oid::regclass AS without FROM pg_class AS c
WHERE c.relnamespace = 'jobq'::regnamespace AND c.relkind IN ('r', 'p')
  AND NOT (c.relreplident = 'd' AND EXISTS (SELECT FROM pg_index AS i WHERE i.indrelid = c.oid AND i.indisprimary));

SELECT jobq.create_endpoint('publication', 'http://127.0.0.1:1/', options => '{"enabled": false}');
SELECT jobq.create_queue('publication'), jobq.create_queue('publication_forgets', keep => '0');
SELECT jobq.alter_queue('publication', max_attempts => 2), jobq.alter_endpoint('publication', timeout => '1 s');
SELECT jobq.rotate_secret('publication') IS NOT NULL, jobq.rotate_secret('publication', '0') IS NOT NULL AS rotated;
SELECT jobq.pause('publication'), jobq.resume('publication'), jobq.adopt();
SELECT jobq.push('publication', '1') IS NOT NULL AS pushed, jobq.push_bytes('publication', '\x00') IS NOT NULL AS bytes;
SELECT count(*) FROM jobq.push_many('publication', '{2, 3, 4, 5, 6, 7}', unique_keys => '{a, a, b, b, NULL, NULL}');
SELECT jobq.push('publication', '8', unique_key => 'a', options => '{"on_conflict": "replace"}') IS NOT NULL AS replaced;
SELECT jobq.push('publication_forgets') IS NOT NULL AS pushed;
CREATE TEMP TABLE held AS SELECT id, attempt FROM jobq.pull('publication', 10);
SELECT count(*) FROM held;
DO $$
DECLARE
    ids uuid[] := (SELECT array_agg(id ORDER BY id) FROM held);
BEGIN
    PERFORM jobq.extend(ids[1], 1), jobq.complete(ids[1], 1, '{}');
    PERFORM jobq.complete_many(ids[2:2], '{1}');
    PERFORM jobq.fail(ids[3], 1, retry_in => '0'), jobq.release(ids[4], 1), jobq.bury(ids[5], 1);
    PERFORM jobq.cancel(ids[6]);
    PERFORM jobq.complete(id, attempt) FROM jobq.pull('publication_forgets');
    PERFORM jobq.fail(id, attempt, retry_in => '0') FROM jobq.pull('publication'); -- its second
    PERFORM jobq.retry(ids[6]), jobq.retry(ids[5]);
    PERFORM jobq.bury(id, attempt) FROM jobq.pull('publication');
END $$;
SELECT state, count(*) FROM jobq.jobs WHERE queue = 'publication' GROUP BY state ORDER BY state;
SELECT jobq.retry_dead('publication', at_most => 1);
SELECT jobq.push('publication', options => jsonb_build_object('expires_at', '2000-01-01')) IS NOT NULL AS pushed;
SELECT count(*) > 0 AS pulled FROM jobq.pull('publication', 10, lease => '1 ms');
SELECT state FROM jobq.jobs WHERE queue = 'publication' AND state = 'expired';
UPDATE jobq.finished SET finished_at = finished_at - interval '1 year';
SELECT jobq.maintain() > 0 AS maintained;
SELECT jobq.clear('publication') >= 0 AS queued, jobq.clear('publication', 'dead') > 0 AS dead, jobq.clear('publication', 'completed') AS completed;
SELECT jobq.drop_queue('publication', force => true), jobq.drop_queue('publication_forgets'), jobq.drop_endpoint('publication');
DROP PUBLICATION regress_jobq;
