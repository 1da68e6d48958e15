-- Functions here run as their owner: nobody else may have added any beside them, nor be able to. Not even an
-- operator, with which this check would trip.
DO $$
BEGIN
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    IF EXISTS (SELECT FROM pg_roles AS r WHERE NOT r.rolsuper AND has_schema_privilege(r.oid, 'jobq', 'CREATE')) THEN
        RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege',
            MESSAGE = 'other roles may create objects in schema "jobq"',
            HINT = 'Drop the schema.';
    END IF;
    -- All that is in a schema depends on it; so does the extension.
    IF EXISTS (SELECT FROM pg_depend AS d
               WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = 'jobq'::regnamespace
                 AND d.classid <> 'pg_extension'::regclass) THEN
        RAISE EXCEPTION USING ERRCODE = 'duplicate_object',
            MESSAGE = 'schema "jobq" is not empty',
            HINT = 'Drop the schema with what is in it.';
    END IF;
END $$;

-- Settings: endpoints and queues are rows. The create_, alter_ and drop_ functions write them; an
-- administrator may as well. Triggers check every row and tell the dispatcher after commit.

CREATE TABLE jobq.endpoint (
    id int PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    url text NOT NULL,
    method text NOT NULL DEFAULT 'POST',
    headers jsonb NOT NULL DEFAULT '{}',
    max_in_flight int NOT NULL DEFAULT 50,
    min_in_flight int NOT NULL DEFAULT 1,
    rate float8,
    burst int NOT NULL DEFAULT 1,
    timeout interval NOT NULL DEFAULT '30 s',
    connect_timeout interval NOT NULL DEFAULT '5 s',
    keep_response int NOT NULL DEFAULT 16384,
    max_attempts int,
    retry_first interval,
    retry_factor float8,
    retry_longest interval,
    retry_jitter float8,
    retry_waits interval[],
    final_statuses text[] NOT NULL DEFAULT '{}',
    accept_later boolean NOT NULL DEFAULT false,
    signed boolean NOT NULL DEFAULT true,
    ca_file text,
    client_cert_file text,
    client_key_file text,
    proxy text,
    http_version text NOT NULL DEFAULT 'auto',
    gzip boolean NOT NULL DEFAULT false,
    cloudevents_source text,
    breaker_failures int NOT NULL DEFAULT 10,
    breaker_window interval NOT NULL DEFAULT '1 min',
    breaker_first interval NOT NULL DEFAULT '5 s',
    breaker_longest interval NOT NULL DEFAULT '5 min',
    enabled boolean NOT NULL DEFAULT true,
    disabled_reason text
);
CREATE SEQUENCE jobq.endpoint_id_seq AS int OWNED BY jobq.endpoint.id;
ALTER TABLE jobq.endpoint ALTER COLUMN id SET DEFAULT pg_catalog.nextval('jobq.endpoint_id_seq');

