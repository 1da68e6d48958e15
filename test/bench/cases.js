'use strict';
// The cases, each a function of its name for ONLY=. They run what they compare in alternating rounds,
// check that what came in went out, and add rows to the table. b: the bench, see bench.js.

const fs = require('fs');
const path = require('path');
const {
    here, median, quantile, pause, sql, number, row, holdSnapshot, restartServer, run, client, until, webServer,
    slowServer,
} = require('./lib');
const { jobq, article, visibility } = require('./systems');

const rates = (results) => results.map(({ rate }) => rate);
const middle = (results) => median(rates(results));
const quickest = (named) => named.reduce((a, c) => (c[1] > a[1] ? c : a)); // of [name, rate]

// Lets a system be drained of some jobs, and checks that all of them came out. A pull of a batch and
// its completion are a transaction each.
async function drain(b, db, system, { jobs, workers, batch, each = false }) {
    b.refill(db, system, jobs);
    const result = await client(db, {
        pull: system.pull(batch), complete: each ? system.completeOne : system.complete, each, workers, jobs,
    });
    b.emptied(db, system, jobs, result.finished);
    return result;
}

// Drained as fast as it goes, while pushes keep so many waiting as there are now.
async function steady(b, db, system, { seconds, push = system.pushMany, window }) {
    const before = number(db, system.waiting);
    const result = await client(db, {
        push: push.sql, bind: push.bind, per: 100, first: before, level: before, waiting: before,
        pull: system.pull(100), complete: system.complete,
        seconds: seconds + b.size.skip, skip: b.size.skip, window,
    });
    const left = number(db, system.waiting);
    b.check(`${system.label}: ${before} waited, ${result.pushed} in, ${result.finished} out, ${left} wait`,
        before + result.pushed - result.finished === left && result.pulled === result.finished);
    return result;
}

// ---- push

async function push_one(b) {
    await b.database('push', [jobq(), ...b.peers()], async (db) => {
        sql(db, 'CREATE TABLE bench.bare (LIKE jobq.job INCLUDING ALL)');
        // The values of a row that jobq.push('bench', $1) writes, as the client would bind them.
        const values = {
            id: 'uuid', seq: 'number', run_at: 'now', queue_id: '=1', attempt: '=0', priority: '=0', failures: '=0',
            max_attempts: '=25', pushed_by: '=postgres', payload: 'payload',
        };
        const columns = Object.keys(values);
        const bare = {
            name: 'bare', label: 'bare INSERT',
            clear: 'TRUNCATE bench.bare;',
            waiting: 'SELECT count(*) FROM bench.bare',
            push: {
                sql: `INSERT INTO bench.bare (${columns}) VALUES (${columns.map((_, i) => `$${i + 1}`)})`,
                bind: Object.values(values),
            },
        };
        const missing = sql(db, `SELECT coalesce(string_agg(attname, ', '), '') FROM pg_attribute
            WHERE attrelid = 'jobq.job'::regclass AND attnum > 0 AND NOT attisdropped AND attnotnull
              AND attname <> ALL ('{${columns}}')`);
        if (missing) throw new Error(`the bare INSERT does not know these columns of jobq.job: ${missing}`);

        const timed = (system, pushers) => async () => {
            b.clear(db, system);
            const result = await client(db, {
                push: system.push.sql, bind: system.push.bind, pushers,
                seconds: b.size.push_seconds + b.size.skip, skip: b.size.skip,
            });
            const found = number(db, system.waiting);
            b.check(`${system.label}: ${result.pushed} pushed, ${found} there`, result.pushed === found);
            return { rate: result.push_rate, push: result.push };
        };
        const ours = {};
        for (const [pushers, least] of [[1, 0.9], [8, 0.9], [32, 0.85]]) {
            const systems = [jobq(), bare, ...(pushers === 8 ? b.peers() : [])];
            const results = await b.alternate(Object.fromEntries(systems.map((s) => [s.name, timed(s, pushers)])));
            const clients = pushers === 1 ? '1 client' : `${pushers} clients`;
            b.keep(clients, results);
            ours[pushers] = middle(results.jobq);
            const what = `push, ${clients}`;
            b.row({ what, ours: ours[pushers], against: bare.label, theirs: middle(results.bare), least, unit: '/s' });
            b.bar('push, one a transaction', clients, systems.map(({ name, label }) => [label, middle(results[name])]));
            for (const peer of systems.filter((s) => s !== bare && s.name !== 'jobq'))
                b.row({ what, ours: ours[pushers], against: peer.label, theirs: middle(results[peer.name]), unit: '/s' });
        }
        b.row({
            what: 'push, 32 clients: no drop from wake-ups', ours: ours[32], against: '8 clients', theirs: ours[8],
            least: 1, unit: '/s',
        });
    });
}

