// What Node's servers and clients do with seeded bytes. A line for each case: name, tab, result.
const http = require('http'), net = require('net'), crypto = require('crypto'), { pipeline } = require('stream/promises'), { Transform, Readable } = require('stream');
const bytes = (seed, n) => { // the same for a seed
  const c = crypto.createCipheriv('aes-128-ctr', crypto.createHash('md5').update(String(seed)).digest(), Buffer.alloc(16));
  return c.update(Buffer.alloc(n));
};
const same = (got, want, what) => { if (!got.equals(want)) throw new Error(`${what}: ${got.length} bytes, want ${want.length}`); };
const listen = (s) => new Promise((ok) => s.listen(0, '127.0.0.1', () => ok(s.address().port)));
const body = async (stream) => { const all = []; for await (const b of stream) all.push(b); return Buffer.concat(all); };

async function web() {
  const server = http.createServer(async (q, r) => {
    if (q.method === 'POST') { await pipeline(q, r); return; }
    r.end(bytes('get', +q.url.slice(1)));
  });
  const port = await listen(server), agent = new http.Agent({ keepAlive: true, maxSockets: 20 });
  const ask = (path, send) => new Promise((ok, no) => {
    const q = http.request({ port, host: '127.0.0.1', path, agent, method: send ? 'POST' : 'GET' }, (r) => body(r).then(ok, no));
    q.on('error', no);
    q.setTimeout(600000, () => q.destroy(new Error('time')));
    send ? Readable.from([send]).pipe(q) : q.end();
  });
  const sizes = [0, 1, 1000, 65536, 1 << 20, 8 << 20];
  for (let round = 0; round < 3; round++)
    for (const n of sizes) {
      same(await ask('/' + n), bytes('get', n), 'get');
      same(await ask('/', bytes('post', n)), bytes('post', n), 'post');
    }
  await Promise.all(Array.from({ length: 600 }, async (_, i) => same(await ask('/' + sizes[i % 5]), bytes('get', sizes[i % 5]), 'many')));
  agent.destroy();
  server.close();
  return '636 bodies';
}

async function echo() { // back-pressure both ways, half-close
  const server = net.createServer({ allowHalfOpen: true }, (c) => pipeline(c, new Transform({ transform(b, _, f) { f(null, b); } }), c).catch(() => {}));
  const port = await listen(server);
  await Promise.all(Array.from({ length: 40 }, async (_, i) => {
    const c = net.connect({ port, host: '127.0.0.1', allowHalfOpen: true }), want = bytes(i, 2_000_000 + i * 1000);
    c.setTimeout(600000, () => c.destroy(new Error('time')));
    const got = body(c);
    for (let at = 0, k = 1; at < want.length; at += k, k = (k * 7 + i) % 90_000 + 1)
      if (!c.write(want.subarray(at, at + k))) await new Promise((ok) => c.once('drain', ok));
    c.end();
    same(await got, want, 'echo ' + i);
  }));
  server.close();
  return '40 sockets';
}

async function paused() { // a reader that stops and goes on
  const want = bytes('paused', 20_000_000), server = net.createServer((c) => { c.on('error', () => {}); c.end(want); });
  const c = net.connect(await listen(server), '127.0.0.1'), all = [];
  await new Promise((ok, no) => {
    let n = 0;
    c.on('data', (b) => { all.push(b); if (++n % 10 === 0) { c.pause(); setTimeout(() => c.resume(), 2); } });
    c.on('end', ok); c.on('error', no); c.setTimeout(600000, () => no(new Error('time')));
  });
  same(Buffer.concat(all), want, 'paused');
  server.close();
  return 'ok';
}

async function destroyed() { // by either side, in the middle
  const server = net.createServer((c) => { c.on('error', () => {}); c.on('data', () => {}); c.write(bytes('d', 5_000_000)); });
  const port = await listen(server), ended = {};
  for (let i = 0; i < 50; i++) {
    const c = net.connect(port, '127.0.0.1');
    await new Promise((ok) => {
      c.once('data', () => { if (i % 2) c.resetAndDestroy(); else c.destroy(); });
      c.on('error', () => {});
      c.on('close', (bad) => { ended[bad] = (ended[bad] || 0) + 1; ok(); });
    });
  }
  server.close();
  return JSON.stringify(ended);
}

(async () => {
  for (const f of [web, echo, paused, destroyed]) {
    const limit = setTimeout(() => { console.log(`${f.name}\tHANGS`); process.exit(1); }, 1200000);
    await f().then((r) => console.log(`${f.name}\t${r}`), (e) => console.log(`${f.name}\tFAIL ${e}`));
    clearTimeout(limit);
  }
  process.exit(0);
})();
