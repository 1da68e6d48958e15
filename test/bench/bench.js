'use strict';
// Runs the cases and reports: a table, the raw figures as JSON, a page of plots. Started by run.
//
//   bench.js check|short|full [case...]

const fs = require('fs');
const path = require('path');
const { work, sql, number, run, client, machine } = require('./lib');
const systems = require('./systems');
const cases = require('./cases');
const plots = require('./plots');

const [mode, ...only] = process.argv.slice(2);

// check: only whether it runs and the figures add up. full: what the README quotes.
const sizes = {
    check: {
        rounds: 1, push_seconds: 0.2, skip: 0.1, push_many: 3000, drain: 1500, drain_one: 200, drain_single: 100,
        deliver: 500, latency: 20, level: 500, snapshot_seconds: 1, snapshot_window: 0.3, snapshot_rounds: 1,
        shallow: 1000, deep: 5000, steady_seconds: 0.3, crowd: 3000, queues: 50, groups: 100,
        in_flight: 200, slow_ms: 1500, tls_in_flight: 50, tls_slow_ms: 1500, watch_ms: 300, wal: 300,
    },
    short: {
        rounds: 3, push_seconds: 2, skip: 0.3, push_many: 40_000, drain: 30_000, drain_one: 8000, drain_single: 2000,
        deliver: 100_000, latency: 250, level: 2000, snapshot_seconds: 20, snapshot_window: 4, snapshot_rounds: 1,
        shallow: 10_000, deep: 1_000_000, steady_seconds: 4, crowd: 200_000, queues: 2000, groups: 10_000,
        in_flight: 10_000, slow_ms: 25_000, tls_in_flight: 2000, tls_slow_ms: 15_000, watch_ms: 5000, wal: 10_000,
    },
    full: {
        rounds: 3, push_seconds: 4, skip: 0.5, push_many: 200_000, drain: 100_000, drain_one: 20_000, drain_single: 10_000,
        deliver: 100_000, latency: 1000, level: 2000, snapshot_seconds: 60, snapshot_window: 10, snapshot_rounds: 1,
        shallow: 10_000, deep: 10_000_000, steady_seconds: 8, crowd: 1_000_000, queues: 10_000, groups: 100_000,
        in_flight: 10_000, slow_ms: 30_000, tls_in_flight: 10_000, tls_slow_ms: 90_000, watch_ms: 10_000, wal: 50_000,
    },
};

const count = (n) => (n >= 1e6 && n % 1e5 === 0 ? `${n / 1e6} million` : n.toLocaleString('en-US'));

class Bench {
    constructor() {
        this.mode = mode;
        this.size = sizes[mode];
        this.rounds = Number(process.env.ROUNDS || this.size.rounds);
        this.count = count;
        this.rows = [];
        this.raw = {};
        this.charts = { bars: {}, lines: {} };
        this.passed = 0;
        this.failures = [];
        this.after = [];
        this.made = new Set();
        this.fromNpm = [];
        const available = number('postgres', "SELECT count(*) FROM pg_available_extensions WHERE name = 'pgq'");
        this.pgq = available ? systems.pgq : null;
        const node = process.env.BENCH_PEERS_NODE;
        this.npm = node && ((database, args) => run(node, ['peers.mjs', ...args], database));
    }

    // ---- databases

    async makeDatabase(name, which) {
        const database = `bench_${name}`;
        sql('postgres', `CREATE DATABASE ${database}${which.some(({ npm }) => npm) ? ' TEMPLATE bench_npm' : ''}`);
        this.made.add(database);
        sql(database, systems.common);
        for (const system of which) if (system.setup) sql(database, system.setup);
        return database;
    }

    drop(database) {
        sql('postgres', `DROP DATABASE IF EXISTS ${database} WITH (FORCE)`);
        this.made.delete(database);
    }

    // A database of its own for a case, with these systems in it.
    async database(name, which, use) {
        const database = await this.makeDatabase(name, which);
        try {
            return await use(database);
        } finally {
            this.drop(database);
        }
    }

    // The queues that jobq is compared with by the same client.
    peers() {
        return [systems.article, systems.visibility, ...this.fromNpm];
    }

