// The routes of the search: its page, its suggestions, and its results as JSON.
import { PAGE, rowsOf } from '../jobs/walk.mjs';
import { jobByKey, kindsNamed, queuesNamed } from '../queries.mjs';
import { searchHelp, searchPage } from '../pages/search.mjs';
import { cursorOf, cursorText, find } from './find.mjs';
import { parse } from './parse.mjs';
import { suggest } from './suggest.mjs';

const text = (value) => (typeof value === 'string' ? value.trim() : '');

/** The reason why a search cannot be done, if the user can correct its text. */
export const troubleOf = (error) => {
  if (error.search) return error.message;
  return /^22/.test(error.code ?? '') ? `${error.message} (${error.code}). ${error.hint ?? ''}`.trim() : null;
};

/** Adds these routes to the page's server. */
export function searchRoutes(app, { database, contextOf, send }) {
  const query = (...statement) => database.query(...statement);

  /** The address of the only thing that a single plain word can mean: a job's number or key, or a queue's name. */
  const exact = async (search) => {
    if (search.words.length !== 1 || search.queue !== null || search.state !== null || search.fields.length > 0 || Object.keys(search.filter).length > 0) return null;
    const [word] = search.words;
    const [job] = /^[0-9]{1,18}$/.test(word) ? await query('SELECT j.id FROM idemq.jobs j WHERE j.id = $1', [word]) : [];
    const found = job ?? await database.one(jobByKey, [word]);
    if (found) return `/job/${found.id}`;
    const queues = await query(queuesNamed, [word]);
    return queues.length === 1 && queues[0].name === word ? `/queue/${encodeURIComponent(word)}` : null;
  };
  const named = async (search) => {
    const [word] = search.words;
    if (word === undefined || search.queue !== null) return { queues: [], kinds: [] };
    return { queues: (await query(queuesNamed, [word])).slice(0, 10), kinds: (await query(kindsNamed, [word])).slice(0, 5) };
  };

  app.get('/search', async (request, reply) => {
    const given = text(request.query.q);
    const context = { ...await contextOf(request, '/search'), search: given };
    if (given === '') return send(reply, 'Search', searchHelp(), context);
    try {
      const search = parse(given);
      const cursor = cursorOf(request.query.after);
      if (cursor === null && request.query.all === undefined) {
        const place = await exact(search);
        if (place) return reply.redirect(place, 303);
      }
      const result = await find(query, search, { cursor });
      const rows = await rowsOf(query, result.ids);
      return send(reply, 'Search', searchPage({ text: given, search, result, rows, others: cursor === null ? await named(search) : { queues: [], kinds: [] }, trouble: null, first: cursor === null }), context);
    } catch (error) {
      const trouble = troubleOf(error);
      if (trouble === null) throw error;
      return send(reply.code(400), 'Search', searchPage({ trouble }), context);
    }
  });

  app.get('/suggest', async (request, reply) => {
    const given = typeof request.query.q === 'string' ? request.query.q.slice(0, 1000) : '';
    // Suggestions are not worth an error message: without them, the user types on.
    const answer = await suggest(query, given).catch(() => ({ from: given.length, items: [] }));
    return reply.send(answer);
  });

  app.get('/api/1/jobs', async (request, reply) => {
    const result = await find(query, parse(text(request.query.q)), { cursor: cursorOf(request.query.after), want: PAGE });
    const rows = await rowsOf(query, result.ids);
    const jobs = rows.map(({ payload_bytes: _, later: __, encrypted: ___, original: ____, original_error: _____, payload: ______, ...job }) => job);
    return reply.header('Cache-Control', 'no-store').send({ jobs, searched: result.looked, of: result.of, next: cursorText(result.next) });
  });
}
