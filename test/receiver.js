'use strict';
// A webhook receiver for the tests and the demo. Node's own http module, nothing to install.
//
//   node receiver.js [--port 0] [--host 127.0.0.1] [--port-file FILE] [--stamp pushed_at]
//                    [--fail-body TEXT] [--keep 1000] [--detach]
//
// Prints "listening on PORT" (and writes PORT to --port-file). It ends with the process that
// started it, unless --detach.
//
// The path says how it answers; so does the header `receiver` ("status/503", "slow?ms=100"), which
// wins. Anything not listed here is answered like /ok.
//   /ok             200 "ok"
//   /fail           500 "failed"
//   /status/NNN     that status; ?location=URL and ?retry_after=SECONDS become headers
//   /slow?ms=N      200 after N ms
//   /late?ms=N      200 and half of the body at once, the rest after N ms
//   /hang           never answers
//   /reset          closes the connection without an answer
//   /json           200 {"ok": true, "id": ..., "attempt": ...}; ?body=JSON answers that instead
//   /big?bytes=N    200 with a body of N bytes
//   /flaky?fails=N  500 for the first N requests of a webhook-id, then 200
//
// What it has seen:
//   /_stats[?from=N&last=N]  counts: requests, distinct webhook-ids, duplicates (a retry is one),
//                            answered, statuses, aborted (closed without an answer), in_flight,
//                            peak_in_flight, group_violations (two requests of one queue and
//                            jobq-group at once); and the latencies of the requests from the N-th
//                            on, or of the last N
//   /_requests[?id=&path=&status=&attempt=&from=N&limit=N]  the requests, oldest first; headers and
//                            body of the first --keep requests only
//   /_reset                  forgets everything
//
// Latency is the wall clock at which the body was complete, minus the time that the payload carries
// in the field --stamp (a timestamptz as PostgreSQL writes it in JSON, or seconds since 1970).

const fs = require('fs');
const http = require('http');
const { parseArgs } = require('util');

const { values: options } = parseArgs({
    options: {
        port: { type: 'string', default: '0' },
        host: { type: 'string', default: '127.0.0.1' },
        'port-file': { type: 'string' },
        stamp: { type: 'string', default: 'pushed_at' },
        'fail-body': { type: 'string' },
        keep: { type: 'string', default: '1000' },
        detach: { type: 'boolean', default: false },
    },
});
const keep = Number(options.keep);
const stampText = new RegExp(`"${options.stamp}"\\s*:\\s*(?:"([^"]+)"|([0-9.]+))`);

// Date.now() counts whole milliseconds, which is about what is measured here: find moments at which
// it ticks and go on from there with the monotonic clock. Being interrupted on the way can only make
// the result too early, so the latest of several is the best.
let clockOrigin;
function setClock() {
    clockOrigin = -Infinity;
    for (let round = 0; round < 5; round++) {
        const tick = Date.now();
        let now;
        do now = Date.now(); while (now === tick);
        clockOrigin = Math.max(clockOrigin, now - performance.now());
    }
}
const wallClock = () => clockOrigin + performance.now(); // ms since 1970, with a fraction

let requests, stats, perId, running;
function reset() {
    requests = [];
    perId = new Map(); // webhook-id -> requests seen
    running = new Map(); // jobq-group -> requests unanswered
    stats = { duplicates: 0, answered: 0, aborted: 0, in_flight: 0, peak_in_flight: 0, group_violations: 0, statuses: {} };
    setClock();
}
reset();

// "2024-05-01T10:00:00.123456+00:00" -> ms since 1970, with its microseconds
function stampOf(body) {
    const found = stampText.exec(body);
    if (!found) return null;
    if (found[2]) return Number(found[2]) * 1000;
    const parts = /^(.*?:\d\d)(\.\d+)?([^.]*)$/.exec(found[1]);
    if (!parts) return null;
    const ms = Date.parse(parts[1].replace(' ', 'T') + parts[3]) + Number(parts[2] || 0) * 1000;
    return Number.isNaN(ms) ? null : ms;
}