    async preparePeers() {
        if (!this.npm) return;
        // jobq's launcher looks into no template: it would be in the way of copies.
        sql('postgres', 'CREATE DATABASE bench_npm IS_TEMPLATE true');
        const sent = await this.npm('bench_npm', ['prepare']);
        this.fromNpm = [systems.graphile(sent.graphile), systems.boss(sent.boss)];
        for (const system of this.fromNpm) sql('bench_npm', system.clear);
        sql('postgres', 'ALTER DATABASE bench_npm ALLOW_CONNECTIONS false');
    }

    // ---- jobs

    clear(database, system) { sql(database, `${system.clear}\nCHECKPOINT;`); }

    analyze(database, { schema }) {
        sql(database, `SELECT format('ANALYZE %s', c.oid::regclass) FROM pg_class AS c
            WHERE c.relnamespace = '${schema}'::regnamespace AND c.relkind = 'r' \\gexec`);
    }

    // Pushes so many jobs in SQL. more: further arguments of jobq.push_many, where $from, $to and
    // $count are those of the statement.
    fill(database, system, jobs, more = '') {
        const chunk = system.perTick ?? 10_000;
        let script = '';
        for (let from = 1; from <= jobs; from += chunk) {
            const to = Math.min(jobs, from + chunk - 1);
            const its = { from, to, count: to - from + 1 };
            script += `${system.fill(from, to, more.replace(/\$(\w+)/g, (_, name) => its[name]))}\n`;
        }
        sql(database, script);
    }

    // As it stands when a backlog has built up: statistics are there, and what is written from here
    // on is not preceded by page images.
    refill(database, system, jobs) {
        this.clear(database, system);
        this.fill(database, system, jobs);
        this.analyze(database, system);
    }

    // After a drain: nothing waits, and as many came out as went in.
    emptied(database, system, jobs, finished) {
        const left = system.waiting ? number(database, system.waiting) : 0;
        const kept = system.kept ? number(database, system.kept) : jobs;
        this.check(`${system.label}: ${jobs} in, ${finished} out, ${left} wait, ${kept} kept`,
            finished === jobs && left === 0 && kept === jobs);
    }

    // Each of the runs in turn, in every round with another one first.
    async alternate(runs, rounds = this.rounds) {
        const names = Object.keys(runs);
        const results = Object.fromEntries(names.map((name) => [name, []]));
        for (let round = 0; round < rounds; round++)
            for (let i = 0; i < names.length; i++) {
                const name = names[(i + round) % names.length];
                results[name].push(await runs[name]());
            }
        return results;
    }

    // ---- what comes out

    check(what, holds) {
        if (holds) {
            this.passed++;
        } else {
            this.failures.push(`${this.current}: ${what}`);
            console.log(`  WRONG: ${what}`);
        }
    }

    keep(name, figures) { this.keepAs(this.current, name, figures); }
    keepAs(under, name, figures) { (this.raw[under] ??= {})[name] = figures; }
    bar(chart, group, values) { ((this.charts.bars[chart] ??= {})[group] ??= []).push(...values); }
    line(chart, label, values) { (this.charts.lines[chart] ??= []).push([label, values]); }
    // Once the case, and the one that shares with it, are over.
    afterwards(action) { this.after.push(action); }

    // ours, and the ratio to theirs if there are any. least, most, below: of the ratio; leastFigure,
    // mostFigure: of the figure itself. None of them: for information.
    row(r) {
        const ratio = r.theirs === undefined ? undefined : r.ours / r.theirs;
        const [target, ok] = r.least !== undefined ? [`>= ${r.least}`, ratio >= r.least]
            : r.most !== undefined ? [`<= ${r.most}`, ratio <= r.most]
            : r.below !== undefined ? [`< ${r.below}`, ratio < r.below]
            : r.leastFigure !== undefined ? [`>= ${r.leastFigure} ${r.unit}`.trim(), r.ours >= r.leastFigure]
            : r.mostFigure !== undefined ? [`<= ${r.mostFigure} ${r.unit}`.trim(), r.ours <= r.mostFigure]
            : [''];
        const made = { case: this.current, ...r, ratio, target, ok };
        this.rows.push(made);
        if (mode !== 'check') console.log(`  ${rowText(made).filter(Boolean).join('  ')}`);
    }
}

