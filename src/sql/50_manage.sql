-- Managing.

-- Tells the dispatcher and waiting workers, after commit, that a queue may have something new to claim.
-- To be called before the rows are locked: a rollback that lets them go is told too.
CREATE FUNCTION jobq.wake(queue_id int, queue text) RETURNS void
    LANGUAGE c AS 'MODULE_PATHNAME', 'jobq_wake';
-- The same for a job that is taken out of the queue.
CREATE FUNCTION jobq.wake_taken(queue_id int, queue text, endpoint_id int, run_at timestamptz, seq bigint) RETURNS void
    LANGUAGE c AS 'MODULE_PATHNAME', 'jobq_wake_taken';

CREATE FUNCTION jobq.queue_named(queue text) RETURNS jobq.queue
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found jobq.queue;
BEGIN
    IF queue IS NULL THEN
        RAISE null_value_not_allowed USING MESSAGE = 'queue must not be null';
    END IF;
    SELECT * INTO found FROM jobq.queue AS q WHERE q.name = queue;
    IF found.id IS NULL THEN
        RAISE undefined_object USING MESSAGE = format('queue "%s" does not exist', queue),
            HINT = format('Create it with SELECT jobq.create_queue(%L).', queue);
    END IF;
    RETURN found;
END $$;

CREATE FUNCTION jobq.endpoint_named(endpoint text) RETURNS jobq.endpoint
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found jobq.endpoint;
BEGIN
    IF endpoint IS NULL THEN
        RAISE null_value_not_allowed USING MESSAGE = 'endpoint must not be null';
    END IF;
    SELECT * INTO found FROM jobq.endpoint AS e WHERE e.name = endpoint;
    IF found.id IS NULL THEN
        RAISE undefined_object USING MESSAGE = format('endpoint "%s" does not exist', endpoint),
            HINT = format('Create it with SELECT jobq.create_endpoint(%L, ''https://...'').', endpoint);
    END IF;
    RETURN found;
END $$;

-- A queue's row with the settings given laid over it. options' keys are columns, but for "endpoint".
CREATE FUNCTION jobq.queue_with(base jobq.queue, endpoint text, max_attempts int, lease interval, keep interval, options jsonb) RETURNS jobq.queue
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    settings jsonb := jsonb_strip_nulls(jsonb_build_object(
        'endpoint', endpoint, 'max_attempts', max_attempts, 'lease', lease, 'keep', keep));
    made jobq.queue;
BEGIN
    IF options IS NOT NULL THEN
        PERFORM jobq.check_keys('options', options,
            '{endpoint,routes,max_attempts,lease,keep,retry_first,retry_factor,retry_longest,retry_jitter,max_running,types}',
            '{routes,max_attempts,lease,retry_first,retry_factor,retry_longest,retry_jitter,types}');
        settings := options || settings;
    END IF;
    IF settings ? 'routes' THEN
        IF jsonb_typeof(settings->'routes') <> 'object' OR jsonb_path_exists(settings->'routes', '$.* ? (@.type() != "string")') THEN
            RAISE invalid_parameter_value USING MESSAGE = 'routes must be a JSON object of endpoint names';
        END IF;
        settings := settings || jsonb_build_object('routes', (
            SELECT coalesce(jsonb_object_agg(r.key, (jobq.endpoint_named(r.value)).id), '{}')
            FROM jsonb_each_text(settings->'routes') AS r));
    END IF;
    made := jsonb_populate_record(base, settings - 'endpoint');
    IF settings ? 'endpoint' THEN
        made.endpoint_id := CASE WHEN settings->>'endpoint' IS NOT NULL
                                 THEN (jobq.endpoint_named(settings->>'endpoint')).id END;
    END IF;
    RETURN made;
END $$;

CREATE FUNCTION jobq.create_queue(
    queue text, endpoint text DEFAULT NULL, max_attempts int DEFAULT NULL, lease interval DEFAULT NULL,
    keep interval DEFAULT NULL, options jsonb DEFAULT NULL, if_not_exists boolean DEFAULT false) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    made jobq.queue;
