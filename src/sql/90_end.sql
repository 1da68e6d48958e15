-- Nobody but the owner may do anything until it is granted.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA jobq FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA jobq FROM PUBLIC;
-- A view calls its functions with the rights of whoever reads it: SELECT on it is to be enough.
GRANT EXECUTE ON FUNCTION jobq.created_at(uuid), jobq.queue_stats(int), jobq.endpoint_state(int) TO PUBLIC;

-- When this transaction commits: starts deliveries, or says what is missing.
CREATE FUNCTION jobq.installed() RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'jobq_installed';
REVOKE ALL ON FUNCTION jobq.installed() FROM PUBLIC;
SELECT jobq.installed();
