// The search without a browser: what its terms mean, what is wrong with them, what is suggested; that slice after slice finds each job once, for
// each role those that it may see; and that an index on a field of the payload is used, as the manual says.  The PG* settings name the server,
// whose jobs are those of ui.pl; a role "seeks" sees the queue "many" alone.
import { Database } from '../src/database.mjs';
import { find } from '../src/search/find.mjs';
import { parse, quote, split } from '../src/search/parse.mjs';
import { suggest } from '../src/search/suggest.mjs';

const tell = (value, what, detail = '') => {
  process.stdout.write(`${value ? 'ok' : 'not ok'} - ${what}\n`);
  if (!value) process.stderr.write(`${what}: ${JSON.stringify(detail)}\n`);
};

// Terms.
const whole = parse('queue:mail state:DEAD kind:letter key:"a b" error:"say \\"no\\"" payload.customer.id:77 since:90m until:2026-11-30 plain "two words" http://x.y 12:30');
tell(whole.queue === 'mail' && whole.state === 'dead' && JSON.stringify(whole.filter) === '{"kind":"letter","key":"a b","error":"say \\"no\\"","since":{"ago":"90 minutes"},"until":{"at":"2026-11-30 00:00 UTC"}}', 'terms have values', whole);
tell(JSON.stringify(whole.words) === '["plain","two words","http://x.y","12:30"]', 'the others are words, even with a colon', whole.words);
tell(JSON.stringify(whole.fields[0].any) === '["{\\"customer\\": {\\"id\\": \\"77\\"}}","{\\"customer\\": {\\"id\\": 77}}"]', 'a field is a text or a number', whole.fields);
tell(parse('payload.a:007').fields[0].any.length === 1 && parse('payload.a:true').fields[0].any.length === 2 && parse('payload.a:1e5').fields[0].any.length === 1, 'what is not written as in JSON is a text');
for (const [text, pattern] of [['stat:dead', /There is no term stat:\. Did you mean state:dead\? .*"stat:dead"/], ['state:ded', /Did you mean state:dead\?/], ['state:pending', /Pending jobs are waiting or scheduled/],
  ['key:', /Add a value after key:/], ['error:"abc', /is not closed/], ['since:yesterday', /is not a time/], ['since:2026-13-01', /is not a time/], ['kind:a kind:b', /only once/], ['payload.:1', /is not a path/], ['payload.a:', /Add a value/],
  ['cause:x', /not the fingerprint/], ['__proto__:1', /There is no term __proto__:/], ['constructor:1', /There is no term constructor:/], [`"${'x'.repeat(1000)}"`, /1,000 characters/], ['a\0b', /NUL/], [Array(11).fill('w').join(' '), /10 words/]]) {
  let message = 'none';
  try { parse(text); } catch (error) { message = error.statusCode === 400 && error.search ? error.message : `${error}`; }
  tell(pattern.test(message), `wrong: ${text.slice(0, 30).replace('\0', 'NUL')}`, message);
}
for (const value of ['plain', 'two words', 'a "quote"', 'back\\slash here', 'x"', '']) tell(split(`key:${quote(value)}`)[0].value === value, `a value is read as it is quoted: ${quote(value)}`, split(`key:${quote(value)}`));