BEGIN
    IF queue IS NULL THEN
        RAISE null_value_not_allowed USING MESSAGE = 'queue must not be null';
    END IF;
    PERFORM jobq.check_name('queue', queue);
    INSERT INTO jobq.queue AS q (name) VALUES (queue) ON CONFLICT (name) DO NOTHING RETURNING q.* INTO made;
    IF made.id IS NULL THEN
        IF if_not_exists THEN
            RAISE NOTICE 'queue "%" already exists, skipping', queue;
            RETURN;
        END IF;
        RAISE duplicate_object USING MESSAGE = format('queue "%s" already exists', queue);
    END IF;
    made := jobq.queue_with(made, endpoint, max_attempts, lease, keep, options);
    UPDATE jobq.queue AS q
        SET (endpoint_id, max_attempts, lease, keep, retry_first, retry_factor, retry_longest, retry_jitter, max_running, types,
             routes)
          = (made.endpoint_id, made.max_attempts, made.lease, made.keep, made.retry_first, made.retry_factor,
             made.retry_longest, made.retry_jitter, made.max_running, made.types, made.routes)
        WHERE q.id = made.id;
END $$;
COMMENT ON FUNCTION jobq.create_queue IS
'Creates a queue. With an endpoint its jobs are delivered by the server, without one they are pulled.
queue: 1 to 48 bytes. NULL settings take their defaults: max_attempts 25, lease 5 min, keep 7 days. options: any setting by its column name in jobq.queue: retry_first, retry_factor, retry_longest, retry_jitter, max_running, types, "keep": null for ever, and routes: {"type": "endpoint"} sends jobs of these types to other endpoints than the queue''s. Types without a route, in a queue without an endpoint, wait in state unrouted until there is one.
Errors: 42710 exists already, 42704 unknown endpoint, 22023 bad value or unknown key.
Example: SELECT jobq.create_queue(''emails'', endpoint => ''mailer'', max_attempts => 10);';

CREATE FUNCTION jobq.alter_queue(
    queue text, endpoint text DEFAULT NULL, max_attempts int DEFAULT NULL, lease interval DEFAULT NULL,
    keep interval DEFAULT NULL, options jsonb DEFAULT NULL) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    made jobq.queue;
BEGIN
    -- Its name before its row, as whoever pushes and then writes the row: see route_again.
    IF endpoint IS NOT NULL OR options ?| '{endpoint,routes}' THEN
        PERFORM jobq.lock_name('queue', queue, exclusive => true);
    END IF;
    PERFORM FROM jobq.queue AS q WHERE q.name = alter_queue.queue FOR UPDATE;
    made := jobq.queue_with(jobq.queue_named(queue), endpoint, max_attempts, lease, keep, options);
    UPDATE jobq.queue AS q
        SET (endpoint_id, max_attempts, lease, keep, retry_first, retry_factor, retry_longest, retry_jitter, max_running, types,
             routes)
          = (made.endpoint_id, made.max_attempts, made.lease, made.keep, made.retry_first, made.retry_factor,
             made.retry_longest, made.retry_jitter, made.max_running, made.types, made.routes)
        WHERE q.id = made.id;
END $$;
COMMENT ON FUNCTION jobq.alter_queue IS
'Changes settings of a queue; what is NULL or not named stays. options as in jobq.create_queue; a null there unsets what may be unset: {"endpoint": null} makes it a queue to pull from, {"max_running": null} lifts the limit, {"keep": null} keeps finished jobs for ever. New routes replace the old ones, for the jobs that wait too; while they change, pushes to the queue wait. Takes effect after commit; jobs keep the max_attempts they were pushed with.
Errors: 42704 unknown queue or endpoint, 22023 bad value or unknown key.
Example: SELECT jobq.alter_queue(''emails'', options => ''{"retry_longest": "10 min"}'');';