async function push_many(b) {
    await b.database('push_many', [jobq(), ...b.peers()], async (db) => {
        sql(db, 'CREATE TABLE bench.bare (LIKE jobq.job INCLUDING ALL)');
        const bare = {
            name: 'bare', label: 'bare INSERT of the rows',
            clear: 'TRUNCATE bench.bare;',
            waiting: 'SELECT count(*) FROM bench.bare',
            pushMany: {
                sql: `INSERT INTO bench.bare (id, seq, run_at, queue_id, attempt, priority, failures, max_attempts,
                                              pushed_by, payload)
                      SELECT id, n, now(), 1, 0, 0, 0, 25, 'postgres', payload
                      FROM unnest($1::uuid[], $2::jsonb[]) WITH ORDINALITY AS t (id, payload, n)`,
                bind: ['uuids', 'payloads'],
            },
        };
        const systems = [jobq(), bare, ...b.peers()];
        const results = await b.alternate(Object.fromEntries(systems.map((system) => [system.name, async () => {
            b.clear(db, system);
            const { sql: push, bind } = system.pushMany;
            const result = await client(db, { push, bind, per: 1000, jobs: b.size.push_many });
            const found = number(db, system.waiting);
            b.check(`${system.label}: ${result.pushed} pushed, ${found} there`, result.pushed === found);
            return { rate: result.push_rate };
        }])));
        b.keep('batches of 1000', results);
        for (const peer of systems.slice(1))
            b.row({
                what: 'push_many, batches of 1,000', ours: middle(results.jobq),
                against: peer.label, theirs: middle(results[peer.name]),
                least: peer.name === 'graphile' ? 1.2 : undefined, unit: '/s',
            });
        b.bar('push, batches of 1,000', '1 client', systems.map((s) => [s.label, middle(results[s.name])]));
    });
}

// ---- pull

async function pull_batch(b) {
    const ours = [jobq(), jobq({ keep: false })];
    await b.database('pull_batch', [...ours.slice(0, 1), ...b.peers(), ...(b.pgq ? [b.pgq] : [])], async (db) => {
        const jobs = b.size.drain;
        for (const workers of [1, 4]) {
            const runs = {};
            for (const system of [...ours, ...b.peers()])
                runs[system.name] = () => drain(b, db, system, { jobs, workers, batch: 100 });
            const own = b.peers().find(({ name }) => name === 'graphile');
            if (own) {
                runs.graphile_500 = () => drain(b, db, own, { jobs, workers, batch: 500 });
                runs.graphile_own = async () => {
                    b.refill(db, own, jobs);
                    const result = await b.npm(db, ['drain', jobs, workers]);
                    b.emptied(db, own, jobs, result.finished);
                    return { ...result, rate: result.finished / result.seconds };
                };
            }
            const results = await b.alternate(runs);
            const clients = workers === 1 ? '1 client' : `${workers} clients`;
            b.keep(clients, results);
            const hows = { graphile: ', its SQL', graphile_500: ', its SQL, 500 a batch', graphile_own: ', its own worker' };
            const best = own && quickest(Object.keys(hows).map((name) => [name, middle(results[name])]));
            for (const { name, label } of ours) {
                const rate = middle(results[name]);
                const what = `pull 100, complete 100, ${clients}${name === 'jobq' ? '' : ', no history'}`;
                for (const peer of b.peers()) {
                    const [how, theirs] = peer === own ? best : [peer.name, middle(results[peer.name])];
                    const against = peer.label + (hows[how] ?? '');
                    b.row({ what, ours: rate, against, theirs, least: peer.npm ? 1.5 : 1.2, unit: '/s' });
                }
                b.bar('pull and complete, batches of 100', clients, [[label, rate]]);
            }
            b.bar('pull and complete, batches of 100', clients,
                b.peers().map((peer) => [peer.label, peer === own ? best[1] : middle(results[peer.name])]));
        }
        if (b.pgq) {
            const results = await b.alternate({ pgq: () => drain(b, db, b.pgq, { jobs, workers: 1 }) });
            b.keep('PgQ', results);
            const what = 'apart: batches of 500, acknowledged as a whole';
            b.row({ what, against: b.pgq.label, theirs: middle(results.pgq), unit: '/s' });
        }
    });
}