function arrived(request, response) {
    const headers = request.headers;
    const id = headers['webhook-id'];
    const group = headers['jobq-group'];
    const record = {
        n: requests.length,
        id,
        attempt: headers['jobq-attempt'] === undefined ? undefined : Number(headers['jobq-attempt']),
        queue: headers['jobq-queue'],
        type: headers['jobq-type'],
        group,
        method: request.method,
        path: request.url,
        bytes: 0,
        arrived: 0, // body complete, ms since 1970
        latency: null, // ms
        status: null, // null while unanswered
        ended: null, // ms since 1970
    };
    if (record.n < keep) {
        record.headers = headers;
        record.body = null;
    }
    requests.push(record);
    if (id !== undefined) {
        const before = perId.get(id) || 0;
        if (before > 0) stats.duplicates++;
        perId.set(id, before + 1);
    }
    if (++stats.in_flight > stats.peak_in_flight) stats.peak_in_flight = stats.in_flight;
    if (group !== undefined) {
        const key = `${record.queue}\n${group}`;
        const before = running.get(key) || 0;
        if (before > 0) stats.group_violations++;
        running.set(key, before + 1);
    }
    const ours = { stats, running }; // a /_reset meanwhile must not be counted down by old requests
    response.on('close', () => {
        if (record.ended === null) {
            ours.stats.aborted++;
            ended(record, ours);
        }
    });
    return { record, ours };
}

function ended(record, ours) {
    record.ended = wallClock();
    ours.stats.in_flight--;
    if (record.group === undefined) return;
    const key = `${record.queue}\n${record.group}`;
    const left = ours.running.get(key) - 1;
    if (left > 0) ours.running.set(key, left);
    else ours.running.delete(key);
}

// Counted as ended before the answer leaves: the sender may be quicker with its next request than
// we are with hearing that the answer is out.
function answer(seen, response, status, body, extra) {
    if (response.destroyed || seen.record.ended !== null) return;
    const { record, ours } = seen;
    record.status = status;
    ours.stats.answered++;
    ours.stats.statuses[status] = (ours.stats.statuses[status] || 0) + 1;
    ended(record, ours);
    if (response.headersSent) {
        response.end(body);
        return;
    }
    const headers = { 'content-type': 'text/plain', 'content-length': Buffer.byteLength(body), ...extra };
    response.writeHead(status, headers);
    response.end(body);
}

function behave(seen, body, request, response) {
    const { record } = seen;
    const wanted = request.headers.receiver;
    const text = wanted === undefined ? request.url : wanted[0] === '/' ? wanted : '/' + wanted;
    const mark = text.indexOf('?');
    const path = mark < 0 ? text : text.slice(0, mark);
    const query = mark < 0 ? null : new URLSearchParams(text.slice(mark));
    const number = (name, otherwise) => Number((query && query.get(name)) || otherwise);

    if (options['fail-body'] && body.includes(options['fail-body'])) {
        return answer(seen, response, 500, 'this one is refused');
    }
    switch (path.split('/', 2)[1]) {
    case 'fail':
        return answer(seen, response, 500, 'failed');
    case 'status': {
        const status = Number(path.split('/')[2]) || 500;
        const extra = {};
        if (query && query.has('location')) extra.location = query.get('location');
        if (query && query.has('retry_after')) extra['retry-after'] = query.get('retry_after');
        // 204 and 304 have no body, whatever is written
        return answer(seen, response, status, status === 204 || status === 304 ? '' : `status ${status}`, extra);
    }
    case 'slow':
        return void setTimeout(() => answer(seen, response, 200, 'ok'), number('ms', 1000));
    case 'late':
        response.writeHead(200, { 'content-type': 'text/plain', 'content-length': 8 });
        response.write('half');
        return void setTimeout(() => answer(seen, response, 200, 'half'), number('ms', 1000));
    case 'hang':
        return;
    case 'reset':
        return request.socket.resetAndDestroy ? request.socket.resetAndDestroy() : request.socket.destroy();
    case 'json':
        return answer(seen, response, 200,
            (query && query.get('body')) || JSON.stringify({ ok: true, id: record.id, attempt: record.attempt }),
            { 'content-type': 'application/json' });
    case 'big':
        return answer(seen, response, 200, 'x'.repeat(number('bytes', 1 << 20)));
    case 'flaky':
        return perId.get(record.id) <= number('fails', 1) ?
            answer(seen, response, 500, 'not yet') : answer(seen, response, 200, 'ok');
    default:
        return answer(seen, response, 200, 'ok');
    }
}

