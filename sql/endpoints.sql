\set ECHO none
\getenv here PG_ABS_SRCDIR
\set setup :here '/sql/setup.inc'
\i :setup
\set ECHO all
-- The settings of endpoints.
SET intervalstyle = postgres;

SELECT jobq.create_endpoint('endpoints', 'http://127.0.0.1:1/hook');
CREATE VIEW test.endpoints AS SELECT to_jsonb(e) - '{id,name}'::text[] AS settings FROM jobq.endpoint AS e WHERE name = 'endpoints';
SELECT to_jsonb(e) - 'id' AS before FROM jobq.endpoint AS e WHERE name = 'endpoints' \gset
SELECT key, value FROM test.endpoints, jsonb_each(settings) ORDER BY key;

-- Each may be given in options by the name of its column.
SELECT '{"url": "https://example.com/", "method": "PUT", "headers": {"x-a": "b"}, "max_in_flight": 20, "min_in_flight": 2, "rate": 0.5, "burst": 3,
    "timeout": "00:00:10", "connect_timeout": "00:00:01", "keep_response": 10, "max_attempts": 3, "retry_first": "00:00:01", "retry_factor": 1.5,
    "retry_longest": "00:10:00", "retry_jitter": 0.1, "retry_waits": ["00:00:01", "00:01:00"], "final_statuses": ["404", "5xx"], "accept_later": true,
    "signed": false, "ca_file": "/etc/ca.pem", "client_cert_file": "/etc/cert.pem", "client_key_file": "/etc/key.pem", "proxy": "http://proxy.example.com:3128",
    "http_version": "1.1", "gzip": true, "cloudevents_source": "/shop", "breaker_failures": 5, "breaker_window": "00:00:30", "breaker_first": "00:00:02",
    "breaker_longest": "00:00:50", "enabled": false}' AS given \gset
SELECT jobq.alter_endpoint('endpoints', options => :'given');
SELECT settings - 'disabled_reason' = :'given' AS as_given FROM test.endpoints;
SELECT key AS still_at_its_default FROM test.endpoints, jsonb_each(settings) WHERE value = (:'before')::jsonb -> key;
SELECT jobq.create_endpoint('endpoints_created', 'http://127.0.0.1:1/', options => (:'given')::jsonb - 'url');
SELECT to_jsonb(e) - '{id,name,url,disabled_reason}'::text[] = (:'given')::jsonb - 'url' AS as_given FROM jobq.endpoint AS e WHERE name = 'endpoints_created';
-- What is not named stays.
SELECT jobq.alter_endpoint('endpoints', options => '{"gzip": false}');
SELECT settings - '{gzip,disabled_reason}'::text[] = (:'given')::jsonb - 'gzip' AS rest_stays, settings -> 'gzip' AS gzip FROM test.endpoints;
-- Numbers will do where a text looks like one.
SELECT jobq.alter_endpoint('endpoints', options => '{"http_version": 2}');
SELECT settings -> 'http_version' AS http_version FROM test.endpoints;
SELECT jobq.alter_endpoint('endpoints', options => '{"http_version": 1.1}');
SELECT settings -> 'http_version' AS http_version FROM test.endpoints;

-- A null unsets what may be unset; anything else must have a value.
\pset tuples_only on
\pset format unaligned
SELECT a.attname, string_agg(r, E'\n') FROM pg_attribute AS a,
    test.refused(format('SELECT jobq.alter_endpoint(''endpoints'', options => %L)', jsonb_build_object(a.attname, null))) AS r
WHERE a.attrelid = 'jobq.endpoint'::regclass AND a.attnum > 0 AND a.attname NOT IN ('id', 'name', 'disabled_reason', 'client_cert_file')
GROUP BY a.attnum, a.attname ORDER BY a.attnum;
\pset tuples_only off
\pset format aligned
SELECT jobq.alter_endpoint('endpoints', options => '{"rate": null, "max_attempts": null, "retry_first": null, "retry_factor": null, "retry_longest": null, "retry_jitter": null,
    "retry_waits": null, "ca_file": null, "client_key_file": null, "client_cert_file": null, "proxy": null, "cloudevents_source": null}');
SELECT key AS unset FROM test.endpoints, jsonb_each(settings) WHERE value = 'null' ORDER BY key;

