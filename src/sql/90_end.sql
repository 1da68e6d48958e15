-- Nobody but the owner may do anything until it is granted.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA jobq FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA jobq FROM PUBLIC;

-- Wakes the launcher when this transaction commits.
CREATE FUNCTION jobq.installed() RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'jobq_installed';
REVOKE ALL ON FUNCTION jobq.installed() FROM PUBLIC;
SELECT jobq.installed();

DO $$
BEGIN
    IF NOT jobq.preloaded() THEN
        RAISE NOTICE 'jobq is installed, but this server does not deliver jobs yet'
            USING DETAIL = 'The library was not loaded at server start. Everything in SQL works; jobs of queues with an endpoint wait.',
                  HINT = 'Add jobq to shared_preload_libraries and restart the server.';
    END IF;
END $$;