COMMENT ON TABLE jobq.endpoint IS 'Webhooks that jobs are delivered to, a row each. Changes take effect at once, after commit.';
COMMENT ON COLUMN jobq.endpoint.url IS 'http or https, without user name and password';
COMMENT ON COLUMN jobq.endpoint.method IS 'POST, PUT, PATCH, DELETE or GET';
COMMENT ON COLUMN jobq.endpoint.headers IS 'request headers, a JSON object of strings';
COMMENT ON COLUMN jobq.endpoint.max_in_flight IS 'requests under way at once, 1 to 100000';
COMMENT ON COLUMN jobq.endpoint.min_in_flight IS 'the number under way at once grows up to max_in_flight while the endpoint answers well, and shrinks down to this while it does not; 1 to max_in_flight';
COMMENT ON COLUMN jobq.endpoint.rate IS 'requests a second, on average, 0.0001 to 1000000; NULL: no limit';
COMMENT ON COLUMN jobq.endpoint.burst IS 'requests that may leave at once after a pause, where there is a rate; 1 to 100000';
COMMENT ON COLUMN jobq.endpoint.timeout IS 'longest duration of a request, connecting included; 1 ms to 1 hour';
COMMENT ON COLUMN jobq.endpoint.connect_timeout IS 'longest wait for a connection, name lookup and TLS included; 1 ms to 1 hour';
COMMENT ON COLUMN jobq.endpoint.keep_response IS 'bytes of a response body that are kept, 0 to 1048576; a JSON result longer than this is not read as JSON';
COMMENT ON COLUMN jobq.endpoint.max_attempts IS 'failed attempts after which a job is dead, 1 to 10000; NULL: the queue''s, or, with retry_waits, one more than there are waits';
COMMENT ON COLUMN jobq.endpoint.retry_first IS 'wait after the first failure, as jobq.queue.retry_first; NULL: the queue''s';
COMMENT ON COLUMN jobq.endpoint.retry_factor IS 'growth of the wait from failure to failure, 1 to 100; NULL: the queue''s';
COMMENT ON COLUMN jobq.endpoint.retry_longest IS 'longest wait, before jitter; at most 1 year; NULL: the queue''s';
COMMENT ON COLUMN jobq.endpoint.retry_jitter IS 'a wait is multiplied by a random number within 1 - retry_jitter and 1 + retry_jitter; 0 to 1; NULL: the queue''s';
COMMENT ON COLUMN jobq.endpoint.retry_waits IS 'waits written out instead of retry_first, retry_factor and retry_longest: after the nth failure the nth, after later ones the last; 1 to 100 of them, each up to 1 year';
COMMENT ON COLUMN jobq.endpoint.final_statuses IS 'status codes that end a job at once, as 404 or 4xx; 4xx does not cover 408, 425 and 429';
COMMENT ON COLUMN jobq.endpoint.accept_later IS 'true: after an answer 202 the job goes on until jobq.complete or jobq.fail is called with the attempt that was sent, or the queue''s lease ends';
COMMENT ON COLUMN jobq.endpoint.signed IS 'true: requests are signed with the endpoint''s secrets, as Standard Webhooks has it; see jobq.secrets';
COMMENT ON COLUMN jobq.endpoint.ca_file IS 'PEM file on the server with the CAs that are trusted here, an absolute path; NULL: the system''s';
COMMENT ON COLUMN jobq.endpoint.client_cert_file IS 'PEM file on the server with the certificate that is shown to the receiver, an absolute path';
COMMENT ON COLUMN jobq.endpoint.client_key_file IS 'PEM file on the server with the key of client_cert_file, an absolute path; NULL: it stands in client_cert_file';
COMMENT ON COLUMN jobq.endpoint.proxy IS 'http:// URL of a proxy, without user name and password; NULL: none';
COMMENT ON COLUMN jobq.endpoint.http_version IS 'auto (HTTP/2 where the receiver offers it over TLS), 1.1 or 2';
COMMENT ON COLUMN jobq.endpoint.gzip IS 'true: bodies are sent compressed';
COMMENT ON COLUMN jobq.endpoint.cloudevents_source IS 'a URI reference: requests carry CloudEvents 1.0 headers with this source; NULL: they do not';
COMMENT ON COLUMN jobq.endpoint.breaker_failures IS 'failures within breaker_window after which requests stop for a while, 0 to 10000; 0: never';
COMMENT ON COLUMN jobq.endpoint.breaker_window IS 'how long a failure counts, 1 s to 1 day';
COMMENT ON COLUMN jobq.endpoint.breaker_first IS 'how long requests stop at first; twice as long each time that the next one fails too, 1 s to 1 day';
COMMENT ON COLUMN jobq.endpoint.breaker_longest IS 'longest stop, breaker_first to 1 day';
COMMENT ON COLUMN jobq.endpoint.enabled IS 'false: its jobs wait';
COMMENT ON COLUMN jobq.endpoint.disabled_reason IS 'why the dispatcher has disabled it; NULL while it is enabled, and where somebody else disabled it';

