package idemq

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
)

// ScheduleOptions are the options of Schedule.  A zero value means that an option is not given.
type ScheduleOptions struct {
	// TimeZone of the cron expression; UTC if not given.
	TimeZone    string
	Priority    *int
	GroupKey    string
	MaxAttempts int
	Headers     map[string]any
	ExpiresIn   time.Duration
	Kind        string
}

const scheduleSQL = `SELECT coalesce(pg_catalog.to_json(next)::text, 'null') FROM idemq.schedule($1::text, $2::text, $3::text, $4::text::jsonb, time_zone => $5::text, priority => $6::int,
    group_key => $7::text, max_attempts => $8::int, headers => $9::text::jsonb, expires_in => $10::text::interval, kind => $11::text) AS next`

// Schedule creates or replaces a schedule, which enqueues a job at each tick of a cron expression or an interval ("every 5 min").  It
// returns the time of the next job, or the zero time if the schedule is paused.
func Schedule(ctx context.Context, db DB, name, cron, queue string, payload any, o *ScheduleOptions) (time.Time, error) {
	if o == nil {
		o = new(ScheduleOptions)
	}
	text, err := encode(payload, "the payload")
	if err != nil {
		return time.Time{}, err
	}
	headers, err := headers(o.Headers)
	if err != nil {
		return time.Time{}, err
	}
	return queryJSON[time.Time](ctx, db, scheduleSQL, name, cron, queue, text, cmp.Or(o.TimeZone, "UTC"), (&EnqueueOptions{Priority: o.Priority}).priority(),
		given(o.GroupKey), given(o.MaxAttempts), headers, givenInterval(o.ExpiresIn), given(o.Kind))
}

// Unschedule drops a schedule.  It returns false if there is none of this name.
func Unschedule(ctx context.Context, db DB, name string) (bool, error) {
	return query[bool](ctx, db, `SELECT idemq.unschedule($1::text)`, name)
}

// Retry makes a job ready now.
func Retry(ctx context.Context, db DB, id int64) (Outcome, error) {
	return query[Outcome](ctx, db, `SELECT idemq.retry($1::bigint)::text`, id)
}

// Cancel cancels an unfinished job.
func Cancel(ctx context.Context, db DB, id int64) (Outcome, error) {
	return query[Outcome](ctx, db, `SELECT idemq.cancel($1::bigint)::text`, id)
}

// Matching selects jobs.  At least one of Kind, GroupKey and KeyPrefix must be given, and a job must match all that are given.
type Matching struct {
	Kind, GroupKey, KeyPrefix string
	// MaxJobs limits the number of jobs per call.
	MaxJobs int
}

// CancelMatching cancels the unfinished jobs of a queue that match.  It returns how many it has cancelled, and how many it has left because
// another transaction had locked them.
func CancelMatching(ctx context.Context, db DB, queue string, which Matching) (cancelled, locked int64, err error) {
	err = db.QueryRow(ctx, `SELECT cancelled, locked FROM idemq.cancel_matching($1::text, kind => $2::text, group_key => $3::text, key_prefix => $4::text, max_jobs => $5::int)`,
		queue, given(which.Kind), given(which.GroupKey), given(which.KeyPrefix), given(which.MaxJobs)).Scan(&cancelled, &locked)
	return cancelled, locked, typed(err)
}

// RescheduleOptions says what Reschedule changes.  A zero value leaves things as they are.
type RescheduleOptions struct {
	RunAt    time.Time
	Priority *int
}

// Reschedule changes the time or the priority of a waiting job.
func Reschedule(ctx context.Context, db DB, id int64, o RescheduleOptions) (Outcome, error) {
	return query[Outcome](ctx, db, `SELECT idemq.reschedule($1::bigint, run_at => $2::text::timestamptz, priority => $3::int)::text`, id, givenTime(o.RunAt), o.Priority)
}

// JobState is a job as it is stored.
type JobState struct {
	ID          int64                      `json:"id"`
	Queue       string                     `json:"queue"`
	Status      Status                     `json:"status"`
	Payload     json.RawMessage            `json:"payload"`
	Key         string                     `json:"key"`
	GroupKey    string                     `json:"group_key"`
	Kind        string                     `json:"kind"`
	Priority    int                        `json:"priority"`
	Attempt     int                        `json:"attempt"`
	MaxAttempts int                        `json:"max_attempts"`
	Checkpoint  json.RawMessage            `json:"checkpoint"`
	Result      json.RawMessage            `json:"result"`
	Error       string                     `json:"last_error"`
	Worker      string                     `json:"worker"`
	Headers     map[string]json.RawMessage `json:"headers"`
	EnqueuedAt  time.Time                  `json:"enqueued_at"`
	// These times are zero if the event has not happened.
	ReadyAt    time.Time `json:"ready_at"`
	ClaimedAt  time.Time `json:"claimed_at"`
	FinishedAt time.Time `json:"finished_at"`
}