async function pull_one(b) {
    const ours = [jobq(), jobq({ keep: false })];
    const plain = [article, visibility];
    await b.database('pull_one', [ours[0], ...plain], async (db) => {
        const jobs = b.size.drain_one;
        const runs = {
            // A row in a table without an index, twice: the least that two durable transactions can do.
            minimal: async () => {
                sql(db, 'TRUNCATE bench.minimal; CHECKPOINT;');
                const result = await client(db, {
                    pull: 'INSERT INTO bench.minimal VALUES (1) RETURNING n', complete: 'INSERT INTO bench.minimal VALUES ($1)',
                    each: true, workers: 8, jobs,
                });
                b.check('minimal commits', number(db, 'SELECT count(*) FROM bench.minimal') === 2 * result.finished);
                return result;
            },
        };
        for (const system of [...ours, ...plain])
            runs[system.name] = () => drain(b, db, system, { jobs, workers: 8, batch: 1, each: true });
        const results = await b.alternate(runs);
        b.keep('8 clients', results);
        const [kept, not] = ours.map(({ name }) => middle(results[name]));
        const what = 'pull 1, complete 1, 8 clients';
        b.row({
            what: `${what}, no history`, ours: not, against: 'two minimal commits', theirs: middle(results.minimal),
            least: 0.85, unit: '/s',
        });
        for (const peer of plain)
            b.row({ what, ours: kept, against: peer.label, theirs: middle(results[peer.name]), least: 1, unit: '/s' });
        b.bar('pull and complete, one at a time', '8 clients', [['jobq', kept], ['jobq, no history', not],
            ...plain.map((peer) => [peer.label, middle(results[peer.name])]), ['two minimal commits', middle(results.minimal)]]);
    });
}

// ---- deliver

const dispatcherRuns = (db) => until('the start of the dispatcher', 30, () =>
    sql(db, "SELECT count(*) FROM jobq.status() WHERE database = current_database() AND state = 'running'") === '1');

// Lets jobs that wait be delivered, and returns the rate from the moment they were let go to the end
// of the last. letGo: SQL.
async function deliveries(b, db, web, jobs, letGo) {
    const requests = await web.requests();
    const start = sql(db, `SELECT clock_timestamp() AS start \\gset\n${letGo};\nSELECT :'start';`);
    await until(`the delivery of ${jobs} jobs`, 600,
        async () => await web.requests() - requests >= jobs && number(db, jobq().waiting) === 0, 250);
    const { seconds, completed } = row(db, `SELECT extract(epoch FROM max(finished_at) - '${start}')::float8 AS seconds,
        count(*) AS completed FROM jobq.jobs WHERE state = 'completed' AND started_at >= '${start}'`);
    const sent = await web.requests() - requests;
    b.check(`${jobs} jobs waited, ${sent} requests were answered, ${completed} jobs completed`,
        sent === jobs && completed === jobs);
    return { rate: jobs / seconds, seconds };
}

async function deliver(b) {
    await b.database('deliver', [jobq()], async (db) => {
        const web = await webServer();
        try {
            const jobs = b.size.deliver;
            sql(db, `SELECT jobq.create_endpoint('web', '${web.url}'); SELECT jobq.alter_queue('bench', endpoint => 'web');`);
            await dispatcherRuns(db);
            const bare = async (connections) => {
                const requests = await web.requests();
                const result = await run(path.join(here, 'build/curl_loop'), [web.url, jobs, connections], db);
                const sent = await web.requests() - requests;
                b.check(`bare libcurl: ${sent} requests were answered`, sent === jobs && result.failed === 0);
                return result;
            };
            let connections = 64;
            if (b.mode === 'full') {
                const tried = [];
                for (const n of [16, 32, 64, 128]) tried.push([n, (await bare(n)).rate]);
                [connections] = quickest(tried);
                b.keep('connections tried', tried);
            }
            const results = await b.alternate({
                jobq: async () => {
                    b.clear(db, jobq());
                    sql(db, "SELECT jobq.pause('bench')");
                    b.fill(db, jobq(), jobs);
                    return deliveries(b, db, web, jobs, "SELECT jobq.resume('bench')");
                },
                bare: () => bare(connections),
            });
            b.keep(`${jobs} waiting`, results);
            b.row({
                what: `deliveries, ${b.count(jobs)} waiting${web.nginx ? '' : ' (without nginx)'}`, ours: middle(results.jobq),
                against: `bare libcurl, ${connections} connections`, theirs: middle(results.bare), least: 0.4, unit: '/s',
            });
            b.bar('deliveries', 'one dispatcher', [['jobq', middle(results.jobq)], ['bare libcurl', middle(results.bare)]]);
        } finally {
            await web.stop();
        }
    });
}

