-- Producing. These run with the caller's identity, which they record, and write as their owner.

CREATE FUNCTION jobq.push(
    queue text, payload jsonb DEFAULT '{}', type text DEFAULT NULL,
    run_at timestamptz DEFAULT NULL, delay interval DEFAULT NULL, priority int DEFAULT 0,
    group_key text DEFAULT NULL, unique_key text DEFAULT NULL, options jsonb DEFAULT NULL) RETURNS uuid
    LANGUAGE c AS 'MODULE_PATHNAME', 'jobq_push';
COMMENT ON FUNCTION jobq.push IS
'Pushes a job and returns its id; the job exists when the transaction commits.
run_at or delay (not both; not negative): not before then. priority: -32768 to 32767, lower runs first.
group_key: at most one job of a group runs at a time, in the order of pushes.
unique_key: at most one job waits for a key in its queue; options.on_conflict says what a second push does: "skip" (default: returns the id of the waiting one), "replace" (the waiting one takes payload, type, time, priority and group of this push) or "error" (23505).
options: max_attempts (1 to 10000), headers (object of strings), endpoint (name; the queue must have one), pushed_by (default: the role), expires_at, on_conflict.
Errors: 42704 unknown queue or endpoint, 22004 NULL queue or payload, 22023 bad value, 54000 payload over jobq.max_payload.
Example: SELECT jobq.push(''emails'', ''{"to": "ada@example.com"}'', type => ''welcome'', delay => ''5 min'');';

CREATE FUNCTION jobq.push_bytes(
    queue text, body bytea, content_type text DEFAULT 'application/octet-stream', type text DEFAULT NULL,
    run_at timestamptz DEFAULT NULL, delay interval DEFAULT NULL, priority int DEFAULT 0,
    group_key text DEFAULT NULL, unique_key text DEFAULT NULL, options jsonb DEFAULT NULL) RETURNS uuid
    LANGUAGE c AS 'MODULE_PATHNAME', 'jobq_push_bytes';
COMMENT ON FUNCTION jobq.push_bytes IS
'As jobq.push, with a body of any bytes and its content type instead of a JSON payload.
Example: SELECT jobq.push_bytes(''invoices'', pdf, ''application/pdf'') FROM invoice;';

CREATE FUNCTION jobq.push_many(
    queue text, payloads jsonb[], type text DEFAULT NULL,
    run_at timestamptz DEFAULT NULL, delay interval DEFAULT NULL, priority int DEFAULT 0,
    types text[] DEFAULT NULL, group_keys text[] DEFAULT NULL, unique_keys text[] DEFAULT NULL,
    run_ats timestamptz[] DEFAULT NULL, options jsonb DEFAULT NULL) RETURNS SETOF uuid
    LANGUAGE c AS 'MODULE_PATHNAME', 'jobq_push_many';
COMMENT ON FUNCTION jobq.push_many IS
'Pushes a job for every payload and returns their ids in the order of the payloads. All or nothing.
types, group_keys, unique_keys and run_ats give one value a payload (NULL elements: as if not given) and have as many elements; the rest as in jobq.push, for all of them. Unique keys are taken in their own order, so that two such calls cannot deadlock.
Errors: as jobq.push; 2202E where the lengths differ; 22004 for a NULL payload.
Example: SELECT jobq.push_many(''emails'', array_agg(to_jsonb(u))) FROM users u;';

CREATE FUNCTION jobq.push_row() RETURNS trigger
    LANGUAGE c AS 'MODULE_PATHNAME', 'jobq_push_row';
COMMENT ON FUNCTION jobq.push_row() IS
'Trigger function: pushes a job for each row that was inserted, updated (the new row) or deleted (the old one), its payload the row as JSON. AFTER triggers only; FOR EACH ROW, or FOR EACH STATEMENT with REFERENCING NEW TABLE (DELETE: OLD TABLE), which is quicker for many rows.
Arguments: queue, then optionally type (or an empty string), then optionally options as JSON: columns (array: the columns to send), type_column, group_column, unique_column (the columns that give them), delay, priority, and the options of jobq.push.
Example: CREATE TRIGGER ship AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION jobq.push_row(''orders'', ''created'', ''{"columns": ["id", "total"], "group_column": "customer"}'');';