const lookupSQL = `SELECT pg_catalog.row_to_json(f)::text FROM (SELECT j.id, q.name AS queue, j.status, j.payload, j.key, j.group_key, j.kind, j.priority, j.attempt, j.max_attempts,
    j.checkpoint, j.result, j.last_error, j.worker, j.headers, j.enqueued_at, j.ready_at, j.claimed_at, j.finished_at
  FROM idemq.jobs AS j JOIN idemq.queues AS q USING (queue_id) WHERE j.id = $1::bigint) AS f`

// Lookup returns a job as it is stored now.  The error is ErrNoSuchJob if there is no such job, or if you may not see it.
func Lookup(ctx context.Context, db DB, id int64) (*JobState, error) {
	return one[JobState](ctx, db, lookupSQL, id)
}

// one is queryJSON for what belongs to a job.
func one[T any](ctx context.Context, db DB, sql string, args ...any) (*T, error) {
	found, err := queryJSON[T](ctx, db, sql, args...)
	if noRows(err) {
		err = &Error{SQLState: "IQ002", Message: "no such job", cause: err}
	}
	if err != nil {
		return nil, err
	}
	return &found, nil
}

func noRows(err error) bool { return errors.Is(err, pgx.ErrNoRows) || errors.Is(err, sql.ErrNoRows) }

// Why explains in one sentence what a job is waiting for.
func Why(ctx context.Context, db DB, id int64) (string, error) {
	return query[string](ctx, db, `SELECT idemq.why($1::bigint)`, id)
}

// PauseOptions are the options of Pause.  A zero value means that an option is not given.
type PauseOptions struct {
	// Until ends the pause.
	Until time.Time
	// GroupKey pauses only this group.
	GroupKey string
}

// Pause pauses a queue, or one group of it.
func Pause(ctx context.Context, db DB, queue string, o *PauseOptions) error {
	if o == nil {
		o = new(PauseOptions)
	}
	var err error
	if o.GroupKey == "" {
		_, err = query[bool](ctx, db, `SELECT idemq.pause($1::text, until => $2::text::timestamptz) IS NULL`, queue, givenTime(o.Until))
	} else {
		_, err = query[bool](ctx, db, `SELECT idemq.pause($1::text, until => $2::text::timestamptz, group_key => $3::text) IS NULL`, queue, givenTime(o.Until), o.GroupKey)
	}
	return err
}

// Resume ends the pause of a queue or, if groupKey is not empty, of one group.
func Resume(ctx context.Context, db DB, queue, groupKey string) error {
	var err error
	if groupKey == "" {
		_, err = query[bool](ctx, db, `SELECT idemq.resume($1::text) IS NULL`, queue)
	} else {
		_, err = query[bool](ctx, db, `SELECT idemq.resume($1::text, group_key => $2::text) IS NULL`, queue, groupKey)
	}
	return err
}

// QueueSettings are the settings that EnsureQueue declares.  A nil pointer means that a setting is not named, so it stays as it is.  A
// duration of 0 means no limit where idemq's setting does.
type QueueSettings struct {
	// Exact resets the settings that are not named.
	Exact                                                                                                     bool
	Lease, RetryBase, RetryMax, Retention, IdempotencyWindow, RatePeriod, DeadRetention, MaxLease, JobTimeout *time.Duration
	GroupRatePeriod, MaxHoldBack                                                                              *time.Duration
	MaxAttempts, MaxRunning, RateLimit, GroupMaxRunning, GroupRateLimit, RateBurst, GroupRateBurst            *int
	MaxUnfinished, GroupMaxUnfinished                                                                         *int
	RetryFactor, RetryJitter                                                                                  *float64
	DeadLetterQueue                                                                                           *string
	DeadLetterCancelled, ExpectWorkers, NotifyFinished                                                        *bool
}

// Ensured is the result of EnsureQueue.
type Ensured struct {
	// Outcome is created, changed or unchanged.
	Outcome string `json:"outcome"`
	// Changes are the settings that were changed.
	Changes map[string]struct {
		From any `json:"from"`
		To   any `json:"to"`
	} `json:"changes"`
}

