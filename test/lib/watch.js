'use strict';
// Watches a receiver (test/receiver.js) until so many jobs have arrived, and shows it.
//
//   node watch.js --port N --until COUNT [--from N] [--limit SECONDS] [--commit-file FILE]
//       COUNT more requests than N; then the rate and the latencies. FILE holds the time of the
//       commit, in seconds since 1970, once it happened.
//   node watch.js --port N --failures COUNT [--limit SECONDS]
//       shows each request answered 500, until there were COUNT
//   node watch.js --port N --distinct
//       prints how many different webhook-ids there were
//
// Exits 1 when --limit seconds pass without anything new arriving.

const fs = require('fs');
const http = require('http');
const { parseArgs } = require('util');

const { values: options } = parseArgs({
    options: {
        port: { type: 'string' },
        until: { type: 'string' },
        failures: { type: 'string' },
        distinct: { type: 'boolean' },
        from: { type: 'string', default: '0' },
        limit: { type: 'string', default: '20' },
        'commit-file': { type: 'string' },
    },
});
const from = Number(options.from);
const live = process.stdout.isTTY && process.env.TERM !== 'dumb';
const pollEvery = live ? 100 : 500; // ms; without a terminal each poll that found something is a line
const agent = new http.Agent({ keepAlive: true });

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const count = (n) => n.toLocaleString('en-US');
const duration = (ms) => ms < 10 ? `${ms.toFixed(2)} ms` : ms < 10000 ? `${count(Math.round(ms))} ms` : `${(ms / 1000).toFixed(1)} s`;

function get(path) {
    return new Promise((resolve, reject) => {
        http.get({ host: '127.0.0.1', port: options.port, path, agent }, (response) => {
            let text = '';
            response.on('data', (part) => { text += part; });
            response.on('end', () => resolve(JSON.parse(text)));
        }).on('error', reject);
    });
}

function fail(message) {
    if (live) process.stdout.write('\n');
    console.error(message);
    process.exit(1);
}

const rateOf = (stats, arrived) => {
    const seconds = (stats.last_arrival - stats.first_arrival) / 1000;
    return seconds > 0.05 ? (arrived - 1) / seconds : null;
};

function progress(stats, arrived, wanted) {
    const rate = rateOf(stats, arrived);
    const bar = '#'.repeat(Math.floor(20 * arrived / wanted)).padEnd(20, '.');
    let line = `  [${bar}] ${count(arrived).padStart(7)} of ${count(wanted)}`;
    if (rate) line += `   ${count(Math.round(rate)).padStart(6)}/s`;
    if (stats.latency) line += `   push to arrival ${duration(stats.latency.median)}`;
    if (live) process.stdout.write(`\r\x1b[K${line}`);
    else console.log(line);
}

async function watchArrivals(wanted) {
    let shown = -1;
    let lastNews = Date.now();
    for (;;) {
        // The rate goes from the first of these requests, the latency shown live by the newest.
        const [recent, all] = [await get(`/_stats?from=${from}&last=500`), await get(`/_stats?from=${from}`)];
        const arrived = all.requests - from;
        if (arrived !== shown) {
            progress({ ...all, latency: recent.latency }, arrived, wanted);
            shown = arrived;
            lastNews = Date.now();
        }
        if (arrived >= wanted) return summary(all, arrived);
        if (Date.now() - lastNews > Number(options.limit) * 1000) {
            fail(`${count(arrived)} of ${count(wanted)} arrived, and then nothing for ${options.limit} s`);
        }
        await pause(pollEvery);
    }
}

// All may have arrived before the inserting client got round to asking for the time.
async function commitTime() {
    for (let tries = 0; tries < 100; tries++) {
        const text = fs.readFileSync(options['commit-file'], 'utf8').trim();
        if (text) return Number(text) * 1000;
        await pause(50);
    }
    return fail('the time of the commit is not known');
}

async function summary(stats, arrived) {
    if (live) process.stdout.write('\n');
    const rate = rateOf(stats, arrived);
    const { latency } = stats;
    console.log(`  ${count(arrived)} arrived${rate ? `, ${count(Math.round(rate))} a second` : ''}`);
    if (latency) {
        console.log(`  push to arrival: median ${duration(latency.median)}, 99th percentile ${duration(latency.p99)}, ` +
            `fastest ${duration(latency.min)}, slowest ${duration(latency.max)}`);
    }
    if (options['commit-file']) {
        const commit = await commitTime();
        console.log(`  the last arrived ${duration(stats.last_arrival - commit)} after the commit`);
    }
}

async function watchFailures(wanted) {
    let shown = 0;
    let before = null;
    let lastNews = Date.now();
    while (shown < wanted) {
        for (const request of (await get('/_requests?status=500')).slice(shown)) {
            const waited = before === null ? '' : `, ${duration(request.arrived - before)} after the one before`;
            console.log(`  attempt ${request.attempt} of ${request.type}: answered ${request.status}${waited}`);
            before = request.arrived;
            shown++;
            lastNews = Date.now();
        }
        if (Date.now() - lastNews > Number(options.limit) * 1000) {
            fail(`${shown} of ${wanted} attempts seen, and then nothing for ${options.limit} s`);
        }
        if (shown < wanted) await pause(50);
    }
}

async function watch() {
    if (options.distinct) console.log((await get('/_stats?last=1')).distinct);
    else if (options.failures) await watchFailures(Number(options.failures));
    else await watchArrivals(Number(options.until));
}

watch().then(() => process.exit(0), (error) => fail(error.message));