-- A row written by hand gets the same defaults, and the same checks, as what the functions write.
INSERT INTO jobq.endpoint (name, url) VALUES ('endpoints_inserted', 'http://127.0.0.1:1/hook');
SELECT to_jsonb(e) - '{id,name}'::text[] = (:'before')::jsonb - 'name' AS as_created FROM jobq.endpoint AS e WHERE name = 'endpoints_inserted';
DELETE FROM jobq.endpoint WHERE name <> 'endpoints' AND name LIKE 'endpoints%';
CREATE FUNCTION test.all_updates(settings text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
    setting text;
BEGIN
    FOREACH setting IN ARRAY string_to_array(btrim(settings, E'\n'), E'\n') LOOP
        RETURN NEXT setting;
        RETURN QUERY SELECT '    ' || line FROM test.refused(format($f$UPDATE jobq.endpoint SET %s WHERE name = 'endpoints'$f$, setting)) AS line;
    END LOOP;
END $$;
RESET intervalstyle;
\pset tuples_only on
\pset format unaligned

-- Both ends of each range, and what is beyond them.
SELECT * FROM test.all_updates($$
max_in_flight = 1, min_in_flight = 1
max_in_flight = 100000, min_in_flight = 100000
max_in_flight = 0
max_in_flight = 100001
min_in_flight = 0
max_in_flight = 5, min_in_flight = 6
rate = 0.0001
rate = 1e6
rate = 0
rate = 0.00009
rate = 1000001
rate = 'NaN'
rate = 'Infinity'
burst = 1
burst = 100000
burst = 0
burst = 100001
timeout = '1 h', connect_timeout = '1 h'
timeout = '61 min'
connect_timeout = '0'
keep_response = 0
keep_response = 1048577
max_attempts = 1
max_attempts = 10000
max_attempts = 0
max_attempts = 10001
retry_first = '0', retry_longest = '0'
retry_first = '1 year', retry_longest = '1 year'
retry_first = '-1 s'
retry_longest = '367 days'
retry_factor = 1
retry_factor = 100
retry_factor = 0.9
retry_factor = 'NaN'
retry_jitter = 0
retry_jitter = 1
retry_jitter = 1.1
breaker_failures = 0
breaker_failures = 10000
breaker_failures = -1
breaker_failures = 10001
breaker_window = '1 s', breaker_first = '1 s', breaker_longest = '1 s'
breaker_window = '1 day', breaker_first = '1 day', breaker_longest = '1 day'
breaker_window = '999 ms'
breaker_window = '25 h'
breaker_first = '0'
breaker_longest = '25 h'
breaker_first = '6 min', breaker_longest = '5 min'
$$);

-- Words.
SELECT * FROM test.all_updates($$
method = 'POST'
method = 'PUT'
method = 'PATCH'
method = 'DELETE'
method = 'GET'
method = 'post'
method = 'HEAD'
method = ''
http_version = 'auto'
http_version = '1.1'
http_version = '2'
http_version = '3'
http_version = ''
$$);

-- Waits written out.
SELECT * FROM test.all_updates($$
retry_waits = '{0 s}'
retry_waits = array_fill(interval '1 year', '{100}')
retry_waits = NULL
retry_waits = '{}'
retry_waits = array_fill(interval '1 s', '{101}')
retry_waits = '{{1 s, 2 s}, {3 s, 4 s}}'
retry_waits = '{1 s, NULL}'
retry_waits = '{1 s, -1 s}'
retry_waits = '{1 s, 367 days}'
$$);
SELECT test.refused($$SELECT jobq.alter_endpoint('endpoints', options => '{"retry_waits": "1 s"}')$$);
SELECT test.refused($$SELECT jobq.alter_endpoint('endpoints', options => '{"retry_waits": ["soon"]}')$$);
SELECT test.refused($$SELECT jobq.alter_endpoint('endpoints', options => '{"retry_waits": ["1 s", null]}')$$);

-- Statuses.
SELECT * FROM test.all_updates($$
final_statuses = '{}'
final_statuses = '{404, 4xx, 501, 5xx}'
final_statuses = '{40}'
final_statuses = '{4040}'
final_statuses = '{4x}'
final_statuses = '{x04}'
final_statuses = '{600}'
final_statuses = '{2xx}'
final_statuses = '{204}'
final_statuses = '{""}'
final_statuses = '{404, NULL}'
final_statuses = '{{404, 405}, {406, 407}}'
$$);
SELECT test.refused($$SELECT jobq.alter_endpoint('endpoints', options => '{"final_statuses": "404"}')$$);

-- Files are absolute paths; a key needs its certificate.
SELECT * FROM test.all_updates($$
ca_file = '/etc/ssl/my ca.pem'
ca_file = '/' || repeat('x', 1022)
ca_file = '/' || repeat('x', 1023)
ca_file = ''
ca_file = 'ca.pem'
ca_file = '~/ca.pem'
ca_file = E'/ca\n.pem'
client_cert_file = '/cert.pem'
client_cert_file = '/cert.pem', client_key_file = '/key.pem'
client_cert_file = '/cert.pem', client_key_file = 'key.pem'
client_cert_file = 'cert.pem'
client_key_file = '/key.pem'
$$);

-- A proxy is one that is spoken to in plain HTTP.
SELECT * FROM test.all_updates($$
proxy = 'http://127.0.0.1:3128'
proxy = 'HTTP://[::1]:3128/'
proxy = 'https://127.0.0.1:3128'
proxy = 'socks5://127.0.0.1'
proxy = '127.0.0.1:3128'
proxy = ''
proxy = 'http://'
proxy = 'http://127.0.0.1:3128/path'
proxy = 'http://ada:hush@127.0.0.1:3128'
proxy = 'http://ada@127.0.0.1:3128'
proxy = E'http://127.0.0.1\r\n'
$$);

-- The source of CloudEvents is a URI reference that fits into a header.
SELECT * FROM test.all_updates($$
cloudevents_source = 'https://example.com/shop?a=b#c'
cloudevents_source = 'urn:shop'
cloudevents_source = '/shop%20one'
cloudevents_source = repeat('x', 2048)
cloudevents_source = repeat('x', 2049)
cloudevents_source = ''
cloudevents_source = 'my shop'
cloudevents_source = 'shöp'
cloudevents_source = E'shop\r\nx-a: b'
cloudevents_source = '/shop%2'
$$);

-- id, name and the reason why it is disabled are no settings.
SELECT test.refused($$SELECT jobq.alter_endpoint('endpoints', options => '{"name": "other"}')$$);
SELECT test.refused($$SELECT jobq.alter_endpoint('endpoints', options => '{"id": 1}')$$) LIKE '22023 unknown key "id"%' AS refused LIMIT 1;
SELECT test.refused($$SELECT jobq.create_endpoint('new', 'http://127.0.0.1/', options => '{"disabled_reason": "x"}')$$) LIKE '22023 unknown key%' AS refused LIMIT 1;

-- A missing value is told without the row, which may hold what is to stay hidden.
UPDATE jobq.endpoint SET headers = '{"authorization": "Bearer hush"}' WHERE name = 'endpoints';
SELECT * FROM test.all_updates($$
max_in_flight = NULL
url = NULL
method = NULL
final_statuses = NULL
name = NULL
id = NULL
$$);

-- Nothing of all that is refused has changed anything.
SELECT * FROM test.all_updates($$
rate = 7, burst = 0
$$);
SELECT test.refused($$SELECT jobq.alter_endpoint('endpoints', timeout => '7 s', options => '{"rate": 7, "method": "get"}')$$);
SELECT settings -> 'rate', settings -> 'timeout' FROM test.endpoints;

-- Why the dispatcher has disabled it is forgotten when it is enabled again, and says nothing of others who disable it.
UPDATE jobq.endpoint SET enabled = false, disabled_reason = 'gone' WHERE name = 'endpoints';
SELECT enabled, disabled_reason FROM jobq.endpoint WHERE name = 'endpoints';
SELECT jobq.alter_endpoint('endpoints', timeout => '2 s');
SELECT enabled, disabled_reason FROM jobq.endpoint WHERE name = 'endpoints';
SELECT jobq.alter_endpoint('endpoints', options => '{"enabled": true}');
SELECT enabled, disabled_reason IS NULL AS forgotten FROM jobq.endpoint WHERE name = 'endpoints';
SELECT jobq.alter_endpoint('endpoints', options => '{"enabled": false}');
SELECT enabled, disabled_reason IS NULL AS none FROM jobq.endpoint WHERE name = 'endpoints';
UPDATE jobq.endpoint SET disabled_reason = 'gone' WHERE name = 'endpoints';
UPDATE jobq.endpoint SET enabled = true WHERE name = 'endpoints';
SELECT enabled, disabled_reason IS NULL AS forgotten FROM jobq.endpoint WHERE name = 'endpoints';

-- Each column says what it is.
SELECT a.attname FROM pg_attribute AS a
WHERE a.attrelid = 'jobq.endpoint'::regclass AND a.attnum > 0 AND a.attname NOT IN ('id', 'name') AND col_description(a.attrelid, a.attnum) IS NULL;
SELECT jobq.drop_endpoint('endpoints');
DROP VIEW test.endpoints;
DROP FUNCTION test.all_updates;
