// The statements of a worker.  Ids and tokens are transferred as text, whatever parser the application has set for bigint.  No value
// depends on a setting other than DateStyle (connection.js): times are milliseconds as text, and intervals are passed back unchanged.

/** The columns of a claim, with the types that select pg's parsers. @type {[string, number][]} */
const COLUMNS = [
  ['id', 25], ['token', 25], ['attempt', 23], ['max_attempts', 23], ['payload', 3802], ['key', 25], ['group_key', 25], ['checkpoint', 3802],
  ['enqueued_at', 1184], ['headers', 3802], ['kind', 25],
];
const JOB = 'id::text, token::text, attempt, max_attempts, payload, key, group_key, checkpoint, enqueued_at, headers, kind';
const CLAIM_OPTIONS = 'lease => $6::interval, worker => $7::text, attach => $8::bool';
const PAIRS = 'SELECT id::text, token::text, outcome::text FROM';

export const WAIT = 'CALL idemq.wait($1::text, $2::interval)';
export const WAIT_ANY = 'CALL idemq.wait_any($1::text[], $2::interval)';
export const END_WAIT = "SELECT outcome::text FROM idemq.heartbeat_many('{}', '{}', NULL, end_waits => ARRAY[$1::int])";
// Each lease keeps its length.
export const HEARTBEAT = `${PAIRS} idemq.heartbeat_many($1::bigint[], $2::bigint[], NULL, end_waits => '{}')`;

// Of jobs that were claimed ahead: they wait, or the worker is about to begin them.
export const MARK_AHEAD = `${PAIRS} idemq.heartbeat_many($1::bigint[], $2::bigint[], NULL, ahead => true)`;
export const BEGIN_AHEAD = `${PAIRS} idemq.heartbeat_many($1::bigint[], $2::bigint[], NULL, ahead => false)`;

// Statements for messages (pipeline.js), with their names on a session that belongs to the worker.
export const CLAIM = {
  name: 'idemq_claim',
  text: `SELECT ${JOB} FROM idemq.claim($1::text, $2::int, lease => $3::interval, worker => $4::text, attach => $5::bool)`,
};
export const BEGIN = { name: 'idemq_begin', text: 'BEGIN' };
export const COMMIT_TRANSACTION = { name: 'idemq_end', text: 'COMMIT' };
export const ASSERT_CURRENT = { name: 'idemq_assert', text: 'SELECT idemq.assert_current($1::bigint, $2::bigint)' };
// Even behind a pooler, the server must not end a transaction while the handler is busy elsewhere.
export const NO_IDLE_TIMEOUT = { name: 'idemq_patient', text: "SELECT pg_catalog.set_config('idle_in_transaction_session_timeout', '0', true)" };
export const HOLD_CLAIMED = { name: 'idemq_hold', text: 'SELECT idemq.hold_claimed()' };
export const COMMIT_ONE = { name: 'idemq_commit', text: 'SELECT idemq.commit($1::bigint, $2::bigint, $3::jsonb)' };
export const COMMIT_ONE_AND_CLAIM = {
  name: 'idemq_commit_claim',
  text: `SELECT ${JOB} FROM idemq.commit_and_claim($1::bigint, $2::bigint, $3::jsonb, queue => $4::text, max_jobs => $5::int, ${CLAIM_OPTIONS})`,
};
export const COMMIT_MANY = { name: 'idemq_commit_many', text: `SELECT outcome::text, id::text, token::text FROM idemq.commit_many($1::bigint[], $2::bigint[], $3::jsonb[])` };
export const COMMIT_MANY_AND_CLAIM = {
  name: 'idemq_commit_many_claim',
  text: `SELECT outcome::text, ${JOB}
    FROM idemq.commit_many_and_claim($1::bigint[], $2::bigint[], $3::jsonb[], queue => $4::text, max_jobs => $5::int, ${CLAIM_OPTIONS})`,
};

export const FAIL = `SELECT idemq.fail($1::bigint, $2::bigint, $3::text, retry_in => $4::interval, permanent => $5::bool,
  details => $6::jsonb)::text AS outcome`;
export const RELEASE = 'SELECT idemq.release($1::bigint, $2::bigint, $3::interval)::text AS outcome';
// Ends the attempt of a job that asked for a hold. The first 100 such attempts in a row do not count.
export const GIVE_BACK = `SELECT (CASE WHEN (SELECT count(*) FROM (SELECT a.outcome FROM idemq.attempts a WHERE a.job_id = $1::bigint ORDER BY a.token DESC LIMIT 100) l
      WHERE l.outcome = 'released') < 100 THEN idemq.release($1::bigint, $2::bigint, $3::interval)
    ELSE idemq.fail($1::bigint, $2::bigint, $4::text, retry_in => $3::interval) END)::text AS outcome`;
// Ends an attempt that has lost its connection to the server. The first three such attempts in a row do not count.
export const GIVE_BACK_LOST = `SELECT (CASE WHEN (SELECT count(*) FROM (SELECT a.outcome FROM idemq.attempts a WHERE a.job_id = $1::bigint ORDER BY a.token DESC LIMIT 3) l
      WHERE l.outcome = 'released') < 3 THEN idemq.release($1::bigint, $2::bigint, '1 s')
    ELSE idemq.fail($1::bigint, $2::bigint, $3::text, details => $4::jsonb) END)::text AS outcome`;
