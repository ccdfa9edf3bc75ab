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

	call *call
}

const (
	checkpointSQL = `SELECT idemq.checkpoint($1::bigint, $2::bigint, $3::text::jsonb)`
	awaitEventSQL = `SELECT outcome, payload::text FROM idemq.await_event($1::bigint, $2::bigint, $3::text, $4::text::interval)`
	parentsSQL    = `SELECT coalesce(pg_catalog.json_agg(pg_catalog.json_build_object('id', p.parent, 'queue', p.queue, 'status', p.status, 'result', p.result) ORDER BY p.parent), '[]')::text
  FROM idemq.parents($1::bigint) AS p`
)

func newJob[P any](c *call) (*Job[P], error) {
	a := c.attempt
	job := &Job[P]{JobHeader: a.header, Log: a.log(), call: c}
	if err := decode(a.payload, &job.Payload); err != nil {
		return nil, fmt.Errorf("the payload cannot be decoded: %w", err)
	}
	return job, nil
}

// side runs a statement of the job that may be repeated, and is committed by itself.
func (j *Job[P]) side(ctx context.Context, fn func(context.Context, *session) error) error {
	_, err := j.call.attempt.queue.run.side(ctx, fn)
	return typed(err)
}

// Checkpoint stores data for the next attempt, at once.  A handler of Handle can call it until it uses its transaction.
func (j *Job[P]) Checkpoint(ctx context.Context, data any) error {
	text, err := encode(data, "the checkpoint")
	if err != nil {
		return err
	}
	end, err := j.call.beginApart("Checkpoint")
	if err != nil {
		return err
	}
	defer end()
	err = j.side(ctx, func(ctx context.Context, s *session) error { return s.exec(ctx, checkpointSQL, j.ID, j.Token, text) })
	if err == nil {
		j.call.attempt.setCheckpoint([]byte(text), true)
	}
	return err
}

// CheckpointTx stores data for the next attempt in a transaction: the one of the handler, or another one.
func (j *Job[P]) CheckpointTx(ctx context.Context, tx pgx.Tx, data any) error {
	text, err := encode(data, "the checkpoint")
	if err != nil {
		return err
	}
	if own, ok := tx.(*handlerTx); !ok || own.call != j.call {
		end, err := j.call.beginApart("CheckpointTx")
		if err != nil {
			return err
		}
		defer end()
	}
	if _, err := tx.Exec(ctx, checkpointSQL, j.ID, j.Token, text); err != nil {
		return typed(err)
	}
	j.call.attempt.setCheckpoint([]byte(text), false)
	return nil
}

// State decodes the data of the latest checkpoint.  found is false if there is none.
func (j *Job[P]) State(dest any) (found bool, err error) {
	state := j.call.attempt.state()
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
// again from its beginning when the event has arrived or the time is over.  dest may be nil.  A handler of Handle can call AwaitEvent until
// it uses its transaction.
func (j *Job[P]) AwaitEvent(ctx context.Context, name string, timeout time.Duration, dest any) (arrived bool, err error) {
	end, err := j.call.beginApart("AwaitEvent")
	if err != nil {
		return false, err
	}
	defer end()
	var outcome string
	var payload *string
	err = j.side(ctx, func(ctx context.Context, s *session) error {
		return s.row(ctx, awaitEventSQL, j.ID, j.Token, name, interval(timeout)).Scan(&outcome, &payload)
	})
	switch {
	case err != nil:
		return false, err
	case outcome == "waiting":
		return false, j.call.attempt.waits(&verdict{kind: snooze, text: "waits for event " + name})
	case outcome == "arrived" && dest != nil && payload != nil:
		if err := decode([]byte(*payload), dest); err != nil {
			return true, fmt.Errorf("the payload of event %s cannot be decoded: %w", name, err)
		}
	}
	return outcome == "arrived", nil
}

// Parent is a job on which a job depends.
type Parent struct {
	ID     int64           `json:"id"`
	Queue  string          `json:"queue"`
	Status Status          `json:"status"`
	Result json.RawMessage `json:"result"`
}

// Parents returns the jobs on which this job depends.
func (j *Job[P]) Parents(ctx context.Context) (parents []Parent, err error) {
	var text string
	err = j.side(ctx, func(ctx context.Context, s *session) error { return s.row(ctx, parentsSQL, j.ID).Scan(&text) })
	if err == nil {
		err = decode([]byte(text), &parents)
	}
	return parents, err
}
