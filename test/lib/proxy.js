'use strict';
// An HTTP proxy for the tests: it opens tunnels (CONNECT) and passes on requests whose target is a whole URL.
//
//   node proxy.js --port-file FILE --log FILE [--refuse]
//       listens on 127.0.0.1 and writes its port to FILE; writes a line for each request to the log: its
//       method, its target, and how many of its headers are jobq's or webhook's. --refuse: answers 403.
// It ends with the process that started it.

const fs = require('fs');
const http = require('http');
const net = require('net');
const { parseArgs } = require('util');

const { values: options } = parseArgs({
    options: { 'port-file': { type: 'string' }, log: { type: 'string' }, refuse: { type: 'boolean', default: false } },
});

function note(request) {
    const told = Object.keys(request.headers).filter((name) => /^(?:webhook|jobq)-/.test(name)).length;
    fs.appendFileSync(options.log, `${request.method} ${request.url} ${told}\n`);
}

const server = http.createServer((request, response) => {
    note(request);
    if (options.refuse) return response.writeHead(403).end();
    const { method, headers, url } = request;
    const onward = http.request(url, { method, headers }, (answer) => {
        response.writeHead(answer.statusCode, answer.headers);
        answer.pipe(response);
    });
    onward.on('error', () => response.writeHead(502).end());
    request.pipe(onward);
});

server.on('connect', (request, client, head) => {
    note(request);
    if (options.refuse) return client.end('HTTP/1.1 403 Forbidden\r\n\r\n');
    const { hostname, port } = new URL(`http://${request.url}`);
    const onward = net.connect(Number(port), hostname.replace(/^\[|\]$/g, ''), () => {
        client.write('HTTP/1.1 200 Connection established\r\n\r\n');
        onward.write(head);
        onward.pipe(client);
        client.pipe(onward);
    });
    const end = () => { onward.destroy(); client.destroy(); };
    onward.on('error', end);
    client.on('error', end);
});

server.keepAliveTimeout = 0;
fs.writeFileSync(options.log, '');
server.listen(0, '127.0.0.1', () => {
    fs.writeFileSync(options['port-file'] + '.new', `${server.address().port}\n`);
    fs.renameSync(options['port-file'] + '.new', options['port-file']);
});
const parent = process.ppid;
setInterval(() => {
    if (process.ppid !== parent) process.exit(0);
}, 250);