// Percentiles by nearest rank; everything in ms.
function latencies(records) {
    const values = [];
    for (const { latency } of records) if (latency !== null) values.push(latency);
    if (values.length === 0) return null;
    const sorted = Float64Array.from(values).sort();
    const rank = (p) => sorted[Math.max(0, Math.ceil(p * sorted.length) - 1)];
    return {
        count: sorted.length,
        min: sorted[0],
        median: rank(0.5),
        p90: rank(0.9),
        p99: rank(0.99),
        max: sorted[sorted.length - 1],
    };
}

function showStats(query) {
    let from = Number(query.get('from') || 0);
    if (query.has('last')) from = Math.max(from, requests.length - Number(query.get('last')));
    const part = from === 0 ? requests : requests.slice(from);
    const done = part.filter((record) => record.arrived > 0);
    return {
        now: wallClock(),
        requests: requests.length,
        distinct: perId.size,
        ...stats,
        first_arrival: done.length ? done[0].arrived : null,
        last_arrival: done.length ? done[done.length - 1].arrived : null,
        latency: latencies(part),
    };
}

function showRequests(query) {
    const limit = Number(query.get('limit') || Infinity);
    const found = [];
    for (let i = Number(query.get('from') || 0); i < requests.length && found.length < limit; i++) {
        const record = requests[i];
        if (query.has('id') && record.id !== query.get('id')) continue;
        if (query.has('path') && record.path !== query.get('path')) continue;
        if (query.has('status') && String(record.status) !== query.get('status')) continue;
        if (query.has('attempt') && String(record.attempt) !== query.get('attempt')) continue;
        found.push(record);
    }
    return found;
}

function tell(request, response) {
    const url = new URL(request.url, 'http://receiver');
    let told;
    switch (url.pathname) {
    case '/_stats': told = showStats(url.searchParams); break;
    case '/_requests': told = showRequests(url.searchParams); break;
    case '/_reset': reset(); told = {}; break;
    default:
        response.writeHead(404);
        return response.end();
    }
    const text = JSON.stringify(told);
    response.writeHead(200, { 'content-type': 'application/json', 'content-length': Buffer.byteLength(text) });
    response.end(text);
}

const server = http.createServer((request, response) => {
    if (request.url.startsWith('/_')) {
        request.resume();
        return tell(request, response);
    }
    const seen = arrived(request, response);
    const parts = [];
    request.on('data', (part) => parts.push(part));
    request.on('end', () => {
        const { record } = seen;
        record.arrived = wallClock();
        const body = (parts.length === 1 ? parts[0] : Buffer.concat(parts)).toString();
        record.bytes = request.headers['content-length'] === undefined ?
            Buffer.byteLength(body) : Number(request.headers['content-length']);
        const stamp = stampOf(body);
        if (stamp !== null) record.latency = record.arrived - stamp;
        if (record.headers) record.body = body;
        behave(seen, body, request, response);
    });
});
// Node would close idle connections after 5 s, in a race with the sender's next request.
server.keepAliveTimeout = 0;
server.requestTimeout = 0;
server.headersTimeout = 0;
server.on('error', (error) => {
    console.error(error.message);
    process.exit(1);
});
server.listen({ port: Number(options.port), host: options.host, backlog: 4096 }, () => {
    const { port } = server.address();
    if (options['port-file']) {
        // Renamed into place, so that nobody reads half a number.
        fs.writeFileSync(options['port-file'] + '.new', `${port}\n`);
        fs.renameSync(options['port-file'] + '.new', options['port-file']);
    }
    console.log(`listening on ${port}`);
});

if (!options.detach) {
    const parent = process.ppid;
    setInterval(() => {
        if (process.ppid !== parent) process.exit(0);
    }, 250).unref();
}