CREATE FUNCTION jobq.drop_queue(queue text, force boolean DEFAULT false, if_exists boolean DEFAULT false) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found jobq.queue;
BEGIN
    PERFORM jobq.require_read_committed('queues');
    -- Twice: before the lock, so that a drop that is refused holds off nobody; and again when nobody else
    -- can make jobs for the queue any more.
    FOR look IN 1..2 LOOP
        IF if_exists AND queue IS NOT NULL AND NOT EXISTS (SELECT FROM jobq.queue AS q WHERE q.name = drop_queue.queue) THEN
            RAISE NOTICE 'queue "%" does not exist, skipping', queue;
            RETURN;
        END IF;
        found := jobq.queue_named(queue);
        IF NOT force AND (EXISTS (SELECT FROM jobq.job AS j WHERE j.queue_id = found.id AND j.endpoint_id IS NULL)
                          OR EXISTS (SELECT FROM jobq.job AS j WHERE j.queue_id = found.id AND j.endpoint_id IS NOT NULL)
                          OR EXISTS (SELECT FROM jobq.dead AS d WHERE d.queue_id = found.id)) THEN
            RAISE object_in_use USING MESSAGE = format('queue "%s" still has jobs', queue),
                HINT = 'Drop it with force => true to drop its jobs too.';
        END IF;
        PERFORM jobq.lock_name('queue', queue, exclusive => true);
    END LOOP;
    -- Who ends a job writes its row first: this waits for all of them, in the order in which they lock several.
    -- By both indexes: each has a part of a queue's jobs.
    PERFORM FROM jobq.job AS j WHERE j.queue_id = found.id AND (j.endpoint_id IS NULL OR j.endpoint_id IS NOT NULL) ORDER BY j.id FOR UPDATE;
    DELETE FROM jobq.running_group AS r WHERE r.queue_id = found.id;
    WITH gone AS (DELETE FROM jobq.job AS j WHERE j.queue_id = found.id AND (j.endpoint_id IS NULL OR j.endpoint_id IS NOT NULL) RETURNING j.id)
        DELETE FROM jobq.attempt AS a USING gone AS g WHERE a.job_id = g.id;
    WITH gone AS (DELETE FROM jobq.dead AS d WHERE d.queue_id = found.id RETURNING d.id)
        DELETE FROM jobq.attempt AS a USING gone AS g WHERE a.job_id = g.id;
    WITH gone AS (DELETE FROM jobq.finished AS f WHERE f.queue_id = found.id RETURNING f.id)
        DELETE FROM jobq.attempt AS a USING gone AS g WHERE a.job_id = g.id;
    DELETE FROM jobq.queue AS q WHERE q.id = found.id;
END $$;
COMMENT ON FUNCTION jobq.drop_queue IS
'Drops a queue and its finished jobs; with force also jobs that wait, run or are dead. Waits for transactions that have pushed to the queue, pulled from it or are ending its jobs, and holds off others until it commits; other queues go on.
Errors: 42704 unknown queue, 55006 it still has jobs, 0A000 not READ COMMITTED.
Example: SELECT jobq.drop_queue(''emails'', force => true);';

-- The settings of an endpoint that options may name: its columns, in their order. Those that may not be null come
-- as needed too.
CREATE FUNCTION jobq.endpoint_settings(OUT known text[], OUT needed text[])
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT array_agg(a.attname::text ORDER BY a.attnum), array_agg(a.attname::text ORDER BY a.attnum) FILTER (WHERE a.attnotnull)
    FROM pg_attribute AS a
    WHERE a.attrelid = 'jobq.endpoint'::regclass AND a.attnum > 0 AND NOT a.attisdropped
      AND a.attname <> ALL ('{id,name,disabled_reason}');
$$;

-- An endpoint's row with the settings given laid over it.
CREATE FUNCTION jobq.endpoint_with(base jobq.endpoint, url text, max_in_flight int, timeout interval, headers jsonb, options jsonb) RETURNS jobq.endpoint
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    settings jsonb := jsonb_strip_nulls(jsonb_build_object(
        'url', url, 'max_in_flight', max_in_flight, 'timeout', timeout))
        || CASE WHEN headers IS NULL THEN '{}' ELSE jsonb_build_object('headers', headers) END;
BEGIN
    IF options IS NOT NULL THEN
        PERFORM jobq.check_keys('options', options, s.known, s.needed) FROM jobq.endpoint_settings() AS s;
        settings := options || settings;
    END IF;
    IF settings->'headers' = 'null' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'headers must be a JSON object of strings';
    END IF;
    RETURN jsonb_populate_record(base, settings);
END $$;

CREATE FUNCTION jobq.write_endpoint(made jobq.endpoint) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE (SELECT format('UPDATE jobq.endpoint AS e SET %s WHERE e.id = ($1).id',
                           string_agg(format('%1$I = ($1).%1$I', setting), ', '))
             FROM unnest((SELECT s.known FROM jobq.endpoint_settings() AS s)) AS setting)
        USING made;
END $$;

CREATE FUNCTION jobq.create_endpoint(
    endpoint text, url text, max_in_flight int DEFAULT NULL, timeout interval DEFAULT NULL,
    headers jsonb DEFAULT NULL, options jsonb DEFAULT NULL, if_not_exists boolean DEFAULT false) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    made jobq.endpoint;
BEGIN
    IF endpoint IS NULL OR url IS NULL THEN
        RAISE null_value_not_allowed USING MESSAGE = CASE WHEN endpoint IS NULL THEN 'endpoint' ELSE 'url' END || ' must not be null';
    END IF;
    INSERT INTO jobq.endpoint AS e (name, url) VALUES (endpoint, create_endpoint.url) ON CONFLICT (name) DO NOTHING RETURNING e.* INTO made;
    IF made.id IS NULL THEN
        IF if_not_exists THEN
            RAISE NOTICE 'endpoint "%" already exists, skipping', endpoint;
            RETURN;
        END IF;
        RAISE duplicate_object USING MESSAGE = format('endpoint "%s" already exists', endpoint);
    END IF;
    PERFORM jobq.write_endpoint(jobq.endpoint_with(made, url, max_in_flight, timeout, headers, options));
    -- Also where requests are not signed: that can be switched on at any time.
    INSERT INTO jobq.secret (endpoint_id, secret) VALUES (made.id, jobq.new_secret());
