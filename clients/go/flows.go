package idemq

import (
	"cmp"
	"context"
	"encoding/json"
	"time"
)

// SentEvent is the result of SendEvent.
type SentEvent struct {
	// Outcome is OutcomeAccepted, or OutcomeDuplicate if the event had already been sent.
	Outcome Outcome `json:"outcome"`
	// FirstPayload is the payload that counts.  It is nil for a duplicate if the role may only enqueue.
	FirstPayload json.RawMessage `json:"first"`
	// SamePayload is whether this payload equals the first one.
	SamePayload bool `json:"same"`
}

// SendEvent sends an event to the jobs of a queue that wait for it, and to those that will soon wait for it.
func SendEvent(ctx context.Context, db DB, queue, name string, payload any) (SentEvent, error) {
	text, err := encodeResult(payload, "the payload")
	if err != nil {
		return SentEvent{}, err
	}
	return queryJSON[SentEvent](ctx, db, `SELECT pg_catalog.json_build_object('outcome', outcome, 'first', first_payload, 'same', same_payload)::text
  FROM idemq.send_event($1::text, $2::text, $3::text::jsonb)`, queue, name, text)
}

// MessageOptions are the options of Publish and EnqueueSequenced.  A zero value means that an option is not given.
type MessageOptions struct {
	Delay       time.Duration
	RunAt       time.Time
	Priority    *int
	GroupKey    string
	MaxAttempts int
	Headers     map[string]any
	ExpiresIn   time.Duration
	Kind        string
}

const messageOptionsSQL = `delay => $1::text::interval, run_at => $2::text::timestamptz, priority => $3::int, group_key => $4::text,
    max_attempts => $5::int, headers => $6::text::jsonb, expires_in => $7::text::interval, kind => $8::text`

// args are the arguments of messageOptionsSQL, and more.
func (o *MessageOptions) args(more ...any) ([]any, error) {
	if o == nil {
		o = new(MessageOptions)
	}
	headers, err := headers(o.Headers)
	args := []any{givenInterval(o.Delay), givenTime(o.RunAt), (&EnqueueOptions{Priority: o.Priority}).priority(), given(o.GroupKey), given(o.MaxAttempts), headers,
		givenInterval(o.ExpiresIn), given(o.Kind)}
	return append(args, more...), err
}

// Published is a job that Publish has added to one of the queues that are bound to the topic.
type Published struct {
	Queue   string  `json:"queue"`
	ID      int64   `json:"id"`
	Outcome Outcome `json:"outcome"`
}

// Publish adds a job to every queue that is bound to the topic.  With a key, a repeated call returns the existing jobs.
func Publish(ctx context.Context, db DB, topic string, payload any, key string, o *MessageOptions) ([]Published, error) {
	text, err := encode(payload, "the payload")
	if err != nil {
		return nil, err
	}
	args, err := o.args(topic, text, given(key))
	if err != nil {
		return nil, err
	}
	return queryJSON[[]Published](ctx, db, `SELECT coalesce(pg_catalog.json_agg(pg_catalog.json_build_object('queue', queue, 'id', id, 'outcome', outcome)), '[]')::text
  FROM idemq.publish(topic => $9::text, payload => $10::text::jsonb, key => $11::text, `+messageOptionsSQL+`)`, args...)
}

// EnqueueSequenced adds a job for message number seq of an ordered log.  The message is a duplicate if seq is not greater than the
// producer's last number.
func EnqueueSequenced[P, R any](ctx context.Context, db DB, q Queue[P, R], producer string, seq int64, payload P, o *MessageOptions) (Enqueued[R], error) {
	text, err := encode(payload, "the payload")
	if err != nil {
		return Enqueued[R]{}, err
	}
	own := MessageOptions{}
	if o != nil {
		own = *o
	}
	own.Kind = cmp.Or(own.Kind, q.Kind)
	args, err := own.args(q.Name, producer, seq, text)
	if err != nil {
		return Enqueued[R]{}, err
	}
	return enqueueOne[R](ctx, db, `SELECT id, outcome::text, status::text, result::text
  FROM idemq.enqueue_sequenced(queue => $9::text, producer => $10::text, seq => $11::bigint, payload => $12::text::jsonb, `+messageOptionsSQL+`)`, args...)
}

// GraphJob is a job of EnqueueGraph.
type GraphJob struct {
	// Name identifies the job in the graph.
	Name    string
	Queue   string
	Payload any
	// After are the names of jobs of the graph that must complete first.  Options.DependsOn are ids of other jobs.
	After   []string
	Options *EnqueueOptions
}

