'use strict';
// A webhook receiver for the tests and the demo: Node's own http, https and http2. Nothing to
// install, but for --secret and /_secrets the package standardwebhooks.
//
//   node receiver.js [--port 0] [--host 127.0.0.1] [--port-file FILE] [--control]
//                    [--stamp pushed_at] [--fail-body TEXT] [--keep 1000] [--detach]
//                    [--certificate FILE --key FILE [--client-ca FILE] [--http2 [--max-streams N]]]
//                    [--secret whsec_...]...
//
// Prints "listening on PORT" (and writes PORT to --port-file). It ends with the process that
// started it, unless --detach.
//
// With --certificate it speaks TLS, and HTTP/1.1 only unless --http2: then what the client offers
// by ALPN, HTTP/2 before 1.1, with at most N streams a connection. With --client-ca a client must
// show a certificate of that authority.
//
// With secrets it verifies each request by the library of Standard Webhooks, a gzipped one unpacked,
// and answers 401 to what verifies with none of them.
//
// The path says how it answers; so does the header `receiver` ("status/503", "slow?ms=100"), which
// wins, and /_answer, which wins over both. Anything not listed here is answered like /ok.
//   /ok             200 "ok"
//   /fail           500 "failed"
//   /status/NNN     that status; ?location=URL and ?retry_after=SECONDS become headers
//   /slow?ms=N      200 after N ms; ?status=NNN answers that instead
//   /late?ms=N      200 and half of the body at once, the rest after N ms
//   /hang           never answers
//   /reset          closes the connection without an answer
//   /json           200 {"ok": true, "id": ..., "attempt": ...}; ?body=JSON answers that instead
//   /bytes?hex=...  200 with these bytes, as text/plain; &status=NNN answers that instead
//   /big?bytes=N    200 with a body of N bytes; &chunked=1 does not tell its length before
//   /flaky?fails=N  500 for the first N requests of a webhook-id, then 200; ?status=NNN instead of 500
// Each takes ?header=NAME:VALUE, also several times.
//
// What it has seen, and what it is told to do. With --control this is asked on a port of its own,
// always plain HTTP, which --port-file has in its second line: so that connections counts none but
// those of deliveries.
//   /_stats[?from=N&last=N]  counts: requests, distinct webhook-ids, duplicates (a retry is one),
//                            answered, statuses, aborted (closed without an answer), in_flight,
//                            peak_in_flight, group_violations (two requests of one queue and
//                            jobq-group at once); connections, open_connections, peak_connections,
//                            tls_errors (handshakes that failed, by their code), versions (requests
//                            by HTTP version); and the latencies of the requests from the N-th on,
//                            or of the last N
//   /_requests[?id=&path=&status=&attempt=&from=N&limit=N]  the requests, oldest first; headers and
//                            body of the first --keep requests only. A gzipped body is
//                            unpacked, and one that is not UTF-8 is in base64 too; verified has the numbers (from 0)
//                            of the secrets with which it verifies, refused why it does not;
//                            connection tells the requests of one connection; client is the common
//                            name of the client's certificate; sent counts the bytes of /big that
//                            have left
//   /_reset                  forgets everything but the next two
//   /_secrets                POST a list in JSON: verifies with these from now on
//   /_answer?as=PATH         answers everything like PATH from now on; without ?as by the path again
//
// Latency is the wall clock at which the body was complete, minus the time that the payload carries
// in the field --stamp (a timestamptz as PostgreSQL writes it in JSON, or seconds since 1970).

const fs = require('fs');
const http = require('http');
const { isUtf8 } = require('buffer');
const { createHmac } = require('crypto');
const { parseArgs } = require('util');
const { gunzipSync } = require('zlib');

