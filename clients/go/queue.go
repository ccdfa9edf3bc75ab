package idemq

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// DB runs a statement.  A pgx.Tx, a *pgx.Conn and a *pgxpool.Pool are DBs.  A statement runs in the transaction of its DB, if it has one.
type DB interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

type sqlQueryer interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// SQL returns a DB for a *sql.Tx, *sql.Conn or *sql.DB, with whichever PostgreSQL driver.
func SQL(db sqlQueryer) DB { return sqlDB{db} }

type sqlDB struct{ db sqlQueryer }

func (s sqlDB) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	return s.db.QueryRowContext(ctx, query, args...)
}

// Queue names a queue, and the types of its payloads (P) and results (R).  Kind is the kind of the jobs that Enqueue adds.  To a handler,
// it says which jobs to run (see [Handle]).
type Queue[P, R any] struct{ Name, Kind string }

// Outcome is what a call has done, in the server's words.
type Outcome string

// Outcomes of calls.
const (
	OutcomeAccepted  Outcome = "accepted"
	OutcomeDuplicate Outcome = "duplicate"
	OutcomeRerun     Outcome = "rerun"
	OutcomeLocked    Outcome = "locked"
	OutcomeCancelled Outcome = "cancelled"
	OutcomeRetrying  Outcome = "retrying"
	OutcomeCommitted Outcome = "committed"
	OutcomeReleased  Outcome = "released"
	OutcomeWaiting   Outcome = "waiting"
	OutcomeDead      Outcome = "dead"
	OutcomeStale     Outcome = "stale"
	OutcomeNotFound  Outcome = "not_found"
	// OutcomeLost is counted by a worker that could not learn or report the outcome of an attempt.
	OutcomeLost Outcome = "lost"
)

// Status is the status of a job.
type Status string

// Statuses of jobs.
const (
	StatusBlocked   Status = "blocked"
	StatusPending   Status = "pending"
	StatusRunning   Status = "running"
	StatusRetrying  Status = "retrying"
	StatusCompleted Status = "completed"
	StatusDead      Status = "dead"
	StatusCancelled Status = "cancelled"
)

// OnDuplicate says what to do if a job with the same key exists.
type OnDuplicate string

// Values of OnDuplicate.  The zero value means OnDuplicateKeep.
const (
	// OnDuplicateKeep returns the first job, or ErrKeyReused if its payload or kind differs.
	OnDuplicateKeep OnDuplicate = "keep"
	// OnDuplicateIgnore returns the first job, whatever its payload.
	OnDuplicateIgnore OnDuplicate = "ignore"
	// OnDuplicateReplace gives a waiting job the new payload and time.
	OnDuplicateReplace OnDuplicate = "replace"
	// OnDuplicateRerun is like OnDuplicateReplace, and a running or finished job runs once more.
	OnDuplicateRerun OnDuplicate = "rerun"
	// OnDuplicateError returns ErrDuplicateKey.
	OnDuplicateError OnDuplicate = "error"
)

// ParentFailure says what happens to a job if a job on which it depends does not complete.
type ParentFailure string

// Values of ParentFailure.  The zero value means ParentFailureCancel.
const (
	ParentFailureCancel ParentFailure = "cancel"
	ParentFailureWait   ParentFailure = "wait"
	ParentFailureRun    ParentFailure = "run"
)

// EnqueueOptions are the options of a job.  A zero value means that an option is not given.
type EnqueueOptions struct {
	// Key identifies the request: a repeated call with the same key returns the first job.
	Key string
	// GroupKey puts the job in a group, whose jobs run in order.
	GroupKey string
	// Delay is the time after which the job is ready.
	Delay time.Duration
	// KeyTTL is the time for which the key is kept.
	KeyTTL time.Duration
	// ExpiresIn is the time after which the job is cancelled if it has not begun.
	ExpiresIn time.Duration
	// MaxWait limits how long OnDuplicateReplace can delay a job.
	MaxWait time.Duration
	// RunAt is the time at which the job is ready.
	RunAt time.Time
	// Priority is a pointer, because 0 is a priority.
	Priority *int
	// MaxAttempts overrides the queue's setting.
	MaxAttempts int
	// Headers are passed to the handler.
	Headers map[string]any
	// OnDuplicate says what to do if a job with the same key exists.
	OnDuplicate OnDuplicate
	// DependsOn are the ids of jobs that must complete first.
	DependsOn []int64
	// OnParentFailure says what happens if one of them does not complete.
	OnParentFailure ParentFailure
	// NoWait returns OutcomeLocked instead of waiting for another transaction that is using the same key.
	NoWait bool
	// Kind overrides the kind of the queue value.
	Kind string
}

