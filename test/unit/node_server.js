// A server for the unit tests: node node_server.js '{"port": 0, "kind": ...}'. Prints its port, and
// ends when its standard input does.
//   kind "h2" (TLS; HTTP/2, and 1.1 for who wants it), "h1" (TLS, 1.1 only), "h2c" (HTTP/2, no TLS)
//   key, cert: files; client_ca: a file, asks for client certificates; streams: most at once in a
//   connection
//   kind "proxy": prints a line for each request it gets; credentials it does not ask for
'use strict';
const fs = require('fs');
const http = require('http');
const http2 = require('http2');
const https = require('https');
const net = require('net');

const options = JSON.parse(process.argv[2]);

// Requests with "until=N" are answered when there are N of them.
let held = [];
function hold_until(count, answer) {
    held.push(answer);
    if (held.length < count) return;
    for (const each of held) each();
    held = [];
}

// The most TLS handshakes that were under way at once.
let handshakes = 0;
let most_handshakes = 0;
function count_handshakes(server) {
    server.on('connection', (socket) => {
        most_handshakes = Math.max(most_handshakes, ++handshakes);
    });
    server.on('secureConnection', () => { --handshakes; });
}

// The connection's number, the request's HTTP version and the client certificate's name: in a header,
// so that the body can be anything.
let connections = 0;
const numbers = new WeakMap();
const number_of = (socket) => {
    if (!numbers.has(socket)) numbers.set(socket, ++connections);
    return numbers.get(socket);
};

function answer(request, response) {
    const url = new URL(request.url, 'http://test');
    const ask = url.searchParams;
    const session = request.stream && request.stream.session;
    const socket = session ? session.socket : request.socket;
    const peer = socket.getPeerCertificate ? socket.getPeerCertificate() : {};
    let received = 0;
    request.on('data', (data) => { received += data.length; });
    request.on('error', () => {});
    response.on('error', () => {});
    const reply = () => {
        if (ask.has('reset')) {
            if (session) return request.stream.close(http2.constants.NGHTTP2_INTERNAL_ERROR);
            return request.socket.destroy();
        }
        response.statusCode = Number(ask.get('status') || 200);
        for (const [name, value] of ask)
            if (name.startsWith('h-')) response.setHeader(name.slice(2), value);
        response.setHeader('connection-number', String(number_of(session || socket)));
        response.setHeader('content-type', JSON.stringify({
            connection: number_of(session || socket), http: request.httpVersion,
            client: (peer && peer.subject && peer.subject.CN) || null, received,
            handshakes: most_handshakes,
        }));
        let left = Number(ask.get('bytes') || 0);
        const chunk = Buffer.alloc(1 << 16, 'x');
        const more = () => {
            while (left > 0) {
                const part = left < chunk.length ? chunk.subarray(0, left) : chunk;
                left -= part.length;
                if (!response.write(part)) return response.once('drain', more);
            }
            response.end();
        };
        more();
    };
    request.on('end', () => {
        if (ask.has('until')) hold_until(Number(ask.get('until')), reply);
        else setTimeout(reply, Number(ask.get('delay') || 0));
    });
}

function proxy() {
    const server = http.createServer((request, response) => {
        console.log(request.method + ' ' + request.url);
        const onward = http.request(request.url, { method: request.method, headers: request.headers },
            (back) => {
                response.writeHead(back.statusCode, back.headers);
                back.pipe(response);
            });
        onward.on('error', () => response.writeHead(502).end());
        request.pipe(onward);
    });
    server.on('connect', (request, client, head) => {
        console.log('CONNECT ' + request.url + ' ' + Object.keys(request.headers).sort().join(','));
        if (options.refuse)
            return client.end('HTTP/1.1 403 Forbidden\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n');
        const [, host, port] = /^(.*):(\d+)$/.exec(request.url);
        const onward = net.connect(Number(port), options.to || host, () => {
            client.write('HTTP/1.1 200 OK\r\n\r\n');
            onward.write(head);
            onward.pipe(client).pipe(onward);
        });
        for (const end of [client, onward]) end.on('error', () => { client.destroy(); onward.destroy(); });
    });
    return server;
}

function make() {
    if (options.kind === 'proxy') return proxy();
    const settings = { settings: options.streams ? { maxConcurrentStreams: options.streams } : {} };
    if (options.kind === 'h2c') return http2.createServer(settings, answer);
    const tls = {
        ...settings, allowHTTP1: true, key: fs.readFileSync(options.key), cert: fs.readFileSync(options.cert),
    };
    if (options.client_ca)
        Object.assign(tls, { ca: fs.readFileSync(options.client_ca), requestCert: true, rejectUnauthorized: true });
    return options.kind === 'h1' ? https.createServer(tls, answer) : http2.createSecureServer(tls, answer);
}

const server = make();
count_handshakes(server);
server.on('sessionError', () => {});
server.listen(options.port || 0, '127.0.0.1', 4096, () => console.log(server.address().port));
process.stdin.on('end', () => process.exit()).resume();