-- No constraint but the key: the DETAIL of others prints the row, and with it the secret. What there is to check is
-- checked by a trigger that fires AFTER: with one that fires BEFORE, or with a volatile default, COPY inserts row by
-- row, and prints the line that it fails at.
CREATE TABLE jobq.secret (
    id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    endpoint_id int,
    secret text COLLATE "C",
    created_at timestamptz DEFAULT pg_catalog.now(),
    expires_at timestamptz
);
CREATE INDEX secret_endpoint ON jobq.secret (endpoint_id);
COMMENT ON TABLE jobq.secret IS 'What requests to an endpoint are signed with, as text: whoever can read a dump of the database can read them. Use jobq.secrets and jobq.rotate_secret.';
COMMENT ON COLUMN jobq.secret.secret IS 'whsec_ and the base64 of the key''s 24 to 64 bytes';
COMMENT ON COLUMN jobq.secret.expires_at IS 'when requests are no longer signed with it; NULL: not before the next rotation';

CREATE FUNCTION jobq.this_database() RETURNS text
    LANGUAGE c STABLE AS 'MODULE_PATHNAME', 'jobq_this_database';
COMMENT ON FUNCTION jobq.this_database() IS 'What tells this database from any other, its own copies included: the system identifier and its oid.';

CREATE TABLE jobq.queue (
    id int PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    endpoint_id int,
    paused boolean NOT NULL DEFAULT false,
    max_attempts int NOT NULL DEFAULT 25,
    lease interval NOT NULL DEFAULT '5 min',
    keep interval DEFAULT '7 days',
    retry_first interval NOT NULL DEFAULT '2 s',
    retry_factor float8 NOT NULL DEFAULT 2,
    retry_longest interval NOT NULL DEFAULT '1 h',
    retry_jitter float8 NOT NULL DEFAULT 0.2,
    max_running int,
    types jsonb NOT NULL DEFAULT '{}',
    routes jsonb NOT NULL DEFAULT '{}',
    home text NOT NULL DEFAULT jobq.this_database()
);
CREATE SEQUENCE jobq.queue_id_seq AS int OWNED BY jobq.queue.id;
ALTER TABLE jobq.queue ALTER COLUMN id SET DEFAULT pg_catalog.nextval('jobq.queue_id_seq');

COMMENT ON TABLE jobq.queue IS 'Queues, a row each. Changes take effect at once, after commit.';
COMMENT ON COLUMN jobq.queue.endpoint_id IS 'the endpoint its jobs are delivered to; NULL: they wait to be pulled';
COMMENT ON COLUMN jobq.queue.paused IS 'true: nothing is claimed; pushes go on';
COMMENT ON COLUMN jobq.queue.max_attempts IS 'failed attempts after which a job is dead, 1 to 10000; taken at push';
COMMENT ON COLUMN jobq.queue.lease IS 'how long a pulled job is held before it is given to somebody else';
COMMENT ON COLUMN jobq.queue.keep IS 'how long finished jobs are kept; 0: not at all, NULL: for ever. Dead jobs are kept until somebody decides';
COMMENT ON COLUMN jobq.queue.retry_first IS 'wait after the first failure; after the nth: least(retry_longest, retry_first * retry_factor^(n-1)), spread by retry_jitter';
COMMENT ON COLUMN jobq.queue.retry_factor IS 'growth of the wait from failure to failure, 1 to 100';
COMMENT ON COLUMN jobq.queue.retry_longest IS 'longest wait, before jitter; at most 1 year';
COMMENT ON COLUMN jobq.queue.retry_jitter IS 'a wait is multiplied by a random number within 1 - retry_jitter and 1 + retry_jitter; 0 to 1';
COMMENT ON COLUMN jobq.queue.max_running IS 'most jobs of the queue that run at once, over all workers; NULL: no limit';
COMMENT ON COLUMN jobq.queue.types IS 'other retry settings for some types: {"type": {"max_attempts": 3, "retry_first": "1 s", ...}}';
COMMENT ON COLUMN jobq.queue.routes IS 'endpoints of some types, by their ids: {"type": 3}; other types go to the queue''s endpoint, or wait where it has none. See jobq.routes';
COMMENT ON COLUMN jobq.queue.home IS 'the database that delivers its jobs; in a restored dump or a copy another than this one, until jobq.adopt()';

