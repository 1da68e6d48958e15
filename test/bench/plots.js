'use strict';
// The page of plots, an SVG without anything beside it: bars of what was measured side by side, lines
// of rates over time, and how the latencies are spread.

const { quantile } = require('./lib');

const width = 960;
const ours = '#c2410c';
const colours = ['#475569', '#0e7490', '#6d28d9', '#4d7c0f', '#a16207', '#be185d'];
const escape = (text) => String(text).replaceAll('&', '&amp;').replaceAll('<', '&lt;');
const short = (value) => (value >= 1e6 ? `${+(value / 1e6).toFixed(1)}M` : value >= 10_000 ? `${Math.round(value / 1000)}k`
    : value >= 1000 ? `${+(value / 1000).toFixed(1)}k` : `${+value.toFixed(value < 10 ? 2 : 0)}`);

const text = (x, y, content, { size = 13, anchor = 'start', fill = '#1e293b', weight = 400 } = {}) =>
    `<text x="${x}" y="${y}" font-size="${size}" text-anchor="${anchor}" fill="${fill}" font-weight="${weight}">`
    + `${escape(content)}</text>`;
const rect = (x, y, w, h, fill) => `<rect x="${x}" y="${y}" width="${Math.max(0, w).toFixed(1)}" height="${h}" fill="${fill}"/>`;
const rule = (x1, y1, x2, y2) => `<path d="M${x1} ${y1}L${x2} ${y2}" stroke="#cbd5e1"/>`;
const isOurs = (label) => label.startsWith('jobq');

// A panel is its height and its parts, drawn from y = 0.
function bars(title, groups) {
    const left = 270;
    const most = Math.max(...Object.values(groups).flat().map(([, value]) => value));
    const parts = [text(0, 18, title, { size: 16, weight: 600 })];
    let y = 34;
    for (const [group, values] of Object.entries(groups)) {
        parts.push(text(0, y + 13, group, { fill: '#64748b' }));
        for (const [label, value] of values) {
            parts.push(text(left - 8, y + 13, label, { anchor: 'end' }));
            const length = (value / most) * (width - left - 90);
            parts.push(rect(left, y + 2, length, 15, isOurs(label) ? ours : '#94a3b8'));
            parts.push(text(left + length + 6, y + 14, short(value), { size: 12 }));
            y += 20;
        }
        y += 8;
    }
    return { height: y, parts };
}

// A round number of steps up to a value.
function steps(most) {
    const raw = most / 4;
    const unit = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((n) => n * unit).find((n) => n >= raw);
    return Array.from({ length: Math.ceil(most / step) + 1 }, (_, i) => i * step);
}

// lines: [label, [[x, y]...]]
function lines(title, xTitle, drawn, { yTitle = '', dashed = () => false } = {}) {
    const [left, top, right, bottom] = [60, 40, width - 250, 290];
    const xs = steps(Math.max(...drawn.flatMap(([, points]) => points.map(([x]) => x)), 1e-9));
    const ys = steps(Math.max(...drawn.flatMap(([, points]) => points.map(([, y]) => y)), 1e-9));
    const x = (value) => left + (value / xs.at(-1)) * (right - left);
    const y = (value) => bottom - (value / ys.at(-1)) * (bottom - top);
    const parts = [text(0, 18, title, { size: 16, weight: 600 })];
    for (const value of ys) {
        parts.push(rule(left, y(value), right, y(value)));
        parts.push(text(left - 8, y(value) + 4, short(value), { size: 12, anchor: 'end' }));
    }
    for (const value of xs) parts.push(text(x(value), bottom + 18, short(value), { size: 12, anchor: 'middle' }));
    parts.push(text((left + right) / 2, bottom + 38, xTitle, { size: 12, anchor: 'middle', fill: '#64748b' }));
    if (yTitle) parts.push(text(left, top - 8, yTitle, { size: 12, fill: '#64748b' }));
    let other = 0;
    drawn.forEach(([label, points], i) => {
        const colour = label === 'jobq' ? ours : colours[other++ % colours.length];
        const path = points.map(([px, py], n) => `${n ? 'L' : 'M'}${x(px).toFixed(1)} ${y(py).toFixed(1)}`).join('');
        parts.push(`<path d="${path}" fill="none" stroke="${colour}" stroke-width="${isOurs(label) ? 2.5 : 1.8}"`
            + `${dashed(label) ? ' stroke-dasharray="5 4"' : ''}/>`);
        const ly = top + 10 + i * 22;
        parts.push(rect(right + 20, ly - 5, 18, 4, colour), text(right + 46, ly, label));
    });
    return { height: bottom + 50, parts };
}

function page({ date, machine, mode, charts, raw }) {
    const dashed = (label) => isOurs(label) && label !== 'jobq';
    const panels = [];
    for (const [title, groups] of Object.entries(charts.bars)) panels.push(bars(title, groups));
    for (const [title, drawn] of Object.entries(charts.lines))
        panels.push(lines(title, 'seconds', drawn.map(([label, values]) => [label, values.map((value, i) => [i + 0.5, value])]),
            { dashed }));
    const times = raw.latency?.milliseconds;
    if (times) {
        const named = { push: 'jobq', schedule: 'jobq, scheduled jobs', notify: 'NOTIFY alone', request: 'libcurl request alone' };
        const at = Array.from({ length: 100 }, (_, i) => i / 100);
        panels.push(lines('push to arrival of the webhook, idle server: percentiles', 'percentile',
            Object.entries(named).map(([kind, label]) => [label, at.map((q) => [100 * q, quantile(times[kind], q)])]),
            { yTitle: 'ms', dashed }));
    }
    let y = 40;
    const body = panels.map(({ height, parts }) => {
        const group = `<g transform="translate(30 ${y})">${parts.join('\n')}</g>`;
        y += height + 24;
        return group;
    });
    const foot = `${date.slice(0, 10)}; ${machine.cpu}, ${machine.cores} cores; PostgreSQL ${machine.postgresql}; ${mode} run, medians`;
    return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width + 60} ${y + 10}" font-family="system-ui, sans-serif">
<rect width="100%" height="100%" fill="#fff"/>
${body.join('\n')}
${text(30, y - 4, foot, { size: 12, fill: '#64748b' })}
</svg>
`;
}

module.exports = { page };