// Both latencies come from one program, so that they share what they are compared with.
async function latencies(b) {
    b.latencies ??= await b.database('latency', [jobq()], async (db) => {
        await dispatcherRuns(db);
        const rounds = [];
        for (let i = 0; i < b.rounds; i++) {
            rounds.push(await run(path.join(here, 'build/latency'),
                [`latency_${i}`, b.size.latency, 10, b.mode === 'check' ? 200 : 1000], db));
            await until('the last completion', 30, () => number(db, jobq().waiting) === 0);
            const completed = number(db, `SELECT count(*) FROM jobq.jobs WHERE queue = 'latency_${i}' AND state = 'completed'`);
            b.check(`${2 * b.size.latency} pushed and scheduled, ${completed} completed`, completed === 2 * b.size.latency + 5);
        }
        const all = {};
        for (const kind of Object.keys(rounds[0])) all[kind] = rounds.flatMap((round) => round[kind]);
        b.keepAs('latency', 'milliseconds', all);
        return all;
    });
    return b.latencies;
}

function latencyRows(b, what, times, all) {
    b.row({
        what: `${what}: median`, ours: median(times), against: 'NOTIFY there and back + libcurl request',
        theirs: median(all.notify_round) + median(all.request), most: 1.5, unit: 'ms',
    });
    b.row({
        what: `${what}: median`, ours: median(times), against: 'NOTIFY + libcurl until it arrives',
        theirs: median(all.notify) + median(all.request_arrival), unit: 'ms',
    });
    b.row({ what: `${what}: 99th percentile`, ours: quantile(times, 0.99), mostFigure: 10, unit: 'ms' });
}

async function latency(b) {
    const all = await latencies(b);
    latencyRows(b, 'push to arrival, idle, 100/s', all.push, all);
}

async function schedule_latency(b) {
    const all = await latencies(b);
    latencyRows(b, 'due to arrival, 100/s', all.schedule, all);
}

// ---- flat

async function old_snapshot(b) {
    const level = b.size.level;
    const keys = `keys:${10 * level}`;
    const q = jobq();
    const keyed = (name, argument) => ({
        system: q, name: `jobq_${name}`, label: `jobq, reused ${name} keys`, least: 0.9,
        push: { sql: `SELECT jobq.push_many('bench', $1, ${argument} => $2)`, bind: ['payloads', keys] },
    });
    const runs = [
        { system: q, name: q.name, label: q.label, least: 0.95 },
        keyed('unique', 'unique_keys'), keyed('group', 'group_keys'),
        ...b.peers().map((system) => ({ system, name: system.name, label: system.label })),
    ];
    const once = ({ system, push }) => () => b.database('snapshot', [system], async (db) => {
        await pause(b.mode === 'check' ? 0 : 2000); // what making the database left behind
        const { sql: feed, bind } = push ?? system.pushMany;
        await client(db, { push: feed, bind, per: 100, jobs: level });
        b.analyze(db, system);
        const snapshot = await holdSnapshot(db);
        try {
            return await steady(b, db, system, { seconds: b.size.snapshot_seconds, window: b.size.snapshot_window, push });
        } finally {
            await snapshot.release();
        }
    });
    const named = (of) => Object.fromEntries(of.map((one) => [one.name, once(one)]));
    const results = {
        ...await b.alternate(named(runs.filter(({ system }) => system === q)), b.size.snapshot_rounds),
        ...await b.alternate(named(runs.filter(({ system }) => system !== q)), 1),
    };
    b.keep('runs', results);
    for (const { name, label, least } of runs) {
        b.line('rate with an old snapshot held, jobs/s', label, results[name][0].series);
        const of = (window, pick) => median(results[name].map((result) => pick(result[window])));
        const what = `old snapshot held, ${b.size.snapshot_seconds} s, ${label}`;
        const against = `first ${b.size.snapshot_window} s`;
        const both = (pick) => ({ ours: of('last', pick), against, theirs: of('first', pick) });
        b.row({ what: `${what}: rate`, ...both(({ rate }) => rate), least, unit: '/s' });
        b.row({ what: `${what}: claim, 99th percentile`, ...both(({ pull }) => pull.p99), most: least && 1.2, unit: 'ms' });
    }
}

// Two databases: one with few, one with many waiting. stats_view looks at the second.
async function depths(b) {
    b.depths ??= (async () => {
        const q = jobq();
        const few = await b.makeDatabase('depth_few', [q]);
        const many = await b.makeDatabase('depth_many', [q]);
        b.fill(few, q, b.size.shallow);
        b.fill(many, q, b.size.deep);
        sql(few, 'VACUUM ANALYZE; CHECKPOINT;');
        sql(many, 'VACUUM ANALYZE; CHECKPOINT;');
        b.afterwards(() => {
            b.drop(few);
            b.drop(many);
            b.depths = undefined;
        });
        return { few, many };
    })();
    return b.depths;
}