-- C++ behind the checks, so that push and the settings refuse the same things.
CREATE FUNCTION jobq.check_name(what text, name text) RETURNS void
    LANGUAGE c IMMUTABLE STRICT AS 'MODULE_PATHNAME', 'jobq_check_name';
CREATE FUNCTION jobq.check_url(url text) RETURNS void
    LANGUAGE c IMMUTABLE STRICT AS 'MODULE_PATHNAME', 'jobq_check_url';
CREATE FUNCTION jobq.check_headers(headers jsonb) RETURNS void
    LANGUAGE c IMMUTABLE STRICT AS 'MODULE_PATHNAME', 'jobq_check_headers';
CREATE FUNCTION jobq.check_statuses(statuses text[]) RETURNS void
    LANGUAGE c IMMUTABLE STRICT AS 'MODULE_PATHNAME', 'jobq_check_statuses';
CREATE FUNCTION jobq.check_path(what text, path text) RETURNS void
    LANGUAGE c IMMUTABLE STRICT AS 'MODULE_PATHNAME', 'jobq_check_path';
CREATE FUNCTION jobq.check_proxy(proxy text) RETURNS void
    LANGUAGE c IMMUTABLE STRICT AS 'MODULE_PATHNAME', 'jobq_check_proxy';
CREATE FUNCTION jobq.check_source(cloudevents_source text) RETURNS void
    LANGUAGE c IMMUTABLE STRICT AS 'MODULE_PATHNAME', 'jobq_check_source';
CREATE FUNCTION jobq.check_secret(secret text) RETURNS void
    LANGUAGE c IMMUTABLE STRICT AS 'MODULE_PATHNAME', 'jobq_check_secret';
CREATE FUNCTION jobq.new_secret() RETURNS text
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'jobq_new_secret';

-- Locks the name of a queue or an endpoint until the end of the transaction: shared by who makes jobs for it,
-- exclusive for who drops or renames it. So these wait for each other, and for nobody else.
CREATE FUNCTION jobq.lock_name(what text, name text, exclusive boolean) RETURNS void
    LANGUAGE c STRICT AS 'MODULE_PATHNAME', 'jobq_lock_name';

CREATE FUNCTION jobq.require_read_committed(what text) RETURNS void
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RAISE feature_not_supported USING
            MESSAGE = format('%s can only be dropped in a READ COMMITTED transaction', what),
            DETAIL = 'What others have committed meanwhile must be seen.',
            HINT = 'Begin the transaction with ISOLATION LEVEL READ COMMITTED.';
    END IF;
END $$;

CREATE FUNCTION jobq.check_number(name text, value numeric, low numeric, high numeric) RETURNS void
    LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF value < low OR value > high THEN
        RAISE invalid_parameter_value USING MESSAGE = format('%s must be between %s and %s', name, low, high);
    END IF;
END $$;

CREATE FUNCTION jobq.check_interval(name text, value interval, low interval, high interval) RETURNS void
    LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF value < low OR value > high THEN
        RAISE invalid_parameter_value USING MESSAGE = format('%s must be between %s and %s', name, low, high);
    END IF;
END $$;

-- Error 22023 for a key that is not known, 22004 for a null that may not be one (needed: these keys).
CREATE FUNCTION jobq.check_keys(what text, object jsonb, known text[], needed text[] DEFAULT '{}') RETURNS void
    LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    bad text;