// Searches.
const all = new Database();
const seeks = new Database({ user: 'seeks' });
const run = (database) => (...statement) => database.query(...statement);
/** All ids that a search finds, with as little time as possible for each of its parts; and the number of these parts. */
async function searched(database, text, want = 50) {
  const ids = [];
  let [parts, last] = [0, null];
  for (let cursor = null; parts === 0 || cursor !== null; parts += 1) {
    last = await find(run(database), parse(text), { cursor, want, budget: 0 });
    ids.push(...last.ids);
    cursor = last.next;
    if (last.found + last.ids.length !== ids.length) throw new Error(`${text}: ${last.found} found, ${ids.length} seen`);
    if (parts > 5000) throw new Error(`${text}: no end`);
  }
  return { ids, parts, last };
}
const wanted = async (condition) => (await all.query(`SELECT j.id FROM idemq.jobs j JOIN idemq.queues q USING (queue_id) WHERE ${condition}`)).map(({ id }) => id).sort().join();
for (const [text, condition] of [
  ['', 'true'], ['state:dead', "j.status = 'dead'"], ['state:waiting', "j.status = 'pending' AND j.ready_at <= idemq.now()"], ['state:scheduled', "j.status = 'pending' AND j.ready_at > idemq.now()"],
  ['state:running', "j.status = 'running'"], ['state:completed queue:many', "j.status = 'completed' AND q.name = 'many'"], ['queue:m*', "q.name LIKE 'm%'"], ['queue:other* state:dead', "q.name LIKE 'other%' AND j.status = 'dead'"],
  ['key:k1', "j.key LIKE 'k1%'"], ['key:k1 state:dead kind:odd', "j.key LIKE 'k1%' AND j.status = 'dead' AND j.kind = 'odd'"], ['payload.customer.id:77', "j.payload #>> '{customer,id}' = '77'"],
  ['payload.customer.name:"Jörg ""', 'NULL'], ['payload:jörg', "j.payload::text ILIKE '%jörg%'"], ['ADDRESS k12', "j.last_error ILIKE '%address%' AND j.key LIKE '%k12%'"], ['since:1h queue:many', "q.name = 'many'"], ['until:1h queue:many', 'false'],
  ['error:ADDRESS', "j.last_error ILIKE '%address%'"], ['"% _"', 'false']]) {
  if (condition === 'NULL') continue;
  const { ids, parts } = await searched(all, text, 500);
  tell(ids.slice().sort().join() === await wanted(condition) && new Set(ids).size === ids.length, `"${text}" finds each job once`, { found: ids.length, parts });
}
const { parts, last } = await searched(all, 'payload.customer.id:none');
tell(parts > 1 && last.looked === last.of && last.of > 5000, 'a search that finds nothing has searched all jobs, in parts', { parts, last });
const own = await searched(seeks, '', 2000);
tell(own.ids.length === 6000 && own.ids.slice().sort().join() === await wanted("q.name = 'many'"), 'a role finds only what it may see', own.ids.length);
const refused = await find(run(seeks), parse('queue:others')).then(() => 'found', (error) => error.message);
tell(/No queue that is visible to you is named "others"/.test(refused), 'and is not told of other queues', refused);
tell(/There is queue:many/.test(await find(run(seeks), parse('queue:man')).then(() => 'found', (error) => error.message)), 'a similar name of its own is suggested');

// Suggestions.
const texts = async (database, text) => (await suggest(run(database), text)).items.map((item) => item.text);
tell((await texts(all, 'st')).includes('state:') && (await texts(all, 'state:d')).join() === 'state:blocked ,state:scheduled ,state:completed ,state:dead ,state:cancelled ', 'terms and states are suggested', await texts(all, 'state:d'));
tell((await texts(all, 'queue:oth')).join() === 'queue:others ' && (await texts(seeks, 'queue:oth')).length === 0, 'and queues that the role may see');
tell((await texts(all, 'queue:many payload.cust')).includes('payload.customer.id:') && (await texts(all, 'payload.customer.name:')).includes('payload.customer.name:"Jörg ö" '), 'and fields of payloads, and their values', await texts(all, 'payload.customer.name:'));
tell((await suggest(run(all), 'queue:many kind:od')).from === 11 && (await texts(all, 'queue:many kind:od')).join() === 'kind:odd ', 'only the last part is replaced');

// An index on a field.
const before = await find(run(all), parse('payload.customer.id:77'));
tell(before.index === null, 'without an index, jobs are searched in slices');
await all.write(async (query) => query("CREATE INDEX jobs_customer ON idemq.jobs ((payload #>> '{customer,id}'), id)"));
await all.write(async (query) => query('ANALYZE idemq.jobs'));
const after = await find(run(all), parse('payload.customer.id:77'));
tell(after.index === 'jobs_customer' && after.next === null && after.ids.join() === before.ids.join() && before.ids.length === 6, 'an index on the field is used, and finds the same jobs', { before, after });
const pages = await searched(all, 'payload.customer.id:77', 2);
tell(pages.last.index === 'jobs_customer' && pages.ids.join() === before.ids.join() && pages.parts >= 3, 'also page by page', pages);
tell((await find(run(all), parse('payload.customer.id:77 queue:others'))).index === 'jobs_customer' && (await find(run(all), parse('payload.customer.id:null'))).index === null
  && (await find(run(all), parse('payload.customer.name:x'))).index === null, 'also in one queue; not for null, and not for other fields');
tell((await find(run(seeks), parse('payload.customer.id:77'))).index === null, 'not for a role with row-level security');
await all.write(async (query) => query('ALTER FUNCTION pg_catalog.jsonb_extract_path_text(jsonb, text[]) LEAKPROOF'));
const secure = await find(run(seeks), parse('payload.customer.id:77'));
tell(secure.index === 'jobs_customer' && secure.ids.length === 6, 'unless its function is leakproof', secure);
await all.write(async (query) => query('ALTER FUNCTION pg_catalog.jsonb_extract_path_text(jsonb, text[]) NOT LEAKPROOF; DROP INDEX idemq.jobs_customer'));
await all.close();
await seeks.close();