async function depth(b) {
    const { few, many } = await depths(b);
    const q = jobq();
    const flow = (db) => () => steady(b, db, q, { seconds: b.size.steady_seconds });
    const results = await b.alternate({ many: flow(many), few: flow(few) });
    b.keep('rates', results);
    const what = `${b.count(b.size.deep)} waiting`;
    b.row({
        what: `${what}: pull and complete`, ours: middle(results.many), against: `${b.count(b.size.shallow)} waiting`,
        theirs: middle(results.few), least: 0.9, unit: '/s',
    });
    restartServer();
    const first = await client(many, { pull: q.pull(100), complete: q.complete, jobs: 1 });
    b.keep('first claim after a restart, ms', first.first_pull_ms);
    b.row({ what: `${what}: first claim after a restart`, ours: first.first_pull_ms, mostFigure: 1000, unit: 'ms' });
}

async function stats_view(b) {
    const { many } = await depths(b);
    const result = await client(many, { push: 'SELECT * FROM jobq.stats', bind: [], jobs: b.mode === 'check' ? 3 : 7 });
    b.keep('milliseconds', result.push);
    const { said, columns } = row(many, `SELECT (SELECT to_jsonb(s) FROM jobq.stats AS s WHERE queue = 'bench') AS said,
        (SELECT array_agg(attname) FROM pg_attribute WHERE attrelid = 'jobq.stats'::regclass) AS columns`);
    const is = number(many, jobq().waiting);
    const exact = said.due + said.scheduled + said.running === is;
    const marked = columns.some((name) => /estimate|exact|approx/.test(name));
    b.check(`jobq.stats says ${said.due} due of ${is}`, exact || marked);
    b.row({
        what: `jobq.stats, ${b.count(b.size.deep)} waiting (${exact ? 'exact' : marked ? 'an estimate, marked' : 'WRONG'})`,
        ours: result.push.median, mostFigure: 50, unit: 'ms',
    });
}

// Queues with ten jobs each; more: further arguments of jobq.create_queue.
const manyQueues = (queues, more = '') => `DO $$ BEGIN FOR i IN 1..${queues} LOOP
        PERFORM jobq.create_queue('other_' || i${more});
        PERFORM count(*) FROM jobq.push_many('other_' || i,
            ARRAY(SELECT bench.payload(n) FROM generate_series(1, 10) AS n));
        IF i % 100 = 0 THEN COMMIT; END IF;
    END LOOP; END $$`;

async function breadth(b) {
    const q = jobq();
    const waiting = b.size.shallow;
    const plainDb = await b.makeDatabase('breadth_plain', [q]);
    b.fill(plainDb, q, waiting);
    sql(plainDb, 'VACUUM ANALYZE; CHECKPOINT;');
    const rate = (db) => steady(b, db, q, { seconds: b.size.steady_seconds });
    // The plain one before and after each of the others, which exist only while they are measured:
    // their dispatchers would take part in the plain rate.
    const several = async (db) => {
        const results = [];
        for (let i = 0; i < b.rounds; i++) results.push(await rate(db));
        return results;
    };
    const wide = {
        tomorrow: {
            label: `${b.count(b.size.crowd)} scheduled for tomorrow in front`,
            fill: (db) => b.fill(db, q, b.size.crowd, ", run_at => now() + interval '1 day', priority => -1"),
        },
        queues: {
            label: `${b.count(b.size.queues)} queues`,
            fill: (db) => sql(db, manyQueues(b.size.queues)),
        },
        group: {
            label: `${b.count(b.size.crowd)} of one group beside it`,
            fill: (db) => b.fill(db, q, b.size.crowd, `, group_keys => array_fill('one'::text, ARRAY[$count])`),
        },
    };
    try {
        let before = await several(plainDb);
        for (const [name, { label, fill }] of Object.entries(wide)) {
            const results = await b.database(`breadth_${name}`, [q], async (db) => {
                fill(db);
                b.fill(db, q, waiting);
                sql(db, 'VACUUM ANALYZE; CHECKPOINT;');
                await dispatcherRuns(db);
                return several(db);
            });
            const after = await several(plainDb);
            b.keep(name, { results, plain: [...before, ...after] });
            b.row({
                what: label, ours: middle(results), against: 'plain', theirs: middle([...before, ...after]), least: 0.9, unit: '/s',
            });
            before = after;
        }
    } finally {
        b.drop(plainDb);
    }
    await breadthOfDeliveries(b);
}

