'use strict';
// The queues that are measured, each in a schema of its own: how it is set up, and its statements for
// client.cpp. Those of the queues from npm are the ones that their libraries send (peers.mjs).

const { literal } = require('./lib');

// Payloads and ids that SQL makes are those that client.cpp makes.
const common = `
    CREATE SCHEMA bench;
    CREATE FUNCTION bench.payload(i bigint) RETURNS jsonb IMMUTABLE LANGUAGE sql RETURN
        jsonb_build_object('n', lpad(i::text, 12, '0'), 'pad', repeat('x', 168));
    CREATE FUNCTION bench.uuid7() RETURNS uuid VOLATILE LANGUAGE sql RETURN
        (lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0') || '7'
         || substr(md5(random()::text), 1, 3) || '8' || substr(md5(random()::text), 1, 15))::uuid;
    CREATE TABLE bench.minimal (n int NOT NULL);
`;

// A statement as a library sent it, with its values written in, but for that of parameter $keep,
// which becomes $1. instead: replaces that one too.
function inline({ text, values }, keep, instead) {
    if (keep && !text.includes(`$${keep}`)) throw new Error(`this is not the statement that was expected: ${text}`);
    return text.replace(/\$(\d+)/g, (_, which) => {
        if (Number(which) === keep) return instead ?? '$1';
        const value = values[which - 1];
        if (value === null || value === undefined) return 'NULL';
        return literal(Array.isArray(value) ? `{${value.join(',')}}` : String(value));
    });
}

const numbers = (from, to) => `generate_series(${from}::bigint, ${to}) AS i`;

// jobq, with history kept as by default or not at all.
function jobq({ keep = true } = {}) {
    const settings = keep ? '' : ", keep => '0'";
    return {
        name: keep ? 'jobq' : 'jobq_no_history',
        label: keep ? 'jobq' : 'jobq, no history',
        schema: 'jobq',
        setup: `CREATE EXTENSION IF NOT EXISTS jobq; SELECT jobq.create_queue('bench'${settings});`,
        // Everything but settings; history and all.
        clear: `DO $$ BEGIN EXECUTE (
                SELECT 'TRUNCATE ' || string_agg(c.oid::regclass::text, ', ') FROM pg_class AS c
                WHERE c.relnamespace = 'jobq'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
                  AND c.relname NOT IN ('queue', 'endpoint'));
            END $$;
            SELECT jobq.alter_queue('bench', keep => ${keep ? "'7 days'" : "'0'"});`,
        fill: (from, to, more = '') =>
            `SELECT count(*) FROM jobq.push_many('bench', ARRAY(SELECT bench.payload(i) FROM ${numbers(from, to)})${more});`,
        push: { sql: "SELECT jobq.push('bench', $1)", bind: ['payload'] },
        pushMany: { sql: "SELECT jobq.push_many('bench', $1)", bind: ['payloads'] },
        pull: (batch) => `SELECT * FROM jobq.pull('bench', ${batch})`,
        complete: 'SELECT count(*) FROM jobq.complete_many($1, $2)',
        completeOne: 'SELECT jobq.complete($1, $2)',
        waiting: "SELECT count(*) FROM jobq.jobs WHERE state IN ('queued', 'running')",
        ...(keep && { kept: "SELECT count(*) FROM jobq.jobs WHERE state = 'completed'" }),
    };
}

// The queue of the article on job queues in Rust: a status column, UPDATE ... SKIP LOCKED, DELETE.
const article = {
    name: 'article',
    label: 'plain SQL, status column',
    schema: 'article',
    setup: `
        CREATE SCHEMA article;
        CREATE TABLE article.job (
            id uuid PRIMARY KEY,
            created_at timestamptz NOT NULL,
            updated_at timestamptz NOT NULL,
            scheduled_for timestamptz NOT NULL,
            failed_attempts int NOT NULL,
            status int NOT NULL,
            message jsonb NOT NULL);
        CREATE INDEX ON article.job (scheduled_for);
        CREATE INDEX ON article.job (status);`,
    clear: 'TRUNCATE article.job;',
    fill: (from, to) => `INSERT INTO article.job SELECT bench.uuid7(), t, t, t, 0, 0, bench.payload(i)
        FROM ${numbers(from, to)}, clock_timestamp() AS t;`,
    push: {
        sql: 'INSERT INTO article.job VALUES ($1, $2, $3, $4, $5, $6, $7)',
        bind: ['uuid', 'now', 'now', 'now', '=0', '=0', 'payload'],
    },
    pushMany: {
        sql: `INSERT INTO article.job SELECT id, now(), now(), now(), 0, 0, message
              FROM unnest($1::uuid[], $2::jsonb[]) AS t (id, message)`,
        bind: ['uuids', 'payloads'],
    },
    pull: (batch) => `UPDATE article.job SET status = 1, updated_at = now()
        WHERE id IN (SELECT id FROM article.job
                     WHERE status = 0 AND scheduled_for <= now() AND failed_attempts < 5
                     ORDER BY scheduled_for LIMIT ${batch} FOR UPDATE SKIP LOCKED)
        RETURNING id, failed_attempts, scheduled_for, message`,
    complete: 'DELETE FROM article.job WHERE id = ANY ($1)',
    completeOne: 'DELETE FROM article.job WHERE id = $1',
    waiting: 'SELECT count(*) FROM article.job',
};