BEGIN
    IF jsonb_typeof(object) <> 'object' THEN
        RAISE invalid_parameter_value USING MESSAGE = format('%s must be a JSON object', what);
    END IF;
    SELECT k INTO bad FROM jsonb_object_keys(object) AS k WHERE k <> ALL (known) LIMIT 1;
    IF FOUND THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('unknown key "%s" in %s', bad, what),
            HINT = format('Known keys are %s.', array_to_string(known, ', '));
    END IF;
    SELECT key INTO bad FROM jsonb_each(object) WHERE value = 'null' AND key = ANY (needed) LIMIT 1;
    IF FOUND THEN
        RAISE null_value_not_allowed USING MESSAGE = format('"%s" in %s must not be null', bad, what);
    END IF;
END $$;

CREATE FUNCTION jobq.check_choice(name text, value text, choices text[]) RETURNS void
    LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF value <> ALL (choices) THEN
        RAISE invalid_parameter_value USING MESSAGE = format('%s must be one of %s', name, array_to_string(choices, ', '));
    END IF;
END $$;

-- Error 22004 for a null in a column that may not be null. Before the constraint does so, whose DETAIL prints the row.
CREATE FUNCTION jobq.check_nulls(settings regclass, made jsonb) RETURNS void
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    bad text;
BEGIN
    SELECT a.attname INTO bad FROM pg_attribute AS a
        WHERE a.attrelid = settings AND a.attnum > 0 AND a.attnotnull AND made -> a.attname::text = 'null'
        ORDER BY a.attnum LIMIT 1;
    IF FOUND THEN
        RAISE null_value_not_allowed USING MESSAGE = format('%s must not be null', bad);
    END IF;
END $$;

CREATE FUNCTION jobq.check_retry_settings(max_attempts int, retry_first interval, retry_factor float8,
                                          retry_longest interval, retry_jitter float8) RETURNS void
    LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT jobq.check_number('max_attempts', max_attempts, 1, 10000),
           jobq.check_interval('retry_first', retry_first, '0 s', '1 year'),
           jobq.check_number('retry_factor', retry_factor::numeric, 1, 100),
           jobq.check_interval('retry_longest', retry_longest, '0 s', '1 year'),
           jobq.check_number('retry_jitter', retry_jitter::numeric, 0, 1);
$$;

-- Where the jobs of a type go, as job.endpoint_id says it: see there.
CREATE FUNCTION jobq.route_of(queue jobq.queue, type text) RETURNS int
    LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce((queue.routes ->> type)::int,
                    CASE WHEN queue.endpoint_id IS NULL AND queue.routes <> '{}' THEN -1 END);
$$;

-- The same for a job that named one, or did when it was pushed. A queue that is not delivered takes no notice.
CREATE FUNCTION jobq.route_for(queue jobq.queue, type text, named int) RETURNS int
    LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN queue.endpoint_id IS NULL AND queue.routes = '{}' THEN NULL
                WHEN named > 0 THEN named
                ELSE jobq.route_of(queue, type) END;
$$;

-- Before a queue's routes change: sends the jobs that went by the old ones by the new ones.
CREATE FUNCTION jobq.route_again(old jobq.queue, new jobq.queue) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    delivered boolean := new.endpoint_id IS NOT NULL OR new.routes <> '{}';
BEGIN
    IF new.routes = old.routes AND (new.endpoint_id IS NULL) = (old.endpoint_id IS NULL) THEN
        RETURN;
    END IF;
    PERFORM jobq.lock_name('queue', old.name, exclusive => true); -- none is pushed by the old ones from here on
    PERFORM jobq.wake(old.id, old.name);
    -- In the order in which whoever ends many locks them.
    WITH moved AS MATERIALIZED (
        SELECT j.id, jobq.route_for(new, j.type, NULL) AS endpoint_id FROM jobq.job AS j
        WHERE j.queue_id = old.id AND (j.endpoint_id IS NULL OR j.endpoint_id IS NOT NULL)
          AND (NOT delivered OR j.endpoint_id IS NOT DISTINCT FROM jobq.route_for(old, j.type, NULL))
          AND j.endpoint_id IS DISTINCT FROM jobq.route_for(new, j.type, NULL)
        ORDER BY j.id FOR UPDATE OF j
    )
    UPDATE jobq.job AS j SET endpoint_id = m.endpoint_id FROM moved AS m WHERE j.id = m.id;
