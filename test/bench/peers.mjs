// The queues from npm. Runs under the Node.js that package.json pins, in test/bench with its
// node_modules; connects by libpq's environment variables.
//
//   peers.mjs prepare
//       Makes both queues' schemas in the database, has each of them push, pull and complete a few
//       jobs, and prints as JSON the statements that they sent, with their values. The benchmark then
//       runs these through the same client as every other queue, so that none waits for JavaScript.
//   peers.mjs drain JOBS PROCESSES
//       graphile-worker as its users run it, batching switched on: until so many waiting jobs are
//       completed. Prints {"finished", "seconds"}.

import { fork } from 'node:child_process';
import { EventEmitter, once } from 'node:events';
import { fileURLToPath } from 'node:url';

import { Logger, makeWorkerUtils, run } from 'graphile-worker';
import pg from 'pg';
import { PgBoss } from 'pg-boss';

const batch = 100;
const logger = new Logger(() => () => {});
const connectionString = `socket:${process.env.PGHOST}?db=${process.env.PGDATABASE}`;
const [mode, ...args] = process.argv.slice(2);

// Every statement that goes through the pg module, as {text, values}.
const sent = [];
function record() {
    const query = pg.Client.prototype.query;
    pg.Client.prototype.query = function (config, values, ...rest) {
        const text = typeof config === 'string' ? config : config?.text;
        if (text) sent.push({ text, values: config.values ?? (Array.isArray(values) ? values : []) });
        return query.call(this, config, values, ...rest);
    };
}

// The last statement that matched, among those since the mark. Libraries send others of their own.
function statement(mark, pattern) {
    const found = sent.slice(mark).filter(({ text }) => pattern.test(text)).pop();
    if (!found) throw new Error(`no statement matched ${pattern}:\n${sent.slice(mark).map(({ text }) => text).join('\n')}`);
    return found;
}

// Both kinds of batching switched on, and more than one job at a time: its quickest way for short jobs.
const graphilePreset = (size) => ({
    worker: { connectionString, concurrentJobs: 24, maxPoolSize: 30, localQueue: { size }, completeJobBatchDelay: 0 },
});

async function runGraphile(size, onComplete = () => {}) {
    const events = new EventEmitter();
    events.on('job:complete', onComplete);
    return run({ preset: graphilePreset(size), logger, events, noHandleSignals: true, taskList: { bench: () => {} } });
}

async function prepareGraphile() {
    const utils = await makeWorkerUtils({ connectionString, logger });
    await utils.migrate();
    const count = 2 * batch;
    let mark = sent.length;
    await utils.addJob('bench', { n: 0 });
    const push = statement(mark, /add_job/);
    mark = sent.length;
    await utils.addJobs(Array.from({ length: count - 1 }, (_, n) => ({ identifier: 'bench', payload: { n } })));
    const pushMany = statement(mark, /add_jobs/);
    mark = sent.length;
    let completed = 0;
    let finish;
    const all = new Promise((resolve) => { finish = resolve; });
    const runner = await runGraphile(batch, () => { if (++completed === count) finish(); });
    await all;
    await runner.stop();
    await utils.release();
    const pull = statement(mark, /limit 100/);
    return { push, pushMany, pull, complete: statement(mark, /delete from[\s\S]*unnest/) };
}

async function prepareBoss() {
    const boss = new PgBoss({ connectionString, supervise: false, schedule: false });
    boss.on('error', (error) => { throw error; });
    await boss.start();
    await boss.createQueue('bench');
    let mark = sent.length;
    await boss.send('bench', { n: 0 });
    const push = statement(mark, /INSERT INTO pgboss\.job/);
    mark = sent.length;
    await boss.insert('bench', Array.from({ length: 2 }, (_, n) => ({ data: { n } })));
    const pushMany = statement(mark, /INSERT INTO pgboss\.job/);
    mark = sent.length;
    const jobs = await boss.fetch('bench', { batchSize: batch });
    const pull = statement(mark, /LIMIT 100\s+FOR UPDATE OF j SKIP LOCKED/);
    mark = sent.length;
    await boss.complete('bench', jobs.map(({ id }) => id));
    const complete = statement(mark, /SET completed_on[\s\S]*ANY\(\$2/);
    await boss.stop({ graceful: false });
    return { push, pushMany, pull, complete };
}

async function prepare() {
    record();
    console.log(JSON.stringify({ graphile: await prepareGraphile(), boss: await prepareBoss() }));
}

// One of the processes of a drain: tells its parent when it first asked for jobs, how many rows its
// completions have deleted, and when the last of them came back. Its own events say "completed"
// before the database knows.
async function drainHere() {
    const now = () => performance.timeOrigin + performance.now();
    let completed = 0, first = 0, last = 0;
    const query = pg.Client.prototype.query;
    pg.Client.prototype.query = function (...query_) {
        const text = query_[0]?.text ?? '';
        const result = query.apply(this, query_);
        if (/skip locked/.test(text)) first ||= now();
        else if (/^delete from/.test(text)) result.then(({ rowCount }) => { completed += rowCount; last = now(); });
        return result;
    };
    const runner = await runGraphile(500);
    const report = setInterval(() => process.send({ completed, first, last }), 20);
    await once(process, 'message');
    clearInterval(report);
    await runner.stop();
    process.disconnect();
}

// Timed from the first fetch to the last completion, so that starting up does not count against it.
async function drain(jobs, processes) {
    const seen = new Map();
    await new Promise((resolve, reject) => {
        const limit = setTimeout(() => reject(new Error('the drain did not end within ten minutes')), 600_000);
        for (let i = 0; i < processes; i++) {
            const child = fork(fileURLToPath(import.meta.url), ['drain-here']);
            seen.set(child, { completed: 0, first: Infinity, last: 0 });
            child.on('exit', (code) => { if (code !== 0) reject(new Error('a process of the drain failed')); });
            child.on('message', (message) => {
                if (message.first > 0) seen.set(child, message);
                if (sum() < jobs) return;
                clearTimeout(limit);
                resolve();
            });
        }
        const sum = () => [...seen.values()].reduce((total, { completed }) => total + completed, 0);
    });
    await Promise.all([...seen.keys()].map((child) => {
        child.send('stop');
        return once(child, 'exit');
    }));
    const each = [...seen.values()];
    const seconds = (Math.max(...each.map(({ last }) => last)) - Math.min(...each.map(({ first }) => first))) / 1000;
    console.log(JSON.stringify({ finished: each.reduce((total, { completed }) => total + completed, 0), seconds }));
}

if (mode === 'prepare') await prepare();
else if (mode === 'drain') await drain(Number(args[0]), Number(args[1]));
else if (mode === 'drain-here') await drainHere();
else throw new Error('peers.mjs prepare, or peers.mjs drain JOBS PROCESSES');