// A visibility timeout, as pgmq keeps it: a read moves it forward, a delete ends the job.
const visibility = {
    name: 'visibility',
    label: 'plain SQL, visibility timeout',
    schema: 'visibility',
    setup: `
        CREATE SCHEMA visibility;
        CREATE TABLE visibility.job (
            msg_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            read_ct int NOT NULL DEFAULT 0,
            enqueued_at timestamptz NOT NULL DEFAULT now(),
            vt timestamptz NOT NULL,
            message jsonb);
        CREATE INDEX ON visibility.job (vt);`,
    clear: 'TRUNCATE visibility.job;',
    fill: (from, to) => `INSERT INTO visibility.job (vt, message)
        SELECT clock_timestamp(), bench.payload(i) FROM ${numbers(from, to)};`,
    push: { sql: 'INSERT INTO visibility.job (vt, message) VALUES (clock_timestamp(), $1)', bind: ['payload'] },
    pushMany: {
        sql: 'INSERT INTO visibility.job (vt, message) SELECT clock_timestamp(), p FROM unnest($1::jsonb[]) AS p',
        bind: ['payloads'],
    },
    pull: (batch) => `WITH due AS (
            SELECT msg_id FROM visibility.job WHERE vt <= clock_timestamp()
            ORDER BY msg_id LIMIT ${batch} FOR UPDATE SKIP LOCKED)
        UPDATE visibility.job AS j SET vt = clock_timestamp() + interval '5 min', read_ct = read_ct + 1
        FROM due WHERE j.msg_id = due.msg_id
        RETURNING j.msg_id, j.read_ct, j.enqueued_at, j.vt, j.message`,
    complete: 'DELETE FROM visibility.job WHERE msg_id = ANY ($1)',
    completeOne: 'DELETE FROM visibility.job WHERE msg_id = $1',
    waiting: 'SELECT count(*) FROM visibility.job',
};

// Made from what peers.mjs recorded; the schema is made by the library itself.
function graphile(sent) {
    return {
        name: 'graphile',
        label: 'graphile-worker',
        schema: 'graphile_worker',
        npm: true,
        clear: 'TRUNCATE graphile_worker._private_jobs;',
        fill: (from, to) => inline(sent.pushMany, 1, `(SELECT json_agg(json_build_object(
            'identifier', 'bench', 'payload', bench.payload(i))) FROM ${numbers(from, to)})`)
            .replace('select *', 'select count(*)').replace(/;?\s*$/, ';'),
        push: { sql: inline(sent.push, 2), bind: ['payload'] },
        // Without the rows that it returns: the client's time shall not count against it.
        pushMany: {
            sql: inline(sent.pushMany, 1).replace('select *', 'select count(*)').replace(/;\s*$/, ''),
            bind: ['spec:{"identifier":"bench","payload":@}'],
        },
        pull: (batch) => inline(sent.pull, 0).replace('limit 100', `limit ${batch}`),
        complete: inline(sent.complete, 1),
        waiting: 'SELECT count(*) FROM graphile_worker._private_jobs',
    };
}

function boss(sent) {
    return {
        name: 'boss',
        label: 'pg-boss',
        schema: 'pgboss',
        npm: true,
        clear: 'TRUNCATE pgboss.job;',
        fill: (from, to) => `${inline(sent.pushMany, 1, `(SELECT json_agg(json_build_object(
            'data', bench.payload(i))) FROM ${numbers(from, to)})`)};`,
        push: { sql: inline(sent.push, 1), bind: ['spec:{"name":"bench","data":@,"priority":0}'] },
        pushMany: { sql: inline(sent.pushMany, 1), bind: ['spec:{"data":@}'] },
        pull: (batch) => inline(sent.pull, 0).replace('LIMIT 100', `LIMIT ${batch}`),
        complete: inline(sent.complete, 2),
        waiting: "SELECT count(*) FROM pgboss.job WHERE name = 'bench' AND state < 'completed'",
        kept: "SELECT count(*) FROM pgboss.job WHERE name = 'bench' AND state = 'completed'",
    };
}

// Acknowledges whole batches, in the order of ticks: another contract, so it is reported apart. With
// its default settings a tick comes every 500 events.
const pgq = {
    name: 'pgq',
    label: 'PgQ',
    schema: 'pgq',
    setup: `CREATE EXTENSION pgq; SELECT pgq.create_queue('bench'); SELECT pgq.register_consumer('bench', 'bench');`,
    clear: `SELECT pgq.unregister_consumer('bench', 'bench'); SELECT pgq.drop_queue('bench');
            SELECT pgq.create_queue('bench'); SELECT pgq.register_consumer('bench', 'bench');`,
    perTick: 500,
    fill: (from, to) =>
        `SELECT count(pgq.insert_event('bench', 'job', bench.payload(i)::text)) FROM ${numbers(from, to)}; ${pgq.tick}`,
    // Now, also if there is less than that to tick for.
    tick: "SELECT pgq.force_tick('bench'); SELECT pgq.ticker('bench');",
    push: { sql: "SELECT pgq.insert_event('bench', 'job', $1)", bind: ['payload'] },
    pull: () => `SELECT b.id, e.ev_id, e.ev_data
        FROM (SELECT pgq.next_batch('bench', 'bench') AS id OFFSET 0) AS b,
             LATERAL (SELECT * FROM pgq.get_batch_events(b.id)) AS e
        WHERE b.id IS NOT NULL`,
    complete: `SELECT cardinality(ids) FROM (SELECT $1::bigint[] AS ids) AS a
        WHERE pgq.finish_batch(ids[1]) = 1`,
};

module.exports = { common, jobq, article, visibility, graphile, boss, pgq };
