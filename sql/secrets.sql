\set ECHO none
\getenv here PG_ABS_SRCDIR
\set setup :here '/sql/setup.inc'
\i :setup
\set ECHO all
-- The secrets that requests are signed with.
DO $$ BEGIN
    PERFORM jobq.create_endpoint('secrets', 'http://127.0.0.1:1/', options => '{"enabled": false}');
    PERFORM jobq.create_endpoint('secrets_unsigned', 'http://127.0.0.1:1/', options => '{"enabled": false, "signed": false}');
END $$;
CREATE FUNCTION test.in_use(OUT secret text, OUT expires text) RETURNS SETOF record LANGUAGE sql AS $$
    SELECT s.secret, CASE WHEN s.expires_at IS NULL THEN 'never' WHEN test.is_in(s.expires_at, '1 day') THEN 'in a day'
                          WHEN test.is_in(s.expires_at, '1 h') THEN 'in an hour' ELSE 'else' END
    FROM jobq.secrets('secrets') AS s;
$$;

-- A new endpoint has one, of its own, whether or not it is used; to create it again changes nothing.
SELECT secret ~ '^whsec_[A-Za-z0-9+/]{32,}=*$' AS standard, length(decode(substr(secret, 7), 'base64')) BETWEEN 24 AND 64 AS long_enough,
       test.is_in(created_at, '0') AS new, expires_at FROM jobq.secrets('secrets');
SELECT count(*), count(DISTINCT secret) FROM (SELECT secret FROM jobq.secrets('secrets') UNION ALL SELECT secret FROM jobq.secrets('secrets_unsigned')) AS s;
SELECT secret AS first FROM jobq.secrets('secrets') \gset
SELECT jobq.create_endpoint('secrets', 'http://127.0.0.1:1/', if_not_exists => true);
SELECT jobq.alter_endpoint('secrets', options => '{"signed": false}'), jobq.alter_endpoint('secrets', options => '{"signed": true}');
SELECT array_agg(secret) = ARRAY[:'first'] AS unchanged FROM jobq.secrets('secrets');
SELECT count(DISTINCT jobq.new_secret()) FROM generate_series(1, 1000);

-- A rotation gives it a new one; the old one is used for a while yet.
SELECT jobq.rotate_secret('secrets') AS second \gset
SELECT secret = :'second' AS second, secret = :'first' AS first, expires FROM test.in_use();
-- What would expire sooner does, what later does not.
SELECT jobq.rotate_secret('secrets', '2 days') AS third \gset
SELECT secret = :'third' AS third, secret = :'second' AS second, secret = :'first' AS first, expires FROM test.in_use();
SELECT jobq.rotate_secret('secrets', overlap => '1 h') AS fourth \gset
SELECT secret = :'fourth' AS fourth, secret = :'first' AS first, expires FROM test.in_use();
-- Without an overlap it is the only one at once.
SELECT jobq.rotate_secret('secrets', '0') AS fifth \gset
SELECT secret = :'fifth' AS fifth, expires FROM test.in_use();
SELECT count(*) FROM jobq.secret AS s JOIN jobq.endpoint AS e ON e.id = s.endpoint_id WHERE e.name = 'secrets';
-- Others keep theirs.
SELECT count(*) FROM jobq.secrets('secrets_unsigned');

-- One from elsewhere; one that it has already becomes the newest again, so that a rotation can be taken back.
SELECT 'whsec_' || encode(decode(repeat('01', 24), 'hex'), 'base64') AS mine, 'whsec_' || translate(encode(decode(repeat('02', 64), 'hex'), 'base64'), E'\n', '') AS longest \gset
SELECT jobq.rotate_secret('secrets', '0', :'mine') = :'mine' AS taken;
SELECT jobq.rotate_secret('secrets', secret => :'longest') = :'longest' AS taken;
SELECT secret = :'longest' AS longest, secret = :'mine' AS mine, expires FROM test.in_use();
SELECT jobq.rotate_secret('secrets', '1 h', :'mine') = :'mine' AS taken;
SELECT secret = :'mine' AS mine, secret = :'longest' AS longest, expires FROM test.in_use();
SELECT jobq.rotate_secret('secrets', '0', :'mine') = :'mine' AS taken;
SELECT secret = :'mine' AS mine, expires FROM test.in_use();

-- One that has expired is not shown, and goes with the next rotation.
SELECT jobq.rotate_secret('secrets') IS NOT NULL AS rotated;
UPDATE jobq.secret SET expires_at = clock_timestamp() WHERE secret = :'mine';
SELECT secret = :'mine' AS mine, expires FROM test.in_use();
SELECT count(*) FROM jobq.secret WHERE secret = :'mine';
SELECT jobq.rotate_secret('secrets') IS NOT NULL AS rotated;
SELECT count(*) FROM jobq.secret WHERE secret = :'mine';

