\set ECHO none
\getenv here PG_ABS_SRCDIR
\set setup :here '/sql/setup.inc'
\i :setup
\set ECHO all
-- What can be seen of endpoints where no dispatcher has said anything, and test requests that nobody sends.
DO $$ BEGIN
    PERFORM jobq.create_endpoint('seen', 'http://127.0.0.1:1/', options => '{"enabled": false, "max_in_flight": 7}');
END $$;
CREATE ROLE regress_jobq_looker;
GRANT USAGE ON SCHEMA jobq, test TO regress_jobq_looker;

SELECT jobq.preloaded() AS delivers \gset

-- An endpoint to which nothing was sent has its settings, and NULLs. A dispatcher may say that nothing is in flight.
SELECT endpoint, url, enabled, disabled_reason, max_in_flight, success_ratio, p50_duration, p99_duration, breaker_until,
       paused_until, last_at, last_outcome, last_status, last_error
FROM jobq.endpoint_stats WHERE endpoint = 'seen';
SELECT num_nulls(in_flight, "window", breaker, succeeded, failed) = 5 OR :'delivers' AS nothing_is_known
FROM jobq.endpoint_stats WHERE endpoint = 'seen';

-- SELECT on the view is needed, by way of its function too, and enough.
SET ROLE regress_jobq_looker;
SELECT test.refused($$SELECT * FROM jobq.endpoint_stats$$);
SELECT test.refused($$SELECT * FROM jobq.endpoint_state(1)$$);
RESET ROLE;
GRANT SELECT ON jobq.endpoint_stats TO regress_jobq_looker;
SET ROLE regress_jobq_looker;
SELECT count(*) FROM jobq.endpoint_stats WHERE endpoint = 'seen';
SELECT test.refused($$SELECT * FROM jobq.endpoint$$);
RESET ROLE;

-- A test is for whom it was granted to, who needs nothing else.
SET ROLE regress_jobq_looker;
SELECT test.refused($$SELECT * FROM jobq.send_test('seen')$$);
RESET ROLE;
GRANT EXECUTE ON FUNCTION jobq.send_test TO regress_jobq_looker;
SET ROLE regress_jobq_looker;
SELECT test.refused($$SELECT * FROM jobq.ask_dispatcher(1, '1 s')$$);
-- One row that says what is missing. A server that delivers would send the request.
SELECT ok, outcome = 'no_dispatcher' OR :'delivers' AS no_dispatcher,
       error LIKE '%add jobq to shared_preload_libraries%' OR :'delivers' AS says_what_is_missing,
       num_nulls(status_code, duration, http_version, address, response) = 5 OR :'delivers' AS nothing_else
FROM jobq.send_test('seen');
RESET ROLE;

-- Errors
SELECT test.refused($$SELECT * FROM jobq.send_test('unseen')$$);
SELECT test.refused($$SELECT * FROM jobq.send_test(NULL)$$);
SELECT test.refused($$SELECT * FROM jobq.send_test('seen', timeout => '-1 s')$$);
SELECT test.refused($$SELECT * FROM jobq.send_test('seen', timeout => '3 h')$$);
SELECT test.refused($$SELECT * FROM jobq.ask_dispatcher(1, NULL)$$);

DROP OWNED BY regress_jobq_looker;
DROP ROLE regress_jobq_looker;
SELECT jobq.drop_endpoint('seen');