// The same jobs delivered out of one queue, and out of many.
async function breadthOfDeliveries(b) {
    const q = jobq();
    const queues = b.size.queues;
    const jobs = 10 * queues;
    const web = await webServer();
    try {
        const once = (name, fill) => b.database(name, [q], async (db) => {
            sql(db, `SELECT jobq.create_endpoint('web', '${web.url}', options => '{"enabled": false}')`);
            fill(db);
            sql(db, 'VACUUM ANALYZE; CHECKPOINT;');
            await dispatcherRuns(db);
            return deliveries(b, db, web, jobs, `SELECT jobq.alter_endpoint('web', options => '{"enabled": true}')`);
        });
        const results = await b.alternate({
            many: () => once('breadth_deliver_many', (db) => sql(db, manyQueues(queues, ", endpoint => 'web'"))),
            one: () => once('breadth_deliver_one', (db) => {
                sql(db, `SELECT jobq.alter_queue('bench', endpoint => 'web')`);
                b.fill(db, q, jobs);
            }),
        });
        b.keep('deliveries', results);
        b.row({
            what: `${b.count(queues)} queues: deliveries`, ours: middle(results.many),
            against: 'one queue', theirs: middle(results.one),
            least: 0.9, unit: '/s',
        });
    } finally {
        await web.stop();
    }
}

async function groups(b) {
    const q = jobq();
    const one = b.size.crowd;
    const many = { groups: b.size.groups, jobs: 10 * b.size.groups };
    const each = (db) => async () => {
        const before = number(db, q.waiting);
        const jobs = b.size.drain_single;
        const result = await client(db, { pull: q.pull(1), complete: q.completeOne, each: true, jobs });
        const left = number(db, q.waiting);
        b.check(`${before} waited, ${result.finished} out, ${left} wait`, before - result.finished === left);
        return result;
    };
    const both = async (names, fills, runs) => {
        const [a, c] = await Promise.all(names.map((name) => b.makeDatabase(name, [q])));
        try {
            fills[0](a);
            fills[1](c);
            for (const db of [a, c]) sql(db, 'VACUUM ANALYZE; CHECKPOINT;');
            return await b.alternate({ grouped: runs[0](a), plain: runs[1](c) });
        } finally {
            b.drop(a);
            b.drop(c);
        }
    };
    const single = await both(['group_one', 'group_none'], [
        (db) => b.fill(db, q, one, `, group_keys => array_fill('one'::text, ARRAY[$count])`),
        (db) => b.fill(db, q, one),
    ], [each, each]);
    b.keep('one group', single);
    b.row({
        what: `one group of ${b.count(one)}: pull 1, complete 1`, ours: middle(single.grouped), against: 'no groups',
        theirs: middle(single.plain), least: 0.9, unit: '/s',
    });

    const keyed = { sql: "SELECT jobq.push_many('bench', $1, group_keys => $2)", bind: ['payloads', `keys:${many.groups}`] };
    const flow = (push) => (db) => () => steady(b, db, q, { seconds: b.size.steady_seconds, push });
    const spread = await both(['groups_many', 'groups_none'], [
        // Ten of each group, in any order.
        (db) => {
            sql(db, `CREATE TABLE bench.key AS SELECT row_number() OVER (ORDER BY random()) AS i, 'key-' || g AS key
                     FROM generate_series(0, ${many.groups - 1}) AS g, generate_series(1, 10);
                     CREATE INDEX ON bench.key (i); ANALYZE bench.key;`);
            b.fill(db, q, many.jobs, ', group_keys => ARRAY(SELECT key FROM bench.key WHERE i BETWEEN $from AND $to ORDER BY i)');
        },
        (db) => b.fill(db, q, many.jobs),
    ], [flow(keyed), flow()]);
    b.keep('many groups', spread);
    b.row({
        what: `${b.count(many.groups)} groups of ten: batches of 100`, ours: middle(spread.grouped), against: 'no groups',
        theirs: middle(spread.plain), least: 0.7, unit: '/s',
    });
}

// ---- small

const rss = (pid) => {
    const status = fs.readFileSync(`/proc/${pid}/status`, 'utf8');
    const kb = (name) => Number(new RegExp(`^${name}:\\s+(\\d+)`, 'm').exec(status)?.[1] ?? 0);
    return { all: kb('VmRSS') / 1024, own: (kb('RssAnon') + kb('RssFile')) / 1024 };
};

