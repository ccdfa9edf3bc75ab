// Prepares each statement of the page, without running it, so that one that the server rejects is found without a browser.
// story.mjs, jobs.mjs and screens.mjs test the pages made from the results.  The PG* settings name the server.
import pg from 'pg';
import * as jobQueries from '../src/jobs/queries.mjs';
import * as queries from '../src/queries.mjs';
import * as searchQueries from '../src/search/queries.mjs';

const client = new pg.Client();
await client.connect();
for (const [name, made] of [...Object.entries(queries), ...Object.entries(jobQueries), ...Object.entries(searchQueries)]) {
  for (const text of typeof made === 'function' ? jobQueries.documents.map(made) : [made]) {
    if (typeof text !== 'string') continue;
    const trouble = await client.query(`PREPARE statement AS ${text}`).then(() => client.query('DEALLOCATE statement')).then(() => '', (error) => error.message);
    process.stdout.write(`${trouble ? 'not ok' : 'ok'} - ${name}${trouble && `: ${trouble}`}\n`);
  }
}
await client.end();