-- Ten are in use at once, not more.
SELECT jobq.rotate_secret('secrets', '0') IS NOT NULL AS rotated;
SELECT count(DISTINCT jobq.rotate_secret('secrets')) FROM generate_series(1, 9);
SELECT count(*) FROM jobq.secrets('secrets');
SELECT test.refused($$SELECT jobq.rotate_secret('secrets')$$);
SELECT count(*) AS in_use, count(expires_at) AS expiring FROM jobq.secrets('secrets');
UPDATE jobq.secret SET expires_at = clock_timestamp() WHERE expires_at = (SELECT min(expires_at) FROM jobq.secrets('secrets'));
SELECT jobq.rotate_secret('secrets') IS NOT NULL AS rotated;
SELECT jobq.rotate_secret('secrets', '0', :'mine') = :'mine' AS rotated;
SELECT count(*) FROM jobq.secrets('secrets');

-- What is refused.
SELECT test.refused($$SELECT jobq.secrets('nosuch')$$);
SELECT test.refused($$SELECT jobq.secrets(NULL)$$);
SELECT test.refused($$SELECT jobq.rotate_secret('nosuch')$$);
SELECT test.refused($$SELECT jobq.rotate_secret(NULL)$$);
SELECT test.refused($$SELECT jobq.rotate_secret('secrets', NULL)$$);
SELECT test.refused($$SELECT jobq.rotate_secret('secrets', '-1 s')$$);
SELECT test.refused($$SELECT jobq.rotate_secret('secrets', '367 days')$$);
SELECT count(*) FROM jobq.secrets('secrets');

-- Whatever goes wrong, nothing that is said holds the secret: neither one that the endpoint has nor one that is no good.
CREATE FUNCTION test.told(statement text, secret text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    message text; detail text; hint text; context text;
BEGIN
    EXECUTE statement USING secret;
    RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT, context = PG_EXCEPTION_CONTEXT;
    -- Any eight characters of it in a row are too many.
    RETURN sqlstate || ' ' || message || CASE WHEN EXISTS (
        SELECT FROM generate_series(7, greatest(7, length(secret) - 7)) AS n
        WHERE substr(secret, n, 8) <> '' AND strpos(concat_ws(' ', message, detail, hint, context), substr(secret, n, 8)) > 0)
        THEN '   TELLS ' || concat_ws(' | ', message, detail, hint, context) ELSE '' END;
END $$;
SELECT test.told('SELECT jobq.rotate_secret(''secrets'', secret => $1)', bad) FROM (VALUES
    (''), ('whsec_'), ('hushhushhushhushhushhushhushhush'), ('whsec_hushhushhushhush'), ('WHSEC_hushhushhushhushhushhushhushhush'),
    ('whsec_hushhushhushhushhushhushhush*ush'), ('whsec_hushhushhushhushhushhushhushhus'), (E'whsec_hushhushhushhushhushhushhushhush\n'),
    ('whsec_' || repeat('hush', 22)), ('whsec_hüshhüshhüshhüshhüshhüshhüsh')) AS v (bad);
SELECT test.told('SELECT jobq.rotate_secret(''nosuch'', secret => $1)', :'longest');
SELECT test.told('SELECT jobq.rotate_secret(''secrets'', ''-1 s'', $1)', :'longest');
SELECT test.told('INSERT INTO jobq.secret (endpoint_id, secret) SELECT id, $1 FROM jobq.endpoint WHERE name = ''secrets''', :'mine');
SELECT test.told('INSERT INTO jobq.secret (endpoint_id, secret) SELECT id, $1 || ''*'' FROM jobq.endpoint WHERE name = ''secrets''', :'mine');
SELECT test.told('INSERT INTO jobq.secret (secret) VALUES ($1)', :'longest');
SELECT test.told('INSERT INTO jobq.secret (endpoint_id, secret, created_at) VALUES (0, $1, NULL)', :'longest');
SELECT test.told('INSERT INTO jobq.secret (id, endpoint_id, secret) VALUES (NULL, 0, $1)', :'longest');
SELECT test.told('INSERT INTO jobq.secret (id, endpoint_id, secret) OVERRIDING SYSTEM VALUE SELECT id, 0, $1 FROM jobq.secret', :'longest') LIKE '23505 %"secret_pkey"' AS taken;
SELECT test.told('UPDATE jobq.secret SET id = NULL WHERE secret = $1', :'mine');
SELECT test.told('UPDATE jobq.secret SET endpoint_id = NULL WHERE secret = $1', :'mine');
SELECT test.told('UPDATE jobq.secret SET endpoint_id = -1 WHERE secret = $1', :'mine');
SELECT test.told('UPDATE jobq.secret SET secret = NULL WHERE secret = $1', :'mine');
SELECT test.told('UPDATE jobq.secret SET secret = ''whsec_'' WHERE secret = $1', :'mine');
-- Also with COPY, which is how a dump is restored, perhaps over what is there already. No endpoint need be there yet.
INSERT INTO jobq.secret (id, endpoint_id, secret) OVERRIDING SYSTEM VALUE VALUES (1000001, -1, :'mine');
SELECT test.told(format('COPY jobq.secret (id, endpoint_id, secret) FROM PROGRAM %L',
    format('printf "%s\twhsec_"; for i in 1 2 3 4 5 6 7 8; do printf AQEB; done; printf "%s\n"', ids, ending)), :'mine')
FROM (VALUES ('1000001\t-1', ''), ('1000002\t-1', ''), ('1000002\t-1', '='), ('1000002\t\\N', '')) AS v (ids, ending);
SELECT count(*) FROM jobq.secret WHERE endpoint_id < 0 OR endpoint_id IS NULL;
DELETE FROM jobq.secret WHERE endpoint_id < 0;

-- The dispatcher is told of what changes here, as of all settings.
SELECT r FROM unnest('{jobq.queue, jobq.endpoint, jobq.secret}'::regclass[]) AS r
WHERE NOT EXISTS (SELECT FROM pg_trigger AS t WHERE t.tgrelid = r AND t.tgfoid = 'jobq.settings_changed'::regproc AND t.tgtype & 62 = 60);

-- No other table and no view holds one.
DO $$
DECLARE
    relation regclass;
    found boolean;
BEGIN
    FOR relation IN SELECT c.oid FROM pg_class AS c
                    WHERE c.relnamespace = 'jobq'::regnamespace AND c.relkind IN ('r', 'v') AND c.relname <> 'secret' LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM %s AS r WHERE r::text LIKE ''%%whsec%%'')', relation) INTO found;
        ASSERT NOT found, relation;
    END LOOP;