// Holds back, then ends the attempt, in one transaction.
export const HOLD_BACK = `WITH held AS MATERIALIZED (SELECT idemq.hold_back($1::bigint, $2::bigint,
    least($3::interval, (SELECT nullif(q.max_hold_back, '0') FROM idemq.jobs j JOIN idemq.queues q USING (queue_id) WHERE j.id = $1::bigint)), scope => $5::text))
  ${GIVE_BACK} FROM held`;
export const RELEASE_MANY = `${PAIRS} idemq.release_many($1::bigint[], $2::bigint[])`;
export const CHECKPOINT = 'SELECT idemq.checkpoint($1::bigint, $2::bigint, $3::jsonb)';
export const BEGIN_STEP = 'CALL idemq.begin_step($1::bigint, $2::bigint, $3::text, $4::jsonb, $5::interval)';
export const FINISH_STEP = 'SELECT idemq.finish_step($1::bigint, $2::bigint, $3::text, $4::jsonb) AS response, idemq.validate($1::bigint, $2::bigint)::text AS standing';
export const REFUSE_STEP = 'SELECT idemq.refuse_step($1::bigint, $2::bigint, $3::text, $4::text)';

export const AWAIT_EVENT = 'SELECT outcome, payload FROM idemq.await_event($1::bigint, $2::bigint, $3::text, $4::interval)';
/** Whether an attempt was ended by a call with its token. If the lease was revoked, the error says so. */
const ENDED_BY_TOKEN = "(a.outcome IN ('failed', 'committed') OR (a.outcome = 'released' AND a.error IS NULL))";
// Of attempts that a heartbeat calls stale: those that have ended themselves.
export const ENDED_THEMSELVES = `SELECT s.token::text FROM unnest($1::bigint[], $2::bigint[]) AS s (id, token)
  WHERE EXISTS (SELECT FROM idemq.attempts AS a WHERE a.job_id = s.id AND a.token = s.token AND ${ENDED_BY_TOKEN})
    OR EXISTS (SELECT FROM idemq.jobs AS j WHERE j.id = s.id AND j.token = s.token AND j.status = 'completed')`;
// The state of the job after its lease was lost. last: whether no other attempt has begun; own: how the attempt has ended itself.
export const BECAME = `SELECT j.status::text, j.token::text = $2::text AS last, coalesce(a.error, j.last_error) AS error,
    CASE WHEN ${ENDED_BY_TOKEN} THEN a.outcome END AS own
  FROM idemq.job($1::bigint) AS j LEFT JOIN idemq.attempts AS a ON a.job_id = j.id AND a.token::text = $2::text`;
export const ADD_PARENTS = 'SELECT parent::text AS id, outcome::text FROM idemq.add_parents($1::bigint, $2::bigint[], $3::bigint, $4::bigint)';
export const PARENTS = 'SELECT parent::text AS id, queue, status::text, result FROM idemq.parents($1::bigint) AS p ORDER BY p.parent';

// Like heartbeats, its commit does not wait for the disk or a standby.
export const REPORT_WORKER = `SELECT pg_catalog.set_config('synchronous_commit', 'off', true), idemq.report_worker($1::uuid, $2::text, $3::text[], program => $4::text, version => $5::text, host => $6::text,
  concurrency => $7::int, running => $8::bigint[], done => $9::bigint, stopping => $10::bool, end_waits => $11::int[])`;

export const SETTINGS = `SELECT q.name, (1000 * extract(epoch FROM coalesce(w.lease, q.lease)))::text AS lease,
    (1000 * extract(epoch FROM q.job_timeout))::text AS timeout,
    CASE WHEN q.max_running IS NOT NULL THEN 'max_running' WHEN q.rate_limit IS NOT NULL THEN 'rate_limit' WHEN q.max_attempts = 1 THEN 'max_attempts 1'
      WHEN q.group_max_running > 1 THEN 'group_max_running' WHEN q.group_rate_limit IS NOT NULL THEN 'group_rate_limit'
      WHEN q.group_max_unfinished IS NOT NULL THEN 'group_max_unfinished' END AS not_ahead
  FROM ROWS FROM (pg_catalog.unnest($1::text[]), pg_catalog.unnest($2::interval[])) AS w (name, lease) JOIN idemq.queues AS q USING (name)`;

/**
 * A row of a claim, as pg would return it. If a value cannot be parsed (a parser that the application has set may throw), it is null,
 * and the row contains the error. This fails only the attempt of this row, and not the other attempts of the claim.
 * @param {import('./connection.js').Session} session @param {(string | null)[]} fields @param {number} from index of the first field
 */
export function jobFromRow(session, fields, from) {
  /** @type {Record<string, any>} */
  const row = {};
  for (let n = 0; n < COLUMNS.length; n++) {
    const [name, type] = COLUMNS[n];
    const field = fields[from + n];
    try {
      row[name] = field === null || type === 25 ? field : session.client.getTypeParser(type, 'text')(field);
    } catch (error) {
      row[name] = null;
      row.unreadable ??= new Error(`the job's ${name} could not be read`, { cause: error });
    }
  }
  return row;
}