END $$;
COMMENT ON FUNCTION jobq.create_endpoint IS
'Creates an endpoint, where jobs are sent to, with a secret of its own that requests are signed with: see jobq.secrets.
url: http or https, no credentials. NULL settings take their defaults: max_in_flight 50, timeout 30 s, no headers. options: any setting by its column name in jobq.endpoint, \d+ of which says what they mean: method, min_in_flight, rate, burst, connect_timeout, keep_response, max_attempts, retry_first, retry_factor, retry_longest, retry_jitter, retry_waits, final_statuses, accept_later, signed, ca_file, client_cert_file, client_key_file, proxy, http_version, gzip, cloudevents_source, breaker_failures, breaker_window, breaker_first, breaker_longest, enabled.
Errors: 42710 exists already, 22023 bad URL, header, value or unknown key, 22004 null where there must be a value.
Example: SELECT jobq.create_endpoint(''mailer'', ''https://mail.example.com/hook'', max_in_flight => 20, options => ''{"rate": 10, "final_statuses": ["404"], "retry_waits": ["5 s", "5 min", "1 h"]}'');';

CREATE FUNCTION jobq.alter_endpoint(
    endpoint text, url text DEFAULT NULL, max_in_flight int DEFAULT NULL, timeout interval DEFAULT NULL,
    headers jsonb DEFAULT NULL, options jsonb DEFAULT NULL) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM jobq.endpoint AS e WHERE e.name = alter_endpoint.endpoint FOR UPDATE;
    PERFORM jobq.write_endpoint(jobq.endpoint_with(jobq.endpoint_named(endpoint), url, max_in_flight, timeout, headers, options));
END $$;
COMMENT ON FUNCTION jobq.alter_endpoint IS
'Changes settings of an endpoint; what is NULL or not named stays. options as in jobq.create_endpoint; a null there unsets what may be unset: {"rate": null} lifts the limit, {"retry_waits": null} and the like go back to the queue''s. {"enabled": true} switches one on again that its receiver has disabled by an answer 410. Takes effect after commit; requests under way end as they began.
Errors: 42704 unknown endpoint, 22023 bad value or unknown key, 22004 null where there must be a value.
Example: SELECT jobq.alter_endpoint(''mailer'', timeout => ''5 s'');';

CREATE FUNCTION jobq.drop_endpoint(endpoint text, if_exists boolean DEFAULT false) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found jobq.endpoint;
    jobs record;
BEGIN
    PERFORM jobq.require_read_committed('endpoints');
    FOR look IN 1..2 LOOP -- see drop_queue
        IF if_exists AND endpoint IS NOT NULL AND NOT EXISTS (SELECT FROM jobq.endpoint AS e WHERE e.name = drop_endpoint.endpoint) THEN
            RAISE NOTICE 'endpoint "%" does not exist, skipping', endpoint;
            RETURN;
        END IF;
        found := jobq.endpoint_named(endpoint);
        -- At one look: jobs go from one table to the other.
        SELECT EXISTS (SELECT FROM jobq.queue AS q WHERE EXISTS (
                   SELECT FROM jobq.job AS j WHERE j.queue_id = q.id AND j.endpoint_id = found.id)) AS waiting,
               EXISTS (SELECT FROM jobq.dead AS d WHERE d.endpoint_id = found.id) AS dead
            INTO jobs;
        IF jobs.waiting THEN
            RAISE object_in_use USING MESSAGE = format('jobs for endpoint "%s" still wait', endpoint),
                HINT = 'Cancel or clear them first.';
        END IF;
        IF jobs.dead THEN
            RAISE object_in_use USING MESSAGE = format('there are dead jobs for endpoint "%s"', endpoint),
                HINT = 'Retry or clear them first.';
        END IF;
        PERFORM jobq.lock_name('endpoint', endpoint, exclusive => true);
        PERFORM FROM jobq.endpoint AS e WHERE e.id = found.id FOR UPDATE; -- see revive
    END LOOP;
    DELETE FROM jobq.endpoint AS e WHERE e.id = found.id;
END $$;
COMMENT ON FUNCTION jobq.drop_endpoint IS
'Drops an endpoint that no queue and no waiting or dead job uses, and its secrets. Holds off pushes that name it in their options until it commits.
Errors: 42704 unknown endpoint, 55006 still in use, 0A000 not READ COMMITTED.';

CREATE FUNCTION jobq.secrets(endpoint text) RETURNS TABLE (secret text, created_at timestamptz, expires_at timestamptz)
    LANGUAGE plpgsql SECURITY DEFINER ROWS 1 SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found jobq.endpoint := jobq.endpoint_named(endpoint);
BEGIN
    RETURN QUERY SELECT s.secret, s.created_at, s.expires_at FROM jobq.secret AS s
        WHERE s.endpoint_id = found.id AND (s.expires_at IS NULL OR s.expires_at > clock_timestamp())
        ORDER BY s.created_at DESC, s.id DESC;
END $$;
COMMENT ON FUNCTION jobq.secrets IS
'The secrets that requests to an endpoint are signed with, newest first: one, and during a rotation the older ones too, until they expire. Each is whsec_ and base64, as Standard Webhooks has it: what the receiver verifies webhook-signature with. Whoever may call this can sign requests like jobq''s.
Errors: 42704 unknown endpoint, 22004 NULL.
Example: SELECT secret FROM jobq.secrets(''mailer'') LIMIT 1;';

CREATE FUNCTION jobq.rotate_secret(endpoint text, overlap interval DEFAULT '1 day', secret text DEFAULT NULL) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    now timestamptz;
    found jobq.endpoint;
    made text;
BEGIN
    IF overlap IS NULL THEN
        RAISE null_value_not_allowed USING MESSAGE = 'overlap must not be null';
    END IF;
    PERFORM jobq.check_interval('overlap', overlap, '0 s', '1 year'), jobq.check_secret(secret);
    PERFORM FROM jobq.endpoint AS e WHERE e.name = rotate_secret.endpoint FOR NO KEY UPDATE; -- one rotation at a time
    found := jobq.endpoint_named(endpoint);
    now := clock_timestamp();
    made := coalesce(secret, jobq.new_secret());
    -- One that is there already becomes the newest again.
    DELETE FROM jobq.secret AS s WHERE s.endpoint_id = found.id AND (s.secret = made OR s.expires_at <= now);
    IF overlap = '0' THEN
        DELETE FROM jobq.secret AS s WHERE s.endpoint_id = found.id;
    ELSE
        UPDATE jobq.secret AS s SET expires_at = now + overlap
            WHERE s.endpoint_id = found.id AND (s.expires_at IS NULL OR s.expires_at > now + overlap);
    END IF;
    INSERT INTO jobq.secret (endpoint_id, secret, created_at) VALUES (found.id, made, now);
    RETURN made;
END $$;
COMMENT ON FUNCTION jobq.rotate_secret IS
'Gives an endpoint a new secret and returns it. Requests are signed with the older ones too until overlap is over (0 to 1 year; 0: no longer), so that the receiver can be told meanwhile; what would have expired sooner still does. Takes effect after commit.
secret: one from elsewhere instead of a new one, for moving here from another sender: whsec_ and the base64 of 24 to 64 bytes. A literal in a statement can be read in pg_stat_activity, in the server''s log and in the client''s history: give it as a parameter, and rather let one be made. One that the endpoint has already becomes its newest again.
Errors: 42704 unknown endpoint, 22004 NULL, 22023 bad overlap or secret, 54000 more than 10 in use.
Example: SELECT jobq.rotate_secret(''mailer'', overlap => ''2 days'');';

CREATE FUNCTION jobq.pause(queue text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found jobq.queue := jobq.queue_named(queue);
BEGIN
    UPDATE jobq.queue AS q SET paused = true WHERE q.id = found.id;
END $$;
COMMENT ON FUNCTION jobq.pause IS 'Stops claims from a queue, by deliveries and pulls alike, after commit. Pushes and what runs already go on. Errors: 42704 unknown queue.';

CREATE FUNCTION jobq.resume(queue text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found jobq.queue := jobq.queue_named(queue);
BEGIN
    UPDATE jobq.queue AS q SET paused = false WHERE q.id = found.id;
    PERFORM jobq.wake(found.id, found.name);
END $$;
COMMENT ON FUNCTION jobq.resume IS 'Lets claims from a queue go on after jobq.pause. Errors: 42704 unknown queue.';

-- Moves a job that has not ended to where ended jobs stand. The job's row is locked by the caller.
CREATE FUNCTION jobq.end_job(id uuid, state jobq.job_state, outcome text, error text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    job jobq.job;
    keep interval;
BEGIN
    DELETE FROM jobq.job AS j WHERE j.id = end_job.id RETURNING j.* INTO job;
    DELETE FROM jobq.running_group AS r
        WHERE r.queue_id = job.queue_id AND r.group_key = job.group_key AND r.job_id = job.id;
    SELECT q.keep INTO keep FROM jobq.queue AS q WHERE q.id = job.queue_id;
    IF keep = '0' THEN
        DELETE FROM jobq.attempt AS a WHERE a.job_id = end_job.id;
    ELSE
        INSERT INTO jobq.finished (id, seq, run_at, expires_at, started_at, finished_at, attempt, queue_id, endpoint_id,
                                   state, priority, failures, max_attempts, type, group_key, unique_key, pushed_by, worker,
                                   outcome, error, content_type, headers, payload, body)
            SELECT job.id, job.seq, job.run_at, job.expires_at, job.started_at, clock_timestamp(), job.attempt, job.queue_id,
                   job.endpoint_id, end_job.state, job.priority, job.failures, job.max_attempts, job.type, job.group_key,
                   job.unique_key, job.pushed_by, job.worker,
                   CASE WHEN job.lease_until IS NOT NULL THEN end_job.outcome END,
                   end_job.error, job.content_type, job.headers, job.payload, job.body;
    END IF;
END $$;

CREATE FUNCTION jobq.no_such_job(id uuid) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found jobq.job_state;
BEGIN
    IF id IS NULL THEN
        RAISE null_value_not_allowed USING MESSAGE = 'id must not be null';
    END IF;
    SELECT f.state INTO found FROM jobq.finished AS f WHERE f.id = no_such_job.id
        UNION ALL SELECT 'dead' FROM jobq.dead AS d WHERE d.id = no_such_job.id;
    IF found IS NULL THEN
        RAISE undefined_object USING MESSAGE = format('job %s does not exist', id),
            HINT = 'It may have finished and be no longer kept.';
    END IF;
    RAISE object_not_in_prerequisite_state USING MESSAGE = format('job %s is already %s', id, found);
END $$;

CREATE FUNCTION jobq.cancel(id uuid) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    job record;
BEGIN
    SELECT q.id AS queue_id, q.name AS queue, j.endpoint_id, j.run_at, j.seq, j.group_key INTO job
        FROM jobq.job AS j JOIN jobq.queue AS q ON q.id = j.queue_id
        WHERE j.id = cancel.id FOR UPDATE OF j;
    IF NOT FOUND THEN
        PERFORM jobq.no_such_job(id);
    END IF;
    PERFORM jobq.wake_taken(job.queue_id, job.queue, job.endpoint_id, job.run_at, job.seq);
    IF job.group_key IS NOT NULL THEN
        PERFORM jobq.wake(job.queue_id, job.queue); -- the next of its group may have been passed over
    END IF;
    PERFORM jobq.end_job(id, 'cancelled', 'cancelled', NULL);
END $$;
COMMENT ON FUNCTION jobq.cancel IS
'Cancels a job that waits or runs. One that runs is not stopped: its outcome is no longer recorded, and its worker is told so by the error of its next call. Locks the job''s row.
Errors: 42704 no such job, 55000 it has ended already, 22004 NULL id.';

-- A job that is put back goes by its queue's routes. Where the transaction sees older ones than there are: 40001.
CREATE FUNCTION jobq.require_current(queue_id int) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        PERFORM FROM jobq.queue AS q WHERE q.id = require_current.queue_id FOR SHARE;
    END IF;
END $$;

CREATE FUNCTION jobq.retry(id uuid) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    job jobq.job;
    ended jobq.finished;
    queue jobq.queue;
BEGIN
    SELECT * INTO queue FROM jobq.queue AS q
        WHERE q.id = coalesce((SELECT j.queue_id FROM jobq.job AS j WHERE j.id = retry.id),
                              (SELECT d.queue_id FROM jobq.dead AS d WHERE d.id = retry.id),
                              (SELECT f.queue_id FROM jobq.finished AS f WHERE f.id = retry.id LIMIT 1));
    PERFORM jobq.lock_name('queue', queue.name, exclusive => false); -- before any row, as drop_queue
    PERFORM jobq.require_current(queue.id);
    SELECT * INTO job FROM jobq.job AS j WHERE j.id = retry.id FOR UPDATE;
    IF FOUND THEN
        IF job.lease_until IS NOT NULL THEN
            RAISE object_not_in_prerequisite_state USING MESSAGE = format('job %s is running', id);
        END IF;
        UPDATE jobq.job AS j SET run_at = clock_timestamp() WHERE j.id = retry.id AND j.run_at > clock_timestamp();
    ELSE
        DELETE FROM jobq.dead AS d WHERE d.id = retry.id RETURNING d.* INTO ended;
        IF NOT FOUND THEN
            DELETE FROM jobq.finished AS f WHERE f.id = retry.id AND f.state IN ('cancelled', 'expired') RETURNING f.* INTO ended;
        END IF;
        IF ended.id IS NULL THEN
            PERFORM jobq.no_such_job(id);
        END IF;
        PERFORM jobq.revive(ended, clock_timestamp());
    END IF;
    PERFORM jobq.wake(queue.id, queue.name);
END $$;
COMMENT ON FUNCTION jobq.retry IS
'Queues a dead, cancelled or expired job again, to run now and with its attempts given back; a job that waits for a retry or a later time runs now. The id stays, attempt numbers go on.
Errors: 42704 no such job, 55000 it runs, is completed, or was for an endpoint that is gone, 22004 NULL id, 23505 another job waits for its unique key.';

-- Puts an ended job back, with its last attempt written to the attempts.
CREATE FUNCTION jobq.revive(ended jobq.finished, run_at timestamptz) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM jobq.endpoint AS e WHERE e.id = ended.endpoint_id FOR KEY SHARE; -- drop_endpoint waits for this
    IF ended.endpoint_id > 0 AND NOT FOUND THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('job %s cannot be retried: its endpoint was dropped', ended.id);
    END IF;
    INSERT INTO jobq.attempt (job_id, attempt, started_at, finished_at, status_code, outcome, worker, error, response)
        SELECT ended.id, ended.attempt, ended.started_at, ended.finished_at, ended.status_code, ended.outcome,
               ended.worker, ended.error, ended.response
        WHERE ended.started_at IS NOT NULL;
    INSERT INTO jobq.job (id, seq, run_at, queue_id, attempt, endpoint_id, priority, failures, max_attempts, key_waits,
                          type, group_key, unique_key, pushed_by, content_type, headers, payload, body)
        VALUES (ended.id, ended.seq, revive.run_at, ended.queue_id, ended.attempt,
                (SELECT jobq.route_for(q, ended.type, ended.endpoint_id) FROM jobq.queue AS q WHERE q.id = ended.queue_id),
                ended.priority, 0,
                ended.max_attempts, CASE WHEN ended.unique_key IS NOT NULL THEN true END, ended.type, ended.group_key,
                ended.unique_key, ended.pushed_by, ended.content_type, ended.headers, ended.payload, ended.body);
EXCEPTION WHEN unique_violation THEN
    RAISE unique_violation USING
        MESSAGE = format('another job waits for unique key "%s"', ended.unique_key),
        DETAIL = format('Job %s cannot wait for it too.', ended.id);
END $$;

CREATE FUNCTION jobq.retry_dead(queue text, types text[] DEFAULT NULL, at_most bigint DEFAULT NULL, spread interval DEFAULT NULL) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    found jobq.queue;
    now timestamptz := clock_timestamp();
    retried bigint;
BEGIN
    IF at_most < 0 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'at_most must not be negative';
    END IF;
    IF spread < '0' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'spread must not be negative';
    END IF;
    IF NOT isfinite(spread) THEN
        RAISE invalid_parameter_value USING MESSAGE = 'spread must be finite';
    END IF;
    PERFORM jobq.lock_name('queue', queue, exclusive => false); -- see drop_queue
    found := jobq.queue_named(queue);
    PERFORM jobq.require_current(found.id);
    WITH chosen AS MATERIALIZED (
        SELECT d.* FROM jobq.dead AS d
        WHERE d.queue_id = found.id AND (types IS NULL OR d.type = ANY (types))
          -- Those whose unique key is waited for, or comes twice, stay dead.
          AND (d.unique_key IS NULL OR NOT EXISTS (
                  SELECT FROM jobq.job AS j WHERE j.queue_id = d.queue_id AND j.unique_key = d.unique_key AND j.key_waits)
               AND NOT EXISTS (
                  SELECT FROM jobq.dead AS e WHERE e.queue_id = d.queue_id AND e.unique_key = d.unique_key AND e.seq > d.seq))
        ORDER BY d.finished_at, d.seq LIMIT at_most FOR UPDATE OF d SKIP LOCKED
    ), revived AS (
        INSERT INTO jobq.job (id, seq, run_at, queue_id, attempt, endpoint_id, priority, failures, max_attempts, key_waits,
                              type, group_key, unique_key, pushed_by, content_type, headers, payload, body)
            SELECT c.id, c.seq, now + coalesce(spread, '0') * random(), c.queue_id, c.attempt,
                   jobq.route_for(found, c.type, c.endpoint_id), c.priority, 0,
                   c.max_attempts, CASE WHEN c.unique_key IS NOT NULL THEN true END, c.type, c.group_key,
                   c.unique_key, c.pushed_by, c.content_type, c.headers, c.payload, c.body
            FROM chosen AS c
            -- In the order of the keys, as push_many: it may wait for a push of each.
            ORDER BY c.unique_key COLLATE "C", c.seq
            ON CONFLICT (queue_id, unique_key) WHERE key_waits DO NOTHING
            RETURNING job.id
    ), attempted AS (
        INSERT INTO jobq.attempt (job_id, attempt, started_at, finished_at, status_code, outcome, worker, error, response)
            SELECT c.id, c.attempt, c.started_at, c.finished_at, c.status_code, c.outcome, c.worker, c.error, c.response
            FROM chosen AS c JOIN revived AS r ON r.id = c.id
    ), gone AS (
        DELETE FROM jobq.dead AS d USING revived AS r WHERE d.id = r.id
    )
    SELECT count(*) INTO retried FROM revived;
    IF retried > 0 THEN
        PERFORM jobq.wake(found.id, found.name);
    END IF;
    RETURN retried;
END $$;
COMMENT ON FUNCTION jobq.retry_dead IS
'Queues a queue''s dead jobs again, oldest first, with their attempts given back: those of some types, at_most so many, at random times within spread from now (default: all now). Returns how many. A dead job whose unique key another job waits for stays dead.
Errors: 42704 unknown queue, 22023 negative at_most or spread.
Example: SELECT jobq.retry_dead(''emails'', spread => ''10 min'');';

CREATE FUNCTION jobq.clear(queue text, state text DEFAULT 'queued') RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found jobq.queue := jobq.queue_named(queue);
    gone uuid[];
BEGIN
    IF state = 'queued' THEN
        PERFORM jobq.wake(found.id, found.name);
        WITH waiting AS (
            SELECT j.id FROM jobq.job AS j
            WHERE j.queue_id = found.id AND (j.endpoint_id IS NULL OR j.endpoint_id IS NOT NULL) AND j.lease_until IS NULL
            FOR UPDATE OF j SKIP LOCKED
        )
        SELECT array_agg(w.id) INTO gone FROM waiting AS w;
        WITH cleared AS (
            DELETE FROM jobq.job AS j USING unnest(gone) AS g (id) WHERE j.id = g.id RETURNING j.id
        )
        SELECT array_agg(c.id) INTO gone FROM cleared AS c;
    ELSIF state = 'dead' THEN
        WITH cleared AS (DELETE FROM jobq.dead AS d WHERE d.queue_id = found.id RETURNING d.id)
        SELECT array_agg(c.id) INTO gone FROM cleared AS c;
    ELSIF state IN ('completed', 'cancelled', 'expired') THEN
        WITH cleared AS (
            DELETE FROM jobq.finished AS f WHERE f.queue_id = found.id AND f.state = clear.state::jobq.job_state RETURNING f.id
        )
        SELECT array_agg(c.id) INTO gone FROM cleared AS c;
    ELSIF state IS NULL THEN
        RAISE null_value_not_allowed USING MESSAGE = 'state must not be null';
    ELSE
        RAISE invalid_parameter_value USING MESSAGE = format('jobs in state "%s" cannot be cleared', state),
            HINT = 'States that can be cleared are queued, dead, completed, cancelled and expired.';
    END IF;
    DELETE FROM jobq.attempt AS a USING unnest(gone) AS g (id) WHERE a.job_id = g.id;
    RETURN coalesce(cardinality(gone), 0);
END $$;
COMMENT ON FUNCTION jobq.clear IS
'Deletes a queue''s jobs of one state (queued, which includes unrouted, dead, completed, cancelled, expired) without a trace and returns how many. Jobs that run, and those being claimed at this moment, stay.
Errors: 42704 unknown queue, 22004 NULL, 22023 other state.';

CREATE FUNCTION jobq.maintain() RETURNS bigint
    LANGUAGE c SECURITY DEFINER
    AS 'MODULE_PATHNAME', 'jobq_maintain';
COMMENT ON FUNCTION jobq.maintain() IS
'Takes back jobs whose lease has ended and deletes finished jobs that are no longer kept, up to 10000 of each; returns how many it dealt with. The dispatcher does this by itself; without the preload let a timer call it.';