const cpuSeconds = (pid) => {
    const fields = fs.readFileSync(`/proc/${pid}/stat`, 'utf8').replace(/^.*\) /, '').split(' ');
    return (Number(fields[11]) + Number(fields[12])) / 100; // utime, stime; in hundredths everywhere
};

async function in_flight(b) {
    await slow(b, { jobs: b.size.in_flight, ms: b.size.slow_ms, most: { memory: 400, cpu: 2 } });
    // Told apart: a handshake each, and the memory of as many TLS sessions.
    await slow(b, { jobs: b.size.tls_in_flight, ms: b.size.tls_slow_ms, tls: true, most: {} });
}

async function slow(b, { jobs, ms, tls = false, most }) {
    await b.database('in_flight', [jobq()], async (db) => {
        const web = await slowServer({ tls });
        // More than the defaults allow; nothing else is changed.
        sql(db, `ALTER SYSTEM SET jobq.max_in_flight = ${jobs}`);
        sql(db, `SELECT pg_reload_conf();
            SELECT jobq.create_endpoint('slow', '${web.url(ms)}', max_in_flight => ${jobs}, timeout => '5 min',
                options => '${JSON.stringify({ connect_timeout: '1 min', ...(tls && { ca_file: web.ca, http_version: '1.1' }) })}');
            SELECT jobq.alter_queue('bench', endpoint => 'slow');`);
        try {
            await dispatcherRuns(db);
            b.fill(db, jobq(), jobs);
            const all = async () => (await web.stats()).peak_in_flight >= jobs;
            await until('every job in flight', ms / 1000, all, 50).catch(() => {}); // the row tells
            const status = row(db, `SELECT pid, in_flight FROM jobq.status() WHERE database = current_database()`);
            const there = (await web.stats()).in_flight;
            const from = cpuSeconds(status.pid);
            await pause(b.size.watch_ms);
            const cpu = (cpuSeconds(status.pid) - from) / (b.size.watch_ms / 1000);
            const still = (await web.stats()).in_flight;
            const memory = rss(status.pid);
            await until('the end of the slow deliveries', 300, () => number(db, jobq().waiting) === 0, 500);
            const stats = await web.stats();
            const what = `${b.count(jobs)} slow deliveries${tls ? ' over TLS' : ''}`;
            b.check(`${what}: ${stats.distinct} arrived, ${number(db, jobq().kept)} completed`,
                stats.distinct === jobs && stats.requests === jobs && number(db, jobq().kept) === jobs);
            b.check(`${what}: ${still} of ${there} were still in flight while the CPU was watched`, still === there);
            b.keep(tls ? 'in flight over TLS' : 'in flight', { peak: stats.peak_in_flight, said: status.in_flight, memory, cpu });
            const own = `${memory.own.toFixed(0)} MB without what is shared`;
            b.row({ what: `${what}: in flight at once`, ours: stats.peak_in_flight, leastFigure: tls ? undefined : jobs, unit: '' });
            b.row({ what: `${what}: the dispatcher's memory (${own})`, ours: memory.all, mostFigure: most.memory, unit: 'MB' });
            b.row({ what: `${what}: CPU while waiting`, ours: 100 * cpu, mostFigure: most.cpu, unit: '% of a core' });
        } finally {
            sql(db, 'ALTER SYSTEM RESET jobq.max_in_flight');
            sql(db, 'SELECT pg_reload_conf()');
            await web.stop();
        }
    });
}

