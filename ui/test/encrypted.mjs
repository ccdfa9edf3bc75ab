// What a codec of the clients has encrypted is not shown: neither in the list of jobs nor on the page of a job, nor in a dead-letter record.
// The PG* settings name the server.
import pg from 'pg';
import * as queries from '../src/jobs/queries.mjs';
import { rowsOf } from '../src/jobs/walk.mjs';
import { jobPage } from '../src/pages/job.mjs';
import { tree } from '../src/pages/document.mjs';

const tell = (value, what, detail = '') => {
  process.stdout.write(`${value ? 'ok' : 'not ok'} - ${what}\n`);
  if (!value) process.stderr.write(`${what}: ${JSON.stringify(detail)}\n`);
};
const client = new pg.Client();
await client.connect();
// Times and ids are text, as in database.mjs.
const types = { getTypeParser: (type) => ([20, 1184, 3802].includes(type) ? (text) => text : pg.types.getTypeParser(type)) };
const query = async (text, values) => (await client.query({ text, values, types })).rows;
const stored = (data) => ({ idemq_codec: 'aes-gcm', key: '<2026-11>', data });
await query("SELECT idemq.create_queue('encrypted')");
const ids = [];
for (const payload of [stored('c2VjcmV0'), stored('c2VjcmV0'.repeat(4000)), { plain: 'c2VjcmV0' }, { idemq_codec: 1, key: 'c2VjcmV0', data: 2 }]) {
  ids.push((await query("SELECT id FROM idemq.enqueue('encrypted', $1)", [JSON.stringify(payload)]))[0].id);
}
const [{ token }] = await query("SELECT token FROM idemq.claim('encrypted')");
await query('SELECT idemq.checkpoint($1, $2, $3)', [ids[0], token, stored('c2VjcmV0')]);
await query("CALL idemq.begin_step($1, $2, 'charge', $3, '30 s')", [ids[0], token, stored('c2VjcmV0')]);
await query("SELECT idemq.finish_step($1, $2, 'charge', $3)", [ids[0], token, stored('c2VjcmV0'.repeat(4000))]);

const page = async (id) => {
  const [[job], [shown], steps] = [await query(queries.job, [id]), await query(queries.shown, [id]), await query(queries.steps, [id])];
  return String(jobPage({ job, shown, attempts: [], group: null, steps, flow: null }, { may: {}, writes: false }));
};
const times = (text, part) => text.split(part).length - 1;
const first = await page(ids[0]);
const said = 'encrypted with key <span class="key" title="&lt;2026-11&gt;">';
tell(times(first, said) === 4 && !first.includes('c2VjcmV0'), 'payload, checkpoint, request and response are not shown', first);
const large = await page(ids[1]);
tell(times(large, said) === 1 && !large.includes('c2VjcmV0'), 'nor is a payload of which only the beginning is read', large);
tell((await page(ids[2])).includes('c2VjcmV0') && (await page(ids[3])).includes('c2VjcmV0'), 'what is not encrypted is shown');
const rows = await rowsOf(query, ids);
tell(JSON.stringify(rows.map(({ encrypted }) => encrypted)) === '["<2026-11>","<2026-11>",null,null]', 'the list knows which payloads are encrypted', rows);
const record = String(tree('payload', 'payload', JSON.stringify({ queue: 'q', payload: stored('c2VjcmV0'), steps: [{ request: stored('c2VjcmV0') }] }), true));
tell(times(record, 'encrypted with key &lt;2026-11&gt;') === 4 && !record.includes('c2VjcmV0'), 'nor are the documents in a dead-letter record', record);
await client.end();