END $$;

CREATE FUNCTION jobq.check_queue() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    settings record;
    target int;
BEGIN
    PERFORM jobq.check_name('queue', NEW.name),
            jobq.check_retry_settings(NEW.max_attempts, NEW.retry_first, NEW.retry_factor,
                                      NEW.retry_longest, NEW.retry_jitter),
            jobq.check_interval('lease', NEW.lease, '1 ms', '1 year'),
            jobq.check_interval('keep', NEW.keep, '0 s', '1000 years'),
            jobq.check_number('max_running', NEW.max_running, 1, 1000000);
    IF jsonb_typeof(NEW.types) <> 'object' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'types must be a JSON object';
    END IF;
    FOR settings IN SELECT key, value FROM jsonb_each(NEW.types) LOOP
        PERFORM jobq.check_keys(format('the settings of type "%s"', settings.key), settings.value,
                                '{max_attempts,retry_first,retry_factor,retry_longest,retry_jitter}');
        PERFORM jobq.check_retry_settings((settings.value->>'max_attempts')::int,
                                          (settings.value->>'retry_first')::interval,
                                          (settings.value->>'retry_factor')::float8,
                                          (settings.value->>'retry_longest')::interval,
                                          (settings.value->>'retry_jitter')::float8);
    END LOOP;
    IF TG_OP = 'UPDATE' AND NEW.id <> OLD.id THEN
        RAISE invalid_parameter_value USING MESSAGE = 'the id of a queue cannot be changed';
    END IF;
    IF TG_OP = 'UPDATE' AND NEW.name <> OLD.name THEN
        PERFORM jobq.lock_name('queue', OLD.name, exclusive => true);
    END IF;
    IF jsonb_typeof(NEW.routes) <> 'object'
       OR EXISTS (SELECT FROM jsonb_each_text(NEW.routes) AS r WHERE r.value IS NULL OR r.value !~ '^[0-9]{1,9}$') THEN
        RAISE invalid_parameter_value USING MESSAGE = 'routes must be a JSON object of endpoint ids',
            HINT = 'jobq.alter_queue takes them by the names of the endpoints.';
    END IF;
    -- No foreign key: pg_restore with several jobs loads an extension's tables in any order.
    IF TG_OP = 'UPDATE' AND (NEW.endpoint_id, NEW.routes) IS DISTINCT FROM (OLD.endpoint_id, OLD.routes) THEN
        FOR target IN SELECT NEW.endpoint_id WHERE NEW.endpoint_id IS NOT NULL
                      UNION SELECT r.value::int FROM jsonb_each_text(NEW.routes) AS r LOOP
            PERFORM FROM jobq.endpoint AS e WHERE e.id = target FOR KEY SHARE;
            IF NOT FOUND THEN
                RAISE undefined_object USING MESSAGE = format('endpoint %s does not exist', target);
            END IF;
        END LOOP;
        PERFORM jobq.route_again(OLD, NEW);
    END IF;
    RETURN NEW;
END $$;