// Placed is a job that EnqueueGraph has added.
type Placed struct {
	ID      int64   `json:"id"`
	Outcome Outcome `json:"outcome"`
	Status  Status  `json:"status"`
}

// EnqueueGraph adds jobs that depend on each other, all or none.  It returns them by their names.  A cycle is an error (SQLSTATE 22023).
func EnqueueGraph(ctx context.Context, db DB, jobs []GraphJob) (map[string]Placed, error) {
	members := make([]map[string]any, len(jobs))
	for n, job := range jobs {
		members[n] = job.members()
	}
	text, err := encode(members, "the graph")
	if err != nil {
		return nil, err
	}
	return queryJSON[map[string]Placed](ctx, db, `SELECT coalesce(pg_catalog.json_object_agg(name, pg_catalog.json_build_object('id', id, 'outcome', outcome, 'status', status)), '{}')::text
  FROM idemq.enqueue_graph($1::text::jsonb)`, text)
}

// members returns the members of the job's JSON object.
func (j GraphJob) members() map[string]any {
	o := j.Options
	if o == nil {
		o = new(EnqueueOptions)
	}
	parents := make([]any, 0, len(j.After)+len(o.DependsOn))
	for _, name := range j.After {
		parents = append(parents, name)
	}
	for _, id := range o.DependsOn {
		parents = append(parents, id)
	}
	members := map[string]any{"name": j.Name, "queue": j.Queue, "payload": j.Payload, "depends_on": parents, "priority": o.priority()}
	for name, value := range map[string]any{
		"key": given(o.Key), "delay": givenInterval(o.Delay), "run_at": givenTime(o.RunAt), "group_key": given(o.GroupKey), "max_attempts": given(o.MaxAttempts),
		"expires_in": givenInterval(o.ExpiresIn), "key_ttl": givenInterval(o.KeyTTL), "on_duplicate": given(string(o.OnDuplicate)),
		"on_parent_failure": given(string(o.OnParentFailure)), "kind": given(o.Kind), "max_wait": givenInterval(o.MaxWait),
	} {
		if value != nil {
			members[name] = value
		}
	}
	if o.Headers != nil {
		members["headers"] = o.Headers
	}
	return members
}

// Flow is the progress of a graph or a fan-out.
type Flow struct {
	Jobs, Waiting, Blocked, Running, Retrying, Completed, Dead, Cancelled, Done int64
	// Progress is the percentage of jobs that are done.
	Progress float64
	// BegunAt and EndedAt are zero if the graph has not begun or not ended.
	BegunAt, EndedAt time.Time
	// ETA is nil if no estimate is possible.
	ETA *time.Duration
	// HeldUpBy is the job for which the most other jobs wait, and HeldUpWhy is what it is waiting for.
	HeldUpBy  int64
	HeldUpWhy string
	// Slowest is the job with the longest attempt.
	Slowest     int64
	SlowestKind string
	SlowestFor  time.Duration
	// FailedIDs and Roots contain at most 100 ids.
	FailedIDs, Roots []int64
	// Cut is whether there are more jobs than were examined.
	Cut bool
}

// The members are those of Flow; a time.Duration is a number of nanoseconds.
const flowSQL = `SELECT pg_catalog.json_build_object('jobs', jobs, 'waiting', waiting, 'blocked', blocked, 'running', running, 'retrying', retrying,
    'completed', completed, 'dead', dead, 'cancelled', cancelled, 'done', done, 'progress', progress::numeric, 'begunAt', begun_at, 'endedAt', ended_at,
    'eta', (1000000000 * extract(epoch FROM eta))::bigint, 'heldUpBy', held_up_by, 'heldUpWhy', held_up_why, 'slowest', slowest, 'slowestKind', slowest_kind,
    'slowestFor', (1000000000 * extract(epoch FROM slowest_for))::bigint, 'failedIDs', failed_ids, 'roots', roots, 'cut', cut)::text
  FROM idemq.flow($1::bigint, $2::int)`

// GetFlow returns the progress of the graph or fan-out that contains a job.  It examines at most this many jobs; 0 means 100,000.  The
// error is ErrNoSuchJob if you may not see the job.
func GetFlow(ctx context.Context, db DB, id int64, most int) (*Flow, error) {
	return one[Flow](ctx, db, flowSQL, id, cmp.Or(most, 100000))
}
