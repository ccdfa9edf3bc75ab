// Detects silent connections: a proxy or a firewall drops the packets, and neither side learns that the connection is broken.
//
// Whoever waits for an answer on one would wait without limit. So the sessions that have been asked something are looked at from time
// to time: nothing has come for a while, and the server, which is asked on the control link, says that it has nothing to do for this session
// or does not know it.  Then the session is cut, and what was asked is asked again on another one, as after any other loss. A
// statement that takes long - it waits for a lock, or a standby - is left alone, whatever the time.
//
// Behind a pooler the server's process is not known. There a message of ours may take POOLED_ANSWER_TIMEOUT at most; a handler's own
// statement has the time of its job.

import { Link, withTimeout } from './connection.js';

/** Milliseconds. */
const ANSWER_TIMEOUT = 10_000;
const POOLED_ANSWER_TIMEOUT = 30_000;

// If the session is in a transaction, the server would keep the job's lock until it notices the loss.
const WORKING = `SELECT pid, state IS NULL OR state NOT IN ('idle', 'idle in transaction', 'idle in transaction (aborted)') AS working
  FROM pg_catalog.pg_stat_activity WHERE pid = ANY ($1::int[])`;
const END = `SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity
  WHERE pid = $1::int AND extract(epoch FROM backend_start)::text = $2::text AND state LIKE 'idle in transaction%'`;

/** @typedef {import('./connection.js').Session} Session */

/**
 * Checks the sessions of a worker's jobs until the worker ends.
 * @param {import('./connection.js').Server} server @param {Link} control a link with its own time limits
 * @param {() => number} lease milliseconds @param {(ms: number) => Promise<void>} sleep waits until the next check, or the end
 * @param {AbortSignal} until
 */
export async function watchSilence(server, control, lease, sleep, until) {
  while (!until.aborted) {
    const limit = Math.min(Math.max(lease() / 3, 1000), ANSWER_TIMEOUT);
    await sleep(limit / 2);
    const silent = [...server.sessions].filter((session) => session !== control.session && session.silentFor >= limit);
    if (silent.length === 0 || until.aborted) continue;
    const working = await workingOf(control, silent.filter(({ direct }) => direct));
    if (until.aborted) return;
    for (const session of silent) {
      if (session.gone) continue;
      if (!session.direct) {
        if (!session.busy && session.silentFor >= Math.max(lease(), POOLED_ANSWER_TIMEOUT)) session.cut();
      } else if (working.has(session.process)) {
        session.heard();
      } else if (session.silentFor > 0 && session.suspected++ > 0) {
        // Only the second time in a row counts, because an answer may have been under way the first time.
        session.cut();
        void endBackend(control, session);
      }
    }
  }
}

/**
 * Ends the server process of a direct session that the worker has given up, if it is still in a transaction. The server may not know that
 * the connection is broken, and the transaction locks its job.
 * @param {Link} link another connection @param {Session} session
 */
export async function endBackend(link, session) {
  try {
    await link.withSession((own) => withTimeout(ANSWER_TIMEOUT, own, own.query(END, [session.process, session.backendStart])));
  } catch {
    // Then the process ends when the server notices the loss.
  }
}

/** The processes that are busy, or none if the server does not answer. @param {Link} control @param {Session[]} sessions @returns {Promise<Set<number>>} */
async function workingOf(control, sessions) {
  if (sessions.length === 0) return new Set();
  try {
    const { rows } = await control.withSession((own) => withTimeout(ANSWER_TIMEOUT, own, own.query(WORKING, [sessions.map((session) => session.process)])));
    return new Set(rows.filter(({ working }) => working).map(({ pid }) => pid));
  } catch {
    return new Set();
  }
}