// Enqueued is the result of Enqueue.  For a duplicate, all members are those of the first job.
type Enqueued[R any] struct {
	// ID is 0 if the outcome is OutcomeLocked.
	ID      int64
	Outcome Outcome
	Status  Status
	// Result is nil if the job has no result yet.
	Result *R
}

// Item is a job for EnqueueMany.  OnDuplicate, DependsOn, OnParentFailure, NoWait and MaxWait apply to all jobs of a call, so all items
// must have the same.
type Item[P any] struct {
	Payload P
	Options *EnqueueOptions
}

// enqueuedRow is the form in which the server returns Enqueued and Result.
type enqueuedRow[R any] struct {
	ID      int64   `json:"id"`
	Outcome Outcome `json:"outcome"`
	Status  Status  `json:"status"`
	Result  *R      `json:"result"`
}

const enqueueSQL = `SELECT id, outcome::text, status::text, result::text
  FROM idemq.enqueue($1::text, $2::text::jsonb, key => $3::text, delay => $4::text::interval, run_at => $5::text::timestamptz,
    priority => $6::int, group_key => $7::text, max_attempts => $8::int, headers => $9::text::jsonb, expires_in => $10::text::interval,
    key_ttl => $11::text::interval, on_duplicate => $12::text, nowait => $13::boolean, kind => $14::text, max_wait => $15::text::interval,
    depends_on => $16::text::bigint[], on_parent_failure => $17::text)`

const enqueueManySQL = `SELECT coalesce(pg_catalog.json_agg(pg_catalog.json_build_object('id', e.id, 'outcome', e.outcome, 'status', e.status, 'result', e.result) ORDER BY e.ord), '[]')::text
  FROM idemq.enqueue_many($1::text, $2::text::jsonb[], keys => $3::text::text[], run_ats => $4::text::timestamptz[], priorities => $5::text::int[],
    group_keys => $6::text::text[], delays => $7::text::interval[], max_attempts => $8::text::int[], headers => $9::text::jsonb[],
    expires_ins => $10::text::interval[], key_ttls => $11::text::interval[], on_duplicate => $12::text, nowait => $13::boolean,
    kinds => $14::text::text[], max_wait => $15::text::interval, depends_on => $16::text::bigint[], on_parent_failure => $17::text) AS e`

const defaultPriority = 4

func (o *EnqueueOptions) priority() int {
	if o.Priority == nil {
		return defaultPriority
	}
	return *o.Priority
}

func (o *EnqueueOptions) dependsOn() any {
	if o.DependsOn == nil {
		return nil
	}
	return numbers(o.DependsOn)
}

// headers returns the headers as JSON, or nil.
func headers(h map[string]any) (any, error) {
	if h == nil {
		return nil, nil
	}
	return encode(h, "Headers")
}

// Enqueue adds a job, in the transaction of db if it has one.
func (q Queue[P, R]) Enqueue(ctx context.Context, db DB, payload P, o *EnqueueOptions) (Enqueued[R], error) {
	if o == nil {
		o = new(EnqueueOptions)
	}
	text, err := encode(payload, "the payload")
	if err != nil {
		return Enqueued[R]{}, err
	}
	headers, err := headers(o.Headers)
	if err != nil {
		return Enqueued[R]{}, err
	}
	return enqueueOne[R](ctx, db, enqueueSQL, q.Name, text, given(o.Key), givenInterval(o.Delay), givenTime(o.RunAt), o.priority(),
		given(o.GroupKey), given(o.MaxAttempts), headers, givenInterval(o.ExpiresIn), givenInterval(o.KeyTTL), string(cmp.Or(o.OnDuplicate, OnDuplicateKeep)),
		o.NoWait, given(cmp.Or(o.Kind, q.Kind)), givenInterval(o.MaxWait), o.dependsOn(), string(cmp.Or(o.OnParentFailure, ParentFailureCancel)))
}