END $$;

-- With an endpoint its secrets go; one made again under its name has a new one.
SELECT id AS gone FROM jobq.endpoint WHERE name = 'secrets' \gset
BEGIN;
SELECT jobq.drop_endpoint('secrets');
SELECT count(*) FROM jobq.secret WHERE endpoint_id = :gone;
ROLLBACK;
SELECT count(*) FROM jobq.secrets('secrets');
SELECT jobq.drop_endpoint('secrets');
SELECT test.refused($$SELECT jobq.secrets('secrets')$$);
SELECT jobq.create_endpoint('secrets', 'http://127.0.0.1:1/', options => '{"enabled": false}');
SELECT secret <> :'mine' AS new FROM jobq.secrets('secrets');
DELETE FROM jobq.endpoint WHERE name = 'secrets_unsigned';
SELECT count(*) FROM jobq.secret AS s WHERE NOT EXISTS (SELECT FROM jobq.endpoint AS e WHERE e.id = s.endpoint_id);

-- A row written by hand has none until it is given one.
INSERT INTO jobq.endpoint (name, url, enabled) VALUES ('secrets_by_hand', 'http://127.0.0.1:1/', false);
SELECT count(*) FROM jobq.secrets('secrets_by_hand');
SELECT jobq.rotate_secret('secrets_by_hand') IS NOT NULL AS rotated;
SELECT count(*) FROM jobq.secrets('secrets_by_hand');

-- Who may read them is granted so, function by function; neither the table nor what manages endpoints gives them away.
CREATE ROLE regress_jobq_manager;
CREATE ROLE regress_jobq_receiver;
GRANT USAGE ON SCHEMA jobq, test TO regress_jobq_manager, regress_jobq_receiver;
GRANT EXECUTE ON FUNCTION jobq.create_endpoint, jobq.alter_endpoint, jobq.drop_endpoint TO regress_jobq_manager;
GRANT SELECT, UPDATE ON jobq.queue, jobq.endpoint TO regress_jobq_manager;
GRANT SELECT ON jobq.jobs, jobq.attempts, jobq.stats TO regress_jobq_manager;
GRANT EXECUTE ON FUNCTION jobq.secrets TO regress_jobq_receiver;
SET ROLE regress_jobq_manager;
SELECT jobq.create_endpoint('secrets_managed', 'http://127.0.0.1:1/', options => '{"enabled": false}'), jobq.drop_endpoint('secrets_managed');
SELECT test.refused($$SELECT jobq.secrets('secrets')$$);
SELECT test.refused($$SELECT jobq.rotate_secret('secrets')$$);
SELECT test.refused($$SELECT * FROM jobq.secret$$);
SELECT test.refused($$DELETE FROM jobq.secret$$);
RESET ROLE;
SET ROLE regress_jobq_receiver;
SELECT count(*) FROM jobq.secrets('secrets');
SELECT test.refused($$SELECT jobq.rotate_secret('secrets')$$);
SELECT test.refused($$SELECT * FROM jobq.secret$$);
RESET ROLE;
DROP OWNED BY regress_jobq_manager, regress_jobq_receiver;
DROP ROLE regress_jobq_manager, regress_jobq_receiver;

SELECT jobq.drop_endpoint('secrets'), jobq.drop_endpoint('secrets_by_hand');
DROP FUNCTION test.in_use, test.told;
