\set ECHO none
\getenv here PG_ABS_SRCDIR
\set setup :here '/sql/setup.inc'
\i :setup
\set ECHO all
-- Routes: jobs of some types go to other endpoints than the queue's.
SELECT jobq.create_endpoint(name, 'http://127.0.0.1:9/') FROM unnest('{routes_a,routes_b,routes_c}'::text[]) AS name;

CREATE FUNCTION test.going(queue text) RETURNS TABLE (type text, state jobq.job_state, endpoint text) LANGUAGE sql AS $$
    SELECT s.type, s.state, coalesce(e.name, CASE WHEN j.endpoint_id IS NULL THEN 'the queue''s' END)
    FROM jobq.jobs AS s JOIN jobq.job AS j ON j.id = s.id LEFT JOIN jobq.endpoint AS e ON e.id = j.endpoint_id
    WHERE s.queue = going.queue ORDER BY j.seq;
$$;

-- A queue with routes and no endpoint is delivered; a type without a route waits where it can be seen.
SELECT jobq.create_queue('routes', options => '{"routes": {"a": "routes_a", "b": "routes_b"}}');
SELECT * FROM jobq.routes WHERE queue = 'routes' ORDER BY type;
SELECT count(jobq.push('routes', type => type)) FROM unnest('{a,b,c}'::text[]) AS type;
SELECT count(jobq.push('routes'));
SELECT * FROM test.going('routes');
SELECT due, unrouted FROM jobq.stats WHERE queue = 'routes';
SELECT test.refused($$SELECT * FROM jobq.pull('routes')$$);

-- push_many goes by the type of each; a job that names its endpoint goes there.
SELECT count(*) FROM jobq.push_many('routes', '{1,2,3}', types => '{a,b,c}');
SELECT count(jobq.push('routes', type => 'a', options => '{"endpoint": "routes_b"}'));
SELECT count(jobq.push('routes', type => 'b', unique_key => 'k'));
SELECT type, endpoint, count(*) FROM test.going('routes') GROUP BY 1, 2 ORDER BY 1, 2;

-- New routes are for the jobs that wait too, but not for those that named an endpoint.
SELECT jobq.alter_queue('routes', options => '{"routes": {"a": "routes_c", "b": "routes_b", "c": "routes_c"}}');
SELECT type, state, endpoint, count(*) FROM test.going('routes') GROUP BY 1, 2, 3 ORDER BY 1, 2, 3;
SELECT unrouted FROM jobq.stats WHERE queue = 'routes';

-- An endpoint of the queue takes the rest.
SELECT jobq.alter_queue('routes', endpoint => 'routes_a');
SELECT type, state, endpoint, count(*) FROM test.going('routes') GROUP BY 1, 2, 3 ORDER BY 1, 2, 3;
SELECT * FROM jobq.routes WHERE queue = 'routes' ORDER BY type;

-- drop_endpoint sees routes.
SELECT test.refused($$SELECT jobq.drop_endpoint('routes_c')$$);

-- A retried dead job goes by the routes of then.
SELECT jobq.push('routes', type => 'd') AS id \gset
UPDATE jobq.job SET attempt = 1, started_at = now(), lease_until = now() + '1 h' WHERE id = :'id'; -- as a delivery does
SELECT jobq.bury(:'id', 1);
SELECT jobq.alter_queue('routes', options => '{"routes": {"d": "routes_c"}}');
SELECT jobq.retry_dead('routes');
SELECT type, endpoint FROM test.going('routes') WHERE type = 'd';

-- Without routes and endpoint the jobs are pulled, whatever endpoint they named.
SELECT jobq.alter_queue('routes', options => '{"routes": {}, "endpoint": null}');
SELECT count(*) FROM jobq.pull('routes', 100);
SELECT jobq.drop_queue('routes', force => true);
SELECT count(jobq.drop_endpoint(name)) FROM unnest('{routes_a,routes_b,routes_c}'::text[]) AS name;

-- What is refused.
SELECT jobq.create_queue('routes');
SELECT jobq.create_endpoint('routes_d', 'http://127.0.0.1:9/');
SELECT jobq.alter_queue('routes', options => '{"routes": {"a": "routes_d"}}');
SELECT test.refused($$SELECT jobq.drop_endpoint('routes_d')$$);
SELECT jobq.alter_queue('routes', options => '{"routes": {}}');
SELECT jobq.drop_endpoint('routes_d');
SELECT test.refused($$SELECT jobq.alter_queue('routes', options => '{"routes": {"a": "nowhere"}}')$$);
SELECT test.refused($$SELECT jobq.alter_queue('routes', options => '{"routes": ["a"]}')$$);
SELECT test.refused($$SELECT jobq.alter_queue('routes', options => '{"routes": {"a": 1}}')$$);
SELECT test.refused($$SELECT jobq.alter_queue('routes', options => '{"routes": null}')$$);
SELECT test.refused($$UPDATE jobq.queue SET routes = '{"a": "b"}' WHERE name = 'routes'$$);
SELECT test.refused($$UPDATE jobq.queue SET routes = '{"a": 123456}' WHERE name = 'routes'$$);
