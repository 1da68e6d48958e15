'use strict';
// What the cases use: SQL, the programs, rounds, rows of the table, checks.

const { execFileSync, spawn } = require('child_process');
const fs = require('fs');
const net = require('net');
const path = require('path');
const { performance } = require('perf_hooks');

const here = __dirname;
const work = process.env.BENCH_WORK; // of this run; gone afterwards
const bin = process.env.BENCH_PG_BIN;

// ---- numbers

const sorted = (values) => [...values].sort((a, b) => a - b);
function quantile(values, q) {
    const all = sorted(values);
    return all.length === 0 ? NaN : all[Math.round(q * (all.length - 1))];
}
function median(values) {
    const all = sorted(values);
    const half = Math.floor(all.length / 2);
    return all.length % 2 ? all[half] : (all[half - 1] + all[half]) / 2;
}
const sum = (values) => values.reduce((a, b) => a + b, 0);
const pause = (ms) => new Promise((resolve) => { setTimeout(resolve, ms); });

// ---- SQL

const psqlArgs = (database) => ['-X', '-q', '-At', '-v', 'ON_ERROR_STOP=1', '-d', database];

// Runs a script and returns what its last statement returned, as text.
function sql(database, script) {
    const out = execFileSync(path.join(bin, 'psql'), psqlArgs(database), {
        input: script, encoding: 'utf8', maxBuffer: 1 << 28, stdio: ['pipe', 'pipe', 'pipe'],
    });
    return out.trimEnd().split('\n').pop();
}
const number = (database, query) => Number(sql(database, query));
const row = (database, query) => JSON.parse(sql(database, `SELECT to_json(r) FROM (${query}) AS r`));
const literal = (text) => `'${text.replaceAll("'", "''")}'`;

// A session that holds a snapshot until it is released.
async function holdSnapshot(database) {
    const child = spawn(path.join(bin, 'psql'), psqlArgs(database), { stdio: ['pipe', 'pipe', 'inherit'] });
    child.stdin.write("BEGIN ISOLATION LEVEL REPEATABLE READ;\nSELECT count(*) FROM pg_class;\n");
    await new Promise((resolve, reject) => {
        child.stdout.once('data', resolve);
        child.once('exit', () => reject(new Error('the session with the snapshot ended')));
    });
    return {
        release: () => new Promise((resolve) => {
            child.removeAllListeners('exit');
            child.once('exit', resolve);
            child.stdin.end('COMMIT;\n');
        }),
    };
}

function restartServer() {
    execFileSync(path.join(bin, 'pg_ctl'), ['-D', path.join(work, 'pg'), '-l', path.join(work, 'log/server.log'),
        '-m', 'fast', '-w', 'restart'], { stdio: ['ignore', 'ignore', 'inherit'] });
}

// ---- programs

// Runs a program that prints JSON in its last line.
function run(program, args, database, env = {}) {
    return new Promise((resolve, reject) => {
        const child = spawn(program, args, {
            cwd: here, stdio: ['ignore', 'pipe', 'pipe'], env: { ...process.env, PGDATABASE: database, ...env },
        });
        let out = '';
        let errors = '';
        child.stdout.on('data', (text) => { out += text; });
        child.stderr.on('data', (text) => { errors += text; });
        child.on('error', reject);
        child.on('close', (code) => {
            if (code !== 0) reject(new Error(`${path.basename(program)} ended with ${code}: ${errors.trim().slice(-2000)}`));
            else resolve(JSON.parse(out.trimEnd().split('\n').pop()));
        });
    });
}

// { push, bind, pull, complete, workers, jobs... } to client.cpp's options of these names.
function client(database, options) {
    const args = [];
    for (const [name, value] of Object.entries(options)) {
        if (value === undefined || value === false) continue;
        for (const one of Array.isArray(value) ? value : [value])
            args.push(`--${name}`, ...(one === true ? [] : [String(one)]));
    }
    return run(path.join(here, 'build/client'), args, database);
}

function freePort() {
    return new Promise((resolve, reject) => {
        const server = net.createServer().on('error', reject).listen(0, '127.0.0.1', () => {
            const { port } = server.address();
            server.close(() => resolve(port));
        });
    });
}

const receiver = (port, options = []) =>
    spawn(process.execPath, [path.join(here, '../receiver.js'), '--port', port, '--keep', '0', ...options], { stdio: 'ignore' });

const text = async (url) => (await fetch(url)).text();

async function until(what, seconds, condition, every = 100) {
    for (const limit = performance.now() + seconds * 1000; performance.now() < limit; await pause(every)) {
        const value = await condition();
        if (value) return value;
    }
    throw new Error(`${what} did not happen within ${seconds} s`);
}