function figure(value, unit) {
    if (value === undefined || Number.isNaN(value)) return '';
    const digits = Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
    const space = unit.startsWith('/') || unit === '' ? '' : ' ';
    return value.toLocaleString('en-US', { minimumFractionDigits: digits, maximumFractionDigits: digits }) + space + unit;
}

const rowText = (r) => [r.what, figure(r.ours, r.unit), r.against ?? '', figure(r.theirs, r.unit),
    r.ratio === undefined || Number.isNaN(r.ratio) ? '' : r.ratio.toFixed(2),
    r.target, r.ok === undefined ? '' : r.ok ? 'ok' : 'NOT MET'];

function table(rows) {
    const lines = [['case', 'figure', 'against', 'its figure', 'ratio', 'at least / most', ''], ...rows.map(rowText)];
    const widths = lines[0].map((_, column) => Math.max(...lines.map((line) => line[column].length)));
    const right = [false, true, false, true, true, false, false];
    const padded = (cell, column) => (right[column] ? cell.padStart(widths[column]) : cell.padEnd(widths[column]));
    return lines.map((line) => line.map(padded).join('  ').trimEnd()).join('\n');
}

async function main() {
    const unknown = only.filter((name) => !cases[name]);
    if (!sizes[mode] || unknown.length > 0)
        throw new Error(`no such ${unknown.length ? `case: ${unknown}` : 'mode'} (cases: ${Object.keys(cases).join(', ')})`);
    const b = new Bench();
    const began = new Date();
    b.current = 'set up';
    await b.preparePeers();
    if (!b.npm) console.log('without graphile-worker and pg-boss: they are not installed');
    if (!b.pgq) console.log('without PgQ: it is not installed');

    const commits = await b.database('commits', [], (database) =>
        client(database, { push: 'INSERT INTO bench.minimal VALUES (1)', bind: [], seconds: mode === 'check' ? 0.2 : 2 }));

    const names = Object.keys(cases).filter((name) => only.length === 0 || only.includes(name));
    for (const [i, name] of names.entries()) {
        const from = Date.now();
        const checked = b.passed;
        b.current = name;
        console.log(name);
        try {
            await cases[name](b);
        } catch (error) {
            b.failures.push(`${name}: ${error.message}`);
            console.log(`  FAILED: ${error.stack}`);
        }
        if (!names[i + 1] || cases[name].sharesWith !== names[i + 1]) {
            for (const action of b.after.splice(0)) action();
            for (const database of b.made) b.drop(database);
        }
        console.log(`  (${b.passed - checked} checks passed, ${((Date.now() - from) / 1000).toFixed(0)} s)`);
    }

    const of = { ...machine('postgres'), commits_per_second: commits.push_rate };
    const result = {
        date: began.toISOString(), minutes: (Date.now() - began) / 60_000, mode, machine: of,
        rows: b.rows, raw: b.raw, charts: b.charts,
    };
    // What is checked is not a measurement: its table would mislead.
    if (mode !== 'check') {
        const judged = b.rows.filter(({ ok }) => ok !== undefined);
        console.log(`
${table(b.rows)}

${of.cpu}, ${of.cores} cores, ${of.memory_gb} GB; ${of.system}, kernel ${of.kernel}; PostgreSQL ${of.postgresql};
${count(Math.round(of.commits_per_second))} durable commits a second from one connection
${judged.filter(({ ok }) => ok).length} of ${judged.length} rows stand; ${mode} run, ${result.minutes.toFixed(1)} minutes`);
    }
    const out = path.join(work, 'results');
    fs.mkdirSync(out, { recursive: true });
    fs.writeFileSync(path.join(out, 'bench.json'), JSON.stringify(result, null, 1));
    fs.writeFileSync(path.join(out, 'bench.txt'), `${table(b.rows)}\n`);
    fs.writeFileSync(path.join(out, 'bench.svg'), plots.page(result));
    for (const failure of b.failures) console.log(`FAILED: ${failure}`);
    console.log(`${b.passed} checks passed, ${b.failures.length} failed`);
    process.exitCode = b.failures.length > 0 ? 1 : 0;
}

main().catch((error) => {
    console.error(error.message);
    process.exitCode = 1;
});