// A job pushed in a transaction of its own, then pulled and completed in batches of 100, or delivered.
async function wal(b) {
    const ours = [jobq(), jobq({ keep: false })];
    const others = [...b.peers(), ...(b.pgq ? [b.pgq] : [])];
    await b.database('wal', [ours[0], ...others], async (db) => {
        const jobs = b.size.wal;
        // The commit flushes what others committed asynchronously.
        const at = () => sql(db, 'INSERT INTO bench.minimal VALUES (0); SELECT pg_current_wal_flush_lsn();');
        const bytes = (from, to) => row(db, `SELECT coalesce(sum(record_size), 0)::float8 / ${jobs} AS records,
            coalesce(sum(fpi_size), 0)::float8 / ${jobs} AS images FROM pg_get_wal_stats('${from}', '${to}')`);
        const tuples = ({ schema }) => row(db, `SELECT coalesce(sum(n_tup_upd), 0)::float8 AS updated,
            coalesce(sum(n_tup_hot_upd), 0)::float8 AS hot, coalesce(sum(n_tup_del), 0)::float8 AS deleted
            FROM pg_stat_all_tables WHERE schemaname = '${schema}'`);
        // As a vacuum would find them: what PostgreSQL has pruned on the way is gone.
        const left = ({ schema }) => number(db, `SELECT coalesce(sum((pgstattuple(c.oid::regclass)).dead_tuple_count), 0)
            FROM pg_class AS c WHERE c.relnamespace = '${schema}'::regnamespace AND c.relkind = 'r'`);
        // What pushing and working leave behind, a job.
        const measure = async (system, work) => {
            b.clear(db, system);
            b.analyze(db, system);
            const before = tuples(system);
            const start = at();
            await client(db, { push: system.push.sql, bind: system.push.bind, jobs });
            const pushed = at();
            await work();
            const [push, worked] = [bytes(start, pushed), bytes(pushed, at())];
            const after = tuples(system);
            const [updated, hot, deleted] = ['updated', 'hot', 'deleted'].map((kind) => (after[kind] - before[kind]) / jobs);
            return {
                push, work: worked, bytes: push.records + worked.records, images: push.images + worked.images,
                updated, hot, deleted, dead: updated + deleted, left: left(system) / jobs,
            };
        };
        const pulled = (system) => measure(system, async () => {
            if (system.tick) sql(db, system.tick);
            const result = await client(db, { pull: system.pull(100), complete: system.complete, jobs });
            b.emptied(db, system, jobs, result.finished);
        });

        sql(db, 'CREATE EXTENSION pg_walinspect; CREATE EXTENSION pgstattuple');
        // Autovacuum writes WAL at times of its own.
        sql(db, 'ALTER SYSTEM SET autovacuum = off');
        sql(db, 'SELECT pg_reload_conf()');
        const web = await webServer();
        const found = {};
        try {
            for (const system of [...ours, ...others]) found[system.name] = await pulled(system);
            sql(db, `SELECT jobq.create_endpoint('web', '${web.url}'); SELECT jobq.create_queue('web', endpoint => 'web');`);
            await dispatcherRuns(db);
            const delivered = { ...ours[0], push: { sql: "SELECT jobq.push('web', $1)", bind: ['payload'] } };
            found.jobq_delivered = await measure(delivered, async () => {
                await until('the last delivery', 300, () => number(db, delivered.waiting) === 0);
                b.emptied(db, delivered, jobs, number(db, delivered.kept));
            });
        } finally {
            await web.stop();
            sql(db, 'ALTER SYSTEM RESET autovacuum');
            sql(db, 'SELECT pg_reload_conf()');
        }
        b.keep('a job', found);
        const { jobq: kept, jobq_no_history: not, jobq_delivered: sent } = found;
        const images = (f) => `page images ${f.images.toFixed(0)} B apart`;
        b.row({ what: `WAL a job, push to finished (${images(kept)})`, ours: kept.bytes, mostFigure: 1200, unit: 'B' });
        b.row({ what: 'dead tuples a job', ours: kept.dead, mostFigure: 2, unit: '' });
        b.row({ what: 'dead tuples a job that are left to vacuum', ours: kept.left, unit: '' });
        b.row({ what: 'updates a job that are not HOT', ours: kept.updated - kept.hot, mostFigure: 0, unit: '' });
        b.row({ what: `WAL a job, delivered (${images(sent)})`, ours: sent.bytes, unit: 'B' });
        b.row({ what: 'dead tuples a job, delivered', ours: sent.dead, unit: '' });
        for (const peer of b.peers()) {
            const theirs = found[peer.name];
            const against = peer.label;
            b.row({ what: 'WAL a job', ours: kept.bytes, against, theirs: theirs.bytes, below: 1, unit: 'B' });
            b.row({ what: 'WAL a job, no history', ours: not.bytes, against, theirs: theirs.bytes, unit: 'B' });
            b.row({ what: 'dead tuples a job', ours: kept.dead, against, theirs: theirs.dead, below: 1, unit: '' });
            b.row({ what: 'dead tuples a job, left to vacuum', ours: kept.left, against, theirs: theirs.left, below: 1, unit: '' });
        }
        if (b.pgq) {
            b.row({ what: 'apart: WAL a job', against: b.pgq.label, theirs: found.pgq.bytes, unit: 'B' });
            b.row({ what: 'apart: dead tuples a job', against: b.pgq.label, theirs: found.pgq.dead, unit: '' });
        }
        b.bar('WAL a job, bytes without page images', 'push to finished',
            [...ours, ...b.peers()].map((s) => [s.label, found[s.name].bytes]));
    });
}

depth.sharesWith = 'stats_view';

// In the order in which they run.
module.exports = {
    push_one, push_many, pull_batch, pull_one, deliver, latency, schedule_latency, old_snapshot, depth, stats_view, breadth,
    groups, in_flight, wal,
};
