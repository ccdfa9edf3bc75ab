package idemq

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
)

// JobHeader is what is known about a job without decoding its payload.
type JobHeader struct {
	ID, Token            int64
	Queue, Kind          string
	Key, GroupKey        string
	Attempt, MaxAttempts int
	Headers              map[string]json.RawMessage
	EnqueuedAt           time.Time
	// Deadline is the time at which the context of the handler ends.
	Deadline time.Time
}

// Job is the job that a handler gets.
type Job[P any] struct {
	JobHeader
	Payload P
	// Log adds the queue, the id and the attempt to each line.
	Log *slog.Logger

	attempt *attempt
	handled *handling
}

const (
	checkpointSQL = `SELECT idemq.checkpoint($1::bigint, $2::bigint, $3::text::jsonb)`
	awaitEventSQL = `SELECT outcome, payload::text FROM idemq.await_event($1::bigint, $2::bigint, $3::text, $4::text::interval)`
	parentsSQL    = `SELECT coalesce(pg_catalog.json_agg(pg_catalog.json_build_object('id', p.parent, 'queue', p.queue, 'status', p.status, 'result', p.result) ORDER BY p.parent), '[]')::text
  FROM idemq.parents($1::bigint) AS p`
	addParentsSQL = `SELECT coalesce(pg_catalog.json_agg(parent) FILTER (WHERE outcome = 'locked'), '[]')::text
  FROM idemq.add_parents($1::bigint, $2::text::bigint[], $3::bigint, $4::bigint)`
)

// Checkpoint stores data for the next attempt, at once.  A handler of Handle can call it until it uses its transaction.
func (j *Job[P]) Checkpoint(ctx context.Context, data any) error {
	text, err := encode(data, "the checkpoint")
	if err != nil {
		return err
	}
	err = j.handled.apart("Checkpoint", func(ask asker) error {
		return ask(ctx, func(ctx context.Context, s *session) error {
			return s.exec(ctx, checkpointSQL, j.ID, j.Token, text)
		})
	})
	if err != nil {
		return typed(err)
	}
	j.attempt.setCheckpoint([]byte(text), true)
	return nil
}

// CheckpointTx stores data for the next attempt in a transaction: the one of the handler, or another one.
func (j *Job[P]) CheckpointTx(ctx context.Context, tx pgx.Tx, data any) error {
	text, err := encode(data, "the checkpoint")
	if err != nil {
		return err
	}
	own := j.handled.owns(tx)
	if !own {
		if err := j.handled.unlock("CheckpointTx"); err != nil {
			return err
		}
	}
	if _, err := tx.Exec(ctx, checkpointSQL, j.ID, j.Token, text); err != nil {
		return typed(err)
	}
	j.attempt.setCheckpoint([]byte(text), false)
	return nil
}

// State decodes the data of the latest checkpoint.  found is false if there is none.
func (j *Job[P]) State(dest any) (found bool, err error) {
	state := j.attempt.state()
	if state == nil {
		return false, nil
	}
	if err := decode(state, dest); err != nil {
		return true, fmt.Errorf("the checkpoint cannot be decoded: %w", err)
	}
	return true, nil
}

// AwaitEvent decodes the payload of an event that was sent with SendEvent.  arrived is false if the event did not arrive within timeout.
// If the event may still arrive, the job is released, and AwaitEvent returns an error, which the handler must return.  The handler runs
// again from its beginning when the event has arrived or the time is over.  dest may be nil.
func (j *Job[P]) AwaitEvent(ctx context.Context, name string, timeout time.Duration, dest any) (arrived bool, err error) {
	var outcome string
	var payload *string
	undone := j.handled.used() // with the transaction, unless that commits
	err = j.handled.ask(ctx, func(ctx context.Context, s *session) error {
		return s.row(ctx, awaitEventSQL, j.ID, j.Token, name, interval(timeout)).Scan(&outcome, &payload)
	})
	if err != nil {
		return false, typed(err)
	}
	switch outcome {
	case "waiting":
		v := &verdict{kind: waiting, event: name, delay: timeout, text: "waits for event " + name}
		j.attempt.waits(v, !undone)
		return false, v
	case "arrived":
		if undone {
			j.attempt.received(name, timeout)
		}
		if dest != nil && payload != nil {
			if err := decode([]byte(*payload), dest); err != nil {
				return true, fmt.Errorf("the payload of event %s cannot be decoded: %w", name, err)
			}
		}
		return true, nil
	}
	return false, nil
}

// Parent is a job on which a job depends.
type Parent struct {
	ID     int64           `json:"id"`
	Queue  string          `json:"queue"`
	Status Status          `json:"status"`
	Result json.RawMessage `json:"result"`
}

// Parents returns the jobs on which this job depends.
func (j *Job[P]) Parents(ctx context.Context) ([]Parent, error) {
	var text string
	err := j.handled.ask(ctx, func(ctx context.Context, s *session) error {
		return s.row(ctx, parentsSQL, j.ID).Scan(&text)
	})
	if err != nil {
		return nil, typed(err)
	}
	var parents []Parent
	if err := decode([]byte(text), &parents); err != nil {
		return nil, fmt.Errorf("the results of the parents cannot be decoded: %w", err)
	}
	return parents, nil
}

// AddParents makes a child of this job wait for further jobs, in the handler's transaction or, in a handler of HandleOutside, at once.  If
// another transaction is using one of them, it returns an error, which the handler must return: the job runs again after a second.
func (j *Job[P]) AddParents(ctx context.Context, child int64, parents []int64) error {
	var text string
	err := j.handled.use(ctx, func(ctx context.Context, s *session) error {
		return s.row(ctx, addParentsSQL, child, numbers(parents), j.ID, j.Token).Scan(&text)
	})
	if err != nil {
		return typed(err)
	}
	if text != "[]" {
		return Snooze(time.Second, "parents could not be added because another transaction is using them: "+text)
	}
	return nil
}