CREATE FUNCTION jobq.check_endpoint() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    queue text;
BEGIN
    IF TG_OP = 'DELETE' THEN
        PERFORM jobq.require_read_committed('endpoints');
        SELECT q.name INTO queue FROM jobq.queue AS q
            WHERE q.endpoint_id = OLD.id OR EXISTS (SELECT FROM jsonb_each(q.routes) AS r WHERE r.value = to_jsonb(OLD.id))
            LIMIT 1;
        IF FOUND THEN
            RAISE object_in_use USING MESSAGE = format('endpoint "%s" is used by queue "%s"', OLD.name, queue),
                HINT = 'Give the queue another endpoint, or other routes, with jobq.alter_queue, or drop it.';
        END IF;
        DELETE FROM jobq.secret AS s WHERE s.endpoint_id = OLD.id;
        RETURN OLD;
    END IF;
    PERFORM jobq.check_nulls('jobq.endpoint', to_jsonb(NEW));
    PERFORM jobq.check_name('endpoint', NEW.name),
            jobq.check_url(NEW.url),
            jobq.check_choice('method', NEW.method, '{POST,PUT,PATCH,DELETE,GET}'),
            jobq.check_headers(NEW.headers),
            jobq.check_number('max_in_flight', NEW.max_in_flight, 1, 100000),
            jobq.check_number('min_in_flight', NEW.min_in_flight, 1, 100000),
            jobq.check_number('rate', NEW.rate::numeric, 0.0001, 1000000),
            jobq.check_number('burst', NEW.burst, 1, 100000),
            jobq.check_interval('timeout', NEW.timeout, '1 ms', '1 h'),
            jobq.check_interval('connect_timeout', NEW.connect_timeout, '1 ms', '1 h'),
            jobq.check_number('keep_response', NEW.keep_response, 0, 1048576),
            jobq.check_retry_settings(NEW.max_attempts, NEW.retry_first, NEW.retry_factor,
                                      NEW.retry_longest, NEW.retry_jitter),
            jobq.check_statuses(NEW.final_statuses),
            jobq.check_path('ca_file', NEW.ca_file),
            jobq.check_path('client_cert_file', NEW.client_cert_file),
            jobq.check_path('client_key_file', NEW.client_key_file),
            jobq.check_proxy(NEW.proxy),
            jobq.check_choice('http_version', NEW.http_version, '{auto,1.1,2}'),
            jobq.check_source(NEW.cloudevents_source),
            jobq.check_number('breaker_failures', NEW.breaker_failures, 0, 10000),
            jobq.check_interval('breaker_window', NEW.breaker_window, '1 s', '1 day'),
            jobq.check_interval('breaker_first', NEW.breaker_first, '1 s', '1 day'),
            jobq.check_interval('breaker_longest', NEW.breaker_longest, '1 s', '1 day');
    IF NEW.min_in_flight > NEW.max_in_flight THEN
        RAISE invalid_parameter_value USING MESSAGE = 'min_in_flight must not be greater than max_in_flight';
    END IF;
    IF NEW.breaker_first > NEW.breaker_longest THEN
        RAISE invalid_parameter_value USING MESSAGE = 'breaker_first must not be longer than breaker_longest';
    END IF;
    IF cardinality(NEW.retry_waits) NOT BETWEEN 1 AND 100 OR array_ndims(NEW.retry_waits) > 1 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'retry_waits must be a list of 1 to 100 intervals',
            HINT = 'NULL means no list: waits that grow by retry_factor.';
    END IF;
    IF array_position(NEW.retry_waits, NULL) IS NOT NULL THEN
        RAISE null_value_not_allowed USING MESSAGE = 'retry_waits must not contain nulls';
    END IF;
    PERFORM jobq.check_interval('each of retry_waits', w, '0 s', '1 year') FROM unnest(NEW.retry_waits) AS w;
    IF NEW.client_key_file IS NOT NULL AND NEW.client_cert_file IS NULL THEN
        RAISE invalid_parameter_value USING MESSAGE = 'client_key_file must not be set without client_cert_file';
    END IF;
    IF NEW.enabled THEN
        NEW.disabled_reason := NULL;
    END IF;
    IF TG_OP = 'UPDATE' AND NEW.id <> OLD.id THEN
        RAISE invalid_parameter_value USING MESSAGE = 'the id of an endpoint cannot be changed';
    END IF;
    IF TG_OP = 'UPDATE' AND NEW.name <> OLD.name THEN
        PERFORM jobq.lock_name('endpoint', OLD.name, exclusive => true);
    END IF;
    RETURN NEW;