const ensureQueueSQL = `SELECT pg_catalog.json_build_object('outcome', outcome, 'changes', changes)::text
  FROM idemq.ensure_queue($1::text, exact => $2::boolean,
    lease => $3::text::interval, max_attempts => $4::int, retry_base => $5::text::interval, retry_factor => $6::float8,
    retry_max => $7::text::interval, retry_jitter => $8::float8, retention => $9::text::interval, idempotency_window => $10::text::interval,
    max_running => $11::int, rate_limit => $12::int, rate_period => $13::text::interval, dead_letter_queue => $14::text,
    dead_retention => $15::text::interval, max_lease => $16::text::interval, job_timeout => $17::text::interval,
    dead_letter_cancelled => $18::boolean, group_max_running => $19::int, group_rate_limit => $20::int,
    group_rate_period => $21::text::interval, expect_workers => $22::boolean, rate_burst => $23::int,
    group_rate_burst => $24::int, max_hold_back => $25::text::interval, max_unfinished => $26::int,
    group_max_unfinished => $27::int, notify_finished => $28::boolean)`

// EnsureQueue creates a queue unless it exists, and changes the settings that are named.
func EnsureQueue(ctx context.Context, db DB, queue string, s *QueueSettings) (Ensured, error) {
	if s == nil {
		s = new(QueueSettings)
	}
	span := func(d *time.Duration) any {
		if d == nil {
			return nil
		}
		return interval(*d)
	}
	return queryJSON[Ensured](ctx, db, ensureQueueSQL, queue, s.Exact, span(s.Lease), s.MaxAttempts, span(s.RetryBase), s.RetryFactor, span(s.RetryMax), s.RetryJitter,
		span(s.Retention), span(s.IdempotencyWindow), s.MaxRunning, s.RateLimit, span(s.RatePeriod), s.DeadLetterQueue, span(s.DeadRetention), span(s.MaxLease),
		span(s.JobTimeout), s.DeadLetterCancelled, s.GroupMaxRunning, s.GroupRateLimit, span(s.GroupRatePeriod), s.ExpectWorkers, s.RateBurst,
		s.GroupRateBurst, span(s.MaxHoldBack), s.MaxUnfinished, s.GroupMaxUnfinished, s.NotifyFinished)
}

// Result is the status of a job, and its result if it has one.
type Result[R any] struct {
	Status Status
	Result *R
}

const resultsSQL = `SELECT coalesce(pg_catalog.json_agg(pg_catalog.json_build_object('status', r.status, 'result', r.result) ORDER BY i.n), '[]')::text
  FROM pg_catalog.unnest($1::text::bigint[]) WITH ORDINALITY AS i (id, n), LATERAL idemq.result(i.id) AS r`

// ignored is a column that is not read, whatever its type.
type ignored struct{}

// Scan does nothing.
func (*ignored) Scan(any) error { return nil }

// WaitResults waits until all these jobs are finished, or until timeout has passed, and returns them in the order of the ids.  db must not be
// in a transaction.
func WaitResults[R any](ctx context.Context, db DB, ids []int64, timeout time.Duration) ([]Result[R], error) {
	var statuses, results ignored
	if err := db.QueryRow(ctx, `CALL idemq.wait_results($1::text::bigint[], $2::text::interval)`, numbers(ids), interval(timeout)).Scan(&statuses, &results); err != nil {
		return nil, typed(err)
	}
	rows, err := queryJSON[[]enqueuedRow[R]](ctx, db, resultsSQL, numbers(ids))
	found := make([]Result[R], len(rows))
	for n, row := range rows {
		found[n] = Result[R]{row.Status, row.Result}
	}
	return found, err
}

const makeDueSQL = `SELECT count(*) FILTER (WHERE outcome = 'retrying')::int
  FROM (SELECT idemq.retry(j.id)::text AS outcome FROM idemq.jobs AS j JOIN idemq.queues AS q USING (queue_id)
    WHERE q.name = coalesce($1::text, q.name) AND j.status IN ('pending', 'retrying') AND j.flags & 64 = 0
      AND coalesce(j.ready_at, j.run_at) > idemq.clock_timestamp()
      AND NOT EXISTS (SELECT FROM idemq.steps AS s WHERE s.job_id = j.id AND s.token = j.token AND s.state = 'waiting')
    ORDER BY j.id) AS made`

// MakeDue makes the jobs of a queue, or of all queues if the name is empty, ready now if they wait for a time.  It returns their number.
// It is for the tests of an application.
func MakeDue(ctx context.Context, db DB, queue string) (int, error) {
	return query[int](ctx, db, makeDueSQL, given(queue))
}

// AdvanceClock moves idemq's clock forward on a test server.
func AdvanceClock(ctx context.Context, db DB, by time.Duration) error {
	var none any
	if err := db.QueryRow(ctx, `CALL idemq.advance_clock($1::text::interval)`, interval(by)).Scan(&none); err != nil && !noRows(err) {
		return typed(err)
	}
	return nil
}
