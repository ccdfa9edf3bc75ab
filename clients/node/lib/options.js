// Checks of options.  An unknown option would otherwise be ignored silently, and a job would run without waiting for its parent, for example.

/** @template T @typedef {Record<keyof T, boolean>} Names: tsc checks that the names are complete */

/** @type {Names<import('../index.js').MessageOptions>} */
export const MESSAGE = { delay: true, runAt: true, priority: true, groupKey: true, maxAttempts: true, headers: true, expiresIn: true, kind: true };

/** @type {Names<import('../index.js').EnqueueOptions>} */
export const ENQUEUE = {
  ...MESSAGE, key: true, keyTtl: true, onDuplicate: true, nowait: true, maxWait: true, dependsOn: true, onParentFailure: true,
  schema: true, codec: true,
};

const { codec: _____, ...withoutCodec } = ENQUEUE;
/** @type {Names<import('../index.js').EnqueueStatementOptions>} */
export const ENQUEUE_STATEMENT = { ...withoutCodec, style: true };

/** @type {Names<import('../index.js').NewJob>} */
export const NEW_JOB = { ...MESSAGE, payload: true, key: true, keyTtl: true };
/** @type {Names<import('../index.js').EnqueueManyOptions>} */
export const ENQUEUE_MANY = { onDuplicate: true, nowait: true, maxWait: true, dependsOn: true, onParentFailure: true, schema: true, codec: true };

/** @type {Names<import('../index.js').ScheduleOptions>} */
export const SCHEDULE = { timeZone: true, priority: true, groupKey: true, maxAttempts: true, headers: true, expiresIn: true, kind: true, codec: true };
/** @type {Names<import('../index.js').RescheduleOptions>} */
export const RESCHEDULE = { runAt: true, priority: true };
/** @type {Names<import('../index.js').ExpectedJob>} */
export const EXPECTED_JOB = { payload: true, key: true, kind: true, times: true, codec: true };

const { nowait: _, schema: __, codec: ___, ...member } = ENQUEUE;
/** @type {Names<import('../index.js').GraphJob>} */
export const GRAPH_JOB = { ...member, queue: true, payload: true };

/** Options of the functions that only read. @type {Names<import('../index.js').CodecOptions>} */
export const CODEC = { codec: true };

/** @type {Names<import('../index.js').Matching>} */
export const MATCHING = { kind: true, groupKey: true, keyPrefix: true, maxJobs: true };

/** @type {Names<import('../index.js').PauseOptions>} */
export const PAUSE = { until: true };

/** @type {Names<import('../index.js').QueueSettings & { exact?: boolean | null }>} */
export const QUEUE_SETTINGS = {
  exact: true, lease: true, maxAttempts: true, retryBase: true, retryFactor: true, retryMax: true, retryJitter: true,
  retention: true, idempotencyWindow: true, maxRunning: true, rateLimit: true, ratePeriod: true, deadLetterQueue: true,
  deadRetention: true, maxLease: true, jobTimeout: true, deadLetterCancelled: true, groupMaxRunning: true, groupRateLimit: true,
  groupRatePeriod: true, expectWorkers: true, rateBurst: true, groupRateBurst: true, maxHoldBack: true, maxUnfinished: true,
  groupMaxUnfinished: true, notifyFinished: true,
};

/** @type {Names<import('../index.js').HandlerOptions>} */
export const HANDLER = { workers: true, batch: true, maxIdle: true };

/** @type {Names<import('../index.js').FinishedJobsOptions>} */
export const FINISHED_JOBS = { signal: true, logger: true };

/** @type {Names<import('../index.js').StepOptions>} */
export const STEP = { request: true, callTimeout: true, ask: true };

/** @type {Names<import('../index.js').OutsideOptions>} */
export const OUTSIDE = { concurrency: true, lease: true, timeout: true, attach: true, unknownKind: true, neverRetry: true, schema: true, captureLogs: true, codec: true, ahead: true, aheadWait: true };
/** @type {Names<import('../index.js').InsideOptions>} */
export const INSIDE = { ...OUTSIDE, batch: true };
/** @type {Names<import('../index.js').KindOptions>} */
export const KIND = { timeout: true, backoff: true };
/** @type {Names<Omit<import('../index.js').QueuesWorkerOptions, 'waitConnection' | 'giveUpAfter'>>} */
const shared = { name: true, grace: true, signals: true, logger: true, hooks: true, captureLogs: true, redact: true };
/** @type {Names<import('../index.js').QueuesWorkerOptions>} */
export const QUEUES_WORKER = { ...shared, waitConnection: true, giveUpAfter: true };
/** @type {Names<import('../index.js').WorkerOptions>} */
export const WORKER = { ...QUEUES_WORKER, ...INSIDE };

/** @type {Names<import('../index.js').Hooks>} */
export const HOOKS = { around: true, failed: true, started: true, stopped: true };

const { ahead: ____, aheadWait: ______, ...ofShard } = INSIDE;
/** @type {Names<import('../index.js').ClusterWorkerOptions>} */
export const CLUSTER_WORKER = { ...shared, ...ofShard, home: true, roam: true, shardPlace: true };

/**
 * Throws for unknown options, and suggests the likely name.
 * @param {unknown} options @param {Record<string, boolean>} names @param {string} of
 */
export function checkOptions(options, names, of) {
  if (options === null || typeof options !== 'object') throw new TypeError(`options of ${of} must be an object, not ${String(options)}`);
  const wrong = Object.keys(options).find((name) => !Object.hasOwn(names, name));
  if (wrong === undefined) return;
  const [near] = Object.keys(names).sort((a, b) => distance(wrong, a) - distance(wrong, b));
  const meant = distance(wrong, near) <= near.length / 3 ? `did you mean ${near}?` : `its options are ${Object.keys(names).sort().join(', ')}`;
  throw new TypeError(`${of} has no option ${wrong}: ${meant}`);
}

/** The edit distance between two names, ignoring their style: depends_on, dependsOn. @param {string} one @param {string} other */
function distance(one, other) {
  const [a, b] = [one, other].map((name) => name.toLowerCase().replace(/[^a-z0-9]/g, ''));
  let row = Array.from({ length: b.length + 1 }, (_, n) => n);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++) next.push(Math.min(row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] === b[j - 1] ? 0 : 1)));
    row = next;
  }
  return row[b.length];
}