END $$;

-- The endpoint need not exist on INSERT: see check_queue. No message says the secret, nor may one that is raised in here.
CREATE FUNCTION jobq.check_secret_row() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    most CONSTANT int := 10;
    same int;
    in_use int;
    named text;
BEGIN
    IF NEW.endpoint_id IS NULL OR NEW.secret IS NULL OR NEW.created_at IS NULL THEN
        RAISE null_value_not_allowed USING MESSAGE = format('%s must not be null',
            CASE WHEN NEW.endpoint_id IS NULL THEN 'endpoint_id' WHEN NEW.secret IS NULL THEN 'secret' ELSE 'created_at' END);
    END IF;
    PERFORM jobq.check_secret(NEW.secret);
    IF TG_OP = 'UPDATE' AND NEW.endpoint_id IS DISTINCT FROM OLD.endpoint_id THEN
        RAISE invalid_parameter_value USING MESSAGE = 'a secret cannot be given to another endpoint';
    END IF;
    SELECT count(*) FILTER (WHERE s.secret = NEW.secret),
           count(*) FILTER (WHERE s.expires_at IS NULL OR s.expires_at > clock_timestamp()),
           coalesce((SELECT format('"%s"', e.name) FROM jobq.endpoint AS e WHERE e.id = NEW.endpoint_id), NEW.endpoint_id::text)
        INTO same, in_use, named
        FROM jobq.secret AS s WHERE s.endpoint_id = NEW.endpoint_id;
    IF same > 1 THEN
        RAISE unique_violation USING MESSAGE = format('endpoint %s has this secret already', named);
    END IF;
    IF in_use > most THEN
        RAISE program_limit_exceeded USING
            MESSAGE = format('endpoint %s must not have more than %s secrets in use', named, most),
            HINT = 'Rotate with overlap => ''0'' to let older ones expire at once, or wait until one has.';
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION jobq.settings_changed() RETURNS trigger
    LANGUAGE c AS 'MODULE_PATHNAME', 'jobq_settings_changed';

CREATE TRIGGER check_queue BEFORE INSERT OR UPDATE ON jobq.queue
    FOR EACH ROW EXECUTE FUNCTION jobq.check_queue();
CREATE TRIGGER check_endpoint BEFORE INSERT OR UPDATE OR DELETE ON jobq.endpoint
    FOR EACH ROW EXECUTE FUNCTION jobq.check_endpoint();
CREATE TRIGGER settings_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON jobq.queue
    FOR EACH STATEMENT EXECUTE FUNCTION jobq.settings_changed();
CREATE TRIGGER settings_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON jobq.endpoint
    FOR EACH STATEMENT EXECUTE FUNCTION jobq.settings_changed();
CREATE TRIGGER check_secret AFTER INSERT OR UPDATE ON jobq.secret
    FOR EACH ROW EXECUTE FUNCTION jobq.check_secret_row();
CREATE TRIGGER settings_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON jobq.secret
    FOR EACH STATEMENT EXECUTE FUNCTION jobq.settings_changed();

CREATE FUNCTION jobq.adopt() RETURNS void
    LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    UPDATE jobq.queue SET home = DEFAULT WHERE home <> jobq.this_database();
$$;
COMMENT ON FUNCTION jobq.adopt() IS 'Makes this database the home of its queues: their jobs are delivered from here. For a restored dump, a copy, or after pg_upgrade, when the original is gone: two homes deliver every job twice.';