const { values: options } = parseArgs({
    options: {
        port: { type: 'string', default: '0' },
        host: { type: 'string', default: '127.0.0.1' },
        'port-file': { type: 'string' },
        stamp: { type: 'string', default: 'pushed_at' },
        'fail-body': { type: 'string' },
        keep: { type: 'string', default: '1000' },
        detach: { type: 'boolean', default: false },
        control: { type: 'boolean', default: false },
        certificate: { type: 'string' },
        key: { type: 'string' },
        'client-ca': { type: 'string' },
        http2: { type: 'boolean', default: false },
        'max-streams': { type: 'string' },
        secret: { type: 'string', multiple: true, default: [] },
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
let openConnections = 0;
function reset() {
    requests = [];
    perId = new Map(); // webhook-id -> requests seen
    running = new Map(); // jobq-group -> requests unanswered
    stats = {
        duplicates: 0, answered: 0, aborted: 0, in_flight: 0, peak_in_flight: 0, group_violations: 0, statuses: {},
        connections: 0, peak_connections: openConnections, tls_errors: {}, versions: {},
    };
    setClock();
}
reset();

let forced = null; // like /_answer?as= says
let verifiers = []; // one a secret

function setSecrets(secrets) {
    if (secrets.length === 0) {
        verifiers = [];
        return;
    }
    const { Webhook } = require('standardwebhooks');
    // The library makes text of a body before it hashes it, and so can verify none that is not UTF-8.
    // For those its rules stay, only the hash is made of the bytes.
    class BytesWebhook extends Webhook {
        sign(id, timestamp, body) {
            const hash = createHmac('sha256', this.key);
            hash.update(`${id}.${Math.floor(timestamp.getTime() / 1000)}.`).update(body);
            return `v1,${hash.digest('base64')}`;
        }
    }
    verifiers = secrets.map((secret) => ({ text: new Webhook(secret), bytes: new BytesWebhook(secret) }));
}
setSecrets(options.secret);

// Puts the verdict on the request's record.
function verify(record, headers, body) {
    const kind = isUtf8(body) ? 'text' : 'bytes';
    record.verified = [];
    verifiers.forEach((verifier, i) => {
        try {
            verifier[kind].verify(body, headers, { jsonParse: false });
            record.verified.push(i);
        } catch (error) {
            record.refused = error.message;
        }
    });
    if (record.verified.length > 0) delete record.refused;
}

// Requests of one connection carry its number. With HTTP/2 that is the session's: sockets are hidden there.
const connectionNumbers = new WeakMap();
let lastConnection = 0;
function connectionOf(request) {
    const connection = request.stream && request.stream.session ? request.stream.session : request.socket;
    if (!connectionNumbers.has(connection)) connectionNumbers.set(connection, ++lastConnection);
    return connectionNumbers.get(connection);
}

function clientOf(request) {
    if (!options['client-ca']) return undefined;
    const { subject } = request.socket.getPeerCertificate();
    return subject && subject.CN;
}

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
        http: request.httpVersion,
        connection: connectionOf(request),
        client: clientOf(request),
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
    stats.versions[record.http] = (stats.versions[record.http] || 0) + 1;
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
    const headers = { 'content-type': 'text/plain', 'content-length': Buffer.byteLength(body), ...extra, ...seen.extra };
    response.writeHead(status, headers);
    response.end(body);
}

// In pieces, as fast as they are taken: a body may be larger than memory.
function big(seen, response, total, chunked) {
    const { record } = seen;
    const piece = Buffer.alloc(65536, 'x');
    record.sent = 0;
    response.writeHead(200, {
        'content-type': 'text/plain', ...(chunked ? {} : { 'content-length': total }), ...seen.extra,
    });
    const more = () => {
        while (record.ended === null && record.sent < total) {
            const part = piece.subarray(0, Math.min(piece.length, total - record.sent));
            record.sent += part.length;
            if (!response.write(part)) return void response.once('drain', more);
        }
        answer(seen, response, 200, '');
    };
    more();
}

function behave(seen, body, request, response) {
    const { record } = seen;
    const wanted = forced ?? request.headers.receiver;
    const text = wanted === undefined ? request.url : wanted[0] === '/' ? wanted : '/' + wanted;
    const mark = text.indexOf('?');
    const path = mark < 0 ? text : text.slice(0, mark);
    const query = mark < 0 ? null : new URLSearchParams(text.slice(mark));
    const number = (name, otherwise) => Number((query && query.get(name)) || otherwise);
    seen.extra = {};
    for (const header of query ? query.getAll('header') : []) {
        const colon = header.indexOf(':');
        seen.extra[header.slice(0, colon).toLowerCase()] = header.slice(colon + 1).trim();
    }

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
        return void setTimeout(() => answer(seen, response, number('status', 200), 'ok'), number('ms', 1000));
    case 'late':
        response.writeHead(200, { 'content-type': 'text/plain', 'content-length': 8, ...seen.extra });
        response.write('half');
        return void setTimeout(() => answer(seen, response, 200, 'half'), number('ms', 1000));
    case 'hang':
        return;
    case 'reset':
        if (request.stream) return request.stream.session.destroy();
        return request.socket.resetAndDestroy ? request.socket.resetAndDestroy() : request.socket.destroy();
    case 'json':
        return answer(seen, response, 200,
            (query && query.get('body')) || JSON.stringify({ ok: true, id: record.id, attempt: record.attempt }),
            { 'content-type': 'application/json' });
    case 'bytes':
        return answer(seen, response, number('status', 200), Buffer.from((query && query.get('hex')) || '', 'hex'));
    case 'big':
        return big(seen, response, number('bytes', 1 << 20), query && query.has('chunked'));
    case 'flaky':
        return perId.get(record.id) <= number('fails', 1) ?
            answer(seen, response, number('status', 500), 'not yet') : answer(seen, response, 200, 'ok');
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

function tell(request, response, body) {
    const url = new URL(request.url, 'http://receiver');
    let told = {};
    switch (url.pathname) {
    case '/_stats': told = { open_connections: openConnections, ...showStats(url.searchParams) }; break;
    case '/_requests': told = showRequests(url.searchParams); break;
    case '/_reset': reset(); break;
    case '/_secrets': setSecrets(JSON.parse(body)); break;
    case '/_answer': forced = url.searchParams.get('as'); break;
    default:
        response.writeHead(404);
        return response.end();
    }
    const text = JSON.stringify(told);
    response.writeHead(200, { 'content-type': 'application/json', 'content-length': Buffer.byteLength(text) });
    response.end(text);
}

// Calls back with the body when it is whole.
function read(request, whole) {
    const parts = [];
    request.on('data', (part) => parts.push(part));
    request.on('end', () => whole(parts.length === 1 ? parts[0] : Buffer.concat(parts)));
}

function serve(request, response) {
    if (request.url.startsWith('/_')) return read(request, (body) => tell(request, response, body));
    const seen = arrived(request, response);
    read(request, (sent) => {
        const { record } = seen;
        const { headers } = request;
        record.arrived = wallClock();
        record.bytes = headers['content-length'] === undefined ? sent.length : Number(headers['content-length']);
        let bytes = sent;
        if (headers['content-encoding'] === 'gzip') {
            try {
                bytes = gunzipSync(sent);
            } catch (error) {
                return answer(seen, response, 400, error.message);
            }
        }
        const body = bytes.toString();
        const stamp = stampOf(body);
        if (stamp !== null) record.latency = record.arrived - stamp;
        if (record.headers) {
            record.body = body;
            if (!isUtf8(bytes)) record.base64 = bytes.toString('base64');
        }
        if (verifiers.length > 0) {
            verify(record, headers, bytes);
            if (record.verified.length === 0) return answer(seen, response, 401, record.refused);
        }
        behave(seen, body, request, response);
    });
}

function makeServer() {
    if (!options.certificate) return http.createServer(serve);
    const tls = { cert: fs.readFileSync(options.certificate), key: fs.readFileSync(options.key) };
    if (options['client-ca']) {
        Object.assign(tls, { ca: fs.readFileSync(options['client-ca']), requestCert: true, rejectUnauthorized: true });
    }
    if (!options.http2) return require('https').createServer(tls, serve);
    const settings = options['max-streams'] ? { maxConcurrentStreams: Number(options['max-streams']) } : {};
    return require('http2').createSecureServer({ ...tls, allowHTTP1: true, settings }, serve);
}

function countConnection(socket) {
    stats.connections++;
    stats.peak_connections = Math.max(stats.peak_connections, ++openConnections);
    socket.on('close', () => openConnections--);
}

// Calls back with the port.
function listen(server, port, listening) {
    // Node would close idle connections after 5 s, in a race with the sender's next request.
    server.keepAliveTimeout = 0;
    server.requestTimeout = 0;
    server.headersTimeout = 0;
    server.on('error', (error) => {
        console.error(error.message);
        process.exit(1);
    });
    server.listen({ port, host: options.host, backlog: 4096 }, () => listening(server.address().port));
}

function ready(...ports) {
    if (options['port-file']) {
        // Renamed into place, so that nobody reads half a number.
        fs.writeFileSync(options['port-file'] + '.new', ports.map((port) => `${port}\n`).join(''));
        fs.renameSync(options['port-file'] + '.new', options['port-file']);
    }
    console.log(`listening on ${ports[0]}`);
}

const server = makeServer();
server.on('connection', countConnection);
server.on('tlsClientError', (error) => {
    const code = error.code || error.message;
    stats.tls_errors[code] = (stats.tls_errors[code] || 0) + 1;
});
listen(server, Number(options.port), (port) => {
    if (options.control) listen(http.createServer(serve), 0, (control) => ready(port, control));
    else ready(port);
});

if (!options.detach) {
    const parent = process.ppid;
    setInterval(() => {
        if (process.ppid !== parent) process.exit(0);
    }, 250).unref();
}
