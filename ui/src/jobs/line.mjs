// The life of a job on one line: waits, attempts and backoff, from its row and its attempts.

/** A timestamptz as PostgreSQL writes it in UTC, in seconds, with microseconds; null for none and for what is no time, such as infinity. */
export function secondsOf(text) {
  const found = /^(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d)(\.\d+)?\+00$/.exec(text ?? '');
  return found ? Date.parse(`${found[1]}T${found[2]}Z`) / 1000 + Number(found[3] ?? 0) : null;
}

/** What follows an attempt until the next one. */
const after = { failed: 'backoff' };

/**
 * Returns {from, until, pieces, end, next}: pieces in the order of time, {what, from, to, attempt, outcome, worker}, of which each begins
 * where the one before it ends.  what: scheduled, wait, blocked, backoff or attempt.  end: {status, at} of a finished job, or null.
 * next: when the job can be claimed, if that is later than now, or null.  Null if nothing is known.  now: in seconds; whole: whether these are all attempts.
 */
export function lineOf(job, attempts, now, whole = true) {
  const finished = secondsOf(job.finished_at);
  const runs = attempts.map((a) => ({ from: secondsOf(a.claimed_at), to: secondsOf(a.ended_at), attempt: a.attempt, outcome: a.outcome, worker: a.worker })).filter(({ from, to }) => from !== null && to !== null);
  const own = secondsOf(job.claimed_at);
  if (job.status === 'running' && own !== null) runs.push({ from: own, to: now, attempt: job.attempt, outcome: 'running', worker: job.worker });
  if (job.status === 'completed' && own !== null && finished !== null && !attempts.some((a) => a.outcome === 'committed' && a.token === job.token))
    runs.push({ from: own, to: finished, attempt: job.attempt, outcome: 'committed', worker: job.worker });
  runs.sort((a, b) => a.from - b.from);
  const from = whole ? secondsOf(job.enqueued_at) : runs[0]?.from ?? null;
  if (from === null) return null;
  const until = finished ?? Math.max(now, from);
  const pieces = [];
  let at = from;
  const add = (what, to, more = {}) => {
    if (to > at || what === 'attempt') pieces.push({ what, from: at, to: Math.max(to, at), ...more });
    at = Math.max(to, at);
  };
  const runAt = secondsOf(job.run_at);
  /** The time without a worker up to `to`, after an attempt or at the beginning. */
  const gap = (to, last) => {
    if (last === null && whole && runAt !== null) add('scheduled', Math.min(runAt, to));
    add(last === null ? (job.status === 'blocked' ? 'blocked' : 'wait') : after[last.outcome] ?? 'wait', to);
  };
  let last = null;
  for (const run of runs) {
    gap(run.from, last);
    add('attempt', run.to, { attempt: run.attempt, outcome: run.outcome, worker: run.worker });
    last = run;
  }
  gap(until, last);
  const ready = secondsOf(job.ready_at);
  return { from, until, pieces, end: finished === null ? null : { status: job.status, at: finished }, next: finished === null && job.status !== 'running' && ready !== null && ready > now ? ready : null };
}