// A web server on the loopback that answers every POST 204, with nothing in it: nginx, or for
// machines without it, in --check, the tests' receiver. requests(): how many it has answered.
async function webServer() {
    const port = await freePort();
    const url = `http://127.0.0.1:${port}/hook`;
    const nginx = process.env.BENCH_NGINX;
    const dir = path.join(work, `web-${port}`);
    fs.mkdirSync(dir);
    let child;
    let requests;
    if (nginx) {
        fs.writeFileSync(path.join(dir, 'nginx.conf'), `
            daemon off;
            worker_processes 1;
            worker_rlimit_nofile 65536;
            pid ${dir}/pid;
            error_log ${dir}/error.log warn;
            events { worker_connections 16384; }
            http {
                access_log off;
                client_body_temp_path ${dir}/body; proxy_temp_path ${dir}/proxy; fastcgi_temp_path ${dir}/fastcgi;
                uwsgi_temp_path ${dir}/uwsgi; scgi_temp_path ${dir}/scgi;
                keepalive_requests 1000000000;
                keepalive_timeout 600s;
                server {
                    listen 127.0.0.1:${port} backlog=4096;
                    location = /stats { stub_status; }
                    location / { return 204; }
                }
            }`);
        child = spawn(nginx, ['-p', dir, '-e', `${dir}/error.log`, '-c', `${dir}/nginx.conf`], { stdio: 'ignore' });
        let asked = 0;
        requests = async () => {
            const found = /requests\s+\d+ \d+ (\d+)/.exec(await text(`http://127.0.0.1:${port}/stats`));
            return Number(found[1]) - ++asked;
        };
    } else {
        child = receiver(port);
        requests = async () => JSON.parse(await text(`http://127.0.0.1:${port}/_stats`)).requests;
    }
    await until('the web server', 10, () => requests().catch(() => -1).then((n) => n >= 0));
    return { url, nginx: Boolean(nginx), requests, stop: () => stop(child) };
}

// The tests' receiver, which answers after some time; over TLS with a certificate made for it, ca.
async function slowServer({ tls = false } = {}) {
    const port = await freePort();
    const file = (name) => path.join(work, `slow-${port}-${name}`);
    const secure = ['--control', '--port-file', file('ports'), '--certificate', file('certificate'), '--key', file('key')];
    if (tls)
        execFileSync('openssl', ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-days', '1',
            '-subj', '/CN=127.0.0.1', '-addext', 'subjectAltName = IP:127.0.0.1', '-keyout', file('key'),
            '-out', file('certificate')], { stdio: 'ignore' });
    const child = receiver(port, tls ? secure : []);
    // What it has counted is told without TLS, and on a port of its own.
    const told = tls
        ? await until('the slow web server', 10, () => fs.existsSync(file('ports')) && fs.readFileSync(file('ports'), 'utf8'))
            .then((ports) => ports.split('\n')[1])
        : port;
    const stats = async () => JSON.parse(await text(`http://127.0.0.1:${told}/_stats`));
    await until('the slow web server', 10, () => stats().then(() => true, () => false));
    const url = (ms) => `${tls ? 'https' : 'http'}://127.0.0.1:${port}/slow?ms=${ms}`;
    return { url, ca: file('certificate'), stats, stop: () => stop(child) };
}

function stop(child) {
    return new Promise((resolve) => {
        if (child.exitCode !== null || child.signalCode !== null) { resolve(); return; }
        child.once('exit', resolve);
        child.kill('SIGTERM');
    });
}

// ---- what is known of this machine and its software

function machine(database) {
    const cpu = /model name\s*:\s*(.*)/.exec(fs.readFileSync('/proc/cpuinfo', 'utf8'))?.[1] ?? 'unknown';
    const os = require('os');
    const release = fs.existsSync('/etc/os-release')
        ? /PRETTY_NAME="(.*)"/.exec(fs.readFileSync('/etc/os-release', 'utf8'))?.[1] : undefined;
    return {
        cpu, cores: os.cpus().length, memory_gb: Math.round(os.totalmem() / 2 ** 30), kernel: os.release(), system: release,
        postgresql: sql(database, 'SHOW server_version'),
        settings: JSON.parse(sql(database, `SELECT json_object_agg(name, current_setting(name)) FROM pg_settings
            WHERE name IN ('shared_buffers', 'fsync', 'synchronous_commit', 'full_page_writes', 'max_wal_size',
                           'checkpoint_timeout', 'autovacuum', 'autovacuum_naptime') OR name LIKE 'jobq.%'`)),
    };
}

module.exports = {
    here, work, median, quantile, sum, pause, sql, number, row, literal, holdSnapshot, restartServer, run, client,
    until, webServer, slowServer, machine,
};
