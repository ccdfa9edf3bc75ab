// Each statement of the page is one that the server understands: it is prepared, and not run.  What the pages make of
// the answers is in story.mjs, jobs.mjs and screens.mjs.  The server is that of the PG* settings.
import pg from 'pg';
import * as jobQueries from '../src/jobs/queries.mjs';
import * as queries from '../src/queries.mjs';

const client = new pg.Client();
await client.connect();
for (const [name, made] of [...Object.entries(queries), ...Object.entries(jobQueries)]) {
  for (const text of typeof made === 'function' ? jobQueries.documents.map(made) : [made]) {
    if (typeof text !== 'string') continue;
    const trouble = await client.query(`PREPARE statement AS ${text}`).then(() => client.query('DEALLOCATE statement')).then(() => '', (error) => error.message);
    process.stdout.write(`${trouble ? 'not ok' : 'ok'} - ${name}${trouble && `: ${trouble}`}\n`);
  }
}
await client.end();