// enqueueOne runs a statement that adds a job.
func enqueueOne[R any](ctx context.Context, db DB, sql string, args ...any) (added Enqueued[R], err error) {
	var id *int64
	var status, result *string
	if err = db.QueryRow(ctx, sql, args...).Scan(&id, &added.Outcome, &status, &result); err != nil {
		return added, typed(err)
	}
	added.ID, added.Status = deref(id), Status(deref(status))
	if result != nil {
		err = decode([]byte(*result), &added.Result)
	}
	return added, err
}

// EnqueueMany adds many jobs with one statement, all or none.  It returns them in the order of the items.
func (q Queue[P, R]) EnqueueMany(ctx context.Context, db DB, items []Item[P]) ([]Enqueued[R], error) {
	if len(items) == 0 {
		return nil, nil
	}
	options := make([]*EnqueueOptions, len(items))
	payloads, allHeaders := make([]any, len(items)), make([]any, len(items))
	for n, item := range items {
		options[n] = item.Options
		if options[n] == nil {
			options[n] = new(EnqueueOptions)
		}
		if err := sameForAll(options[0], options[n]); err != nil {
			return nil, fmt.Errorf("item %d: %w", n, err)
		}
		var err error
		if payloads[n], err = encode(item.Payload, fmt.Sprintf("the payload of item %d", n)); err != nil {
			return nil, err
		}
		if allHeaders[n], err = headers(options[n].Headers); err != nil {
			return nil, fmt.Errorf("item %d: %w", n, err)
		}
	}
	all := func(of func(o *EnqueueOptions) any) string { return array(options, of) }
	same := func(v any) any { return v }
	first := options[0]
	rows, err := queryJSON[[]enqueuedRow[R]](ctx, db, enqueueManySQL, q.Name, array(payloads, same),
		all(func(o *EnqueueOptions) any { return given(o.Key) }), all(func(o *EnqueueOptions) any { return givenTime(o.RunAt) }),
		all(func(o *EnqueueOptions) any { return o.priority() }), all(func(o *EnqueueOptions) any { return given(o.GroupKey) }),
		all(func(o *EnqueueOptions) any { return givenInterval(o.Delay) }), all(func(o *EnqueueOptions) any { return given(o.MaxAttempts) }),
		array(allHeaders, same), all(func(o *EnqueueOptions) any { return givenInterval(o.ExpiresIn) }),
		all(func(o *EnqueueOptions) any { return givenInterval(o.KeyTTL) }), string(cmp.Or(first.OnDuplicate, OnDuplicateKeep)), first.NoWait,
		all(func(o *EnqueueOptions) any { return given(cmp.Or(o.Kind, q.Kind)) }), givenInterval(first.MaxWait), first.dependsOn(),
		string(cmp.Or(first.OnParentFailure, ParentFailureCancel)))
	added := make([]Enqueued[R], len(rows))
	for n, row := range rows {
		added[n] = Enqueued[R](row)
	}
	return added, err
}

// sameForAll checks the options that belong to a call of EnqueueMany.
func sameForAll(first, o *EnqueueOptions) error {
	if first.OnDuplicate != o.OnDuplicate || first.OnParentFailure != o.OnParentFailure || first.NoWait != o.NoWait || first.MaxWait != o.MaxWait || !slices.Equal(first.DependsOn, o.DependsOn) {
		return errors.New("OnDuplicate, DependsOn, OnParentFailure, NoWait and MaxWait must be the same in all items")
	}
	return nil
}

// query runs a statement that returns one value.
func query[T any](ctx context.Context, db DB, sql string, args ...any) (value T, err error) {
	err = typed(db.QueryRow(ctx, sql, args...).Scan(&value))
	return value, err
}

// queryJSON runs a statement that returns one value as JSON.
func queryJSON[T any](ctx context.Context, db DB, sql string, args ...any) (value T, err error) {
	text, err := query[string](ctx, db, sql, args...)
	if err == nil {
		err = decode([]byte(text), &value)
	}
	return value, err
}
