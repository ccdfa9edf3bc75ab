package idemq

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

const (
	defaultTimeout = time.Hour
	// abandonAfter is the time that a handler may take to end after its context has ended.
	abandonAfter = 5 * time.Second

	jobColumns = `id, token, attempt, max_attempts, payload::text, key, group_key, checkpoint::text, (1000000 * extract(epoch FROM enqueued_at))::bigint, headers::text, kind`

	failSQL    = `SELECT idemq.fail($1::bigint, $2::bigint, $3::text, retry_in => $4::text::interval, permanent => $5::boolean, details => $6::text::jsonb)::text`
	releaseSQL = `SELECT idemq.release($1::bigint, $2::bigint, $3::text::interval)::text`
	// Holds back, then ends the attempt, in one transaction.  The first 100 such attempts in a row do not count.
	holdBackSQL = `WITH held AS MATERIALIZED (SELECT idemq.hold_back($1::bigint, $2::bigint,
    least($3::text::interval, (SELECT nullif(q.max_hold_back, '0') FROM idemq.jobs j JOIN idemq.queues q USING (queue_id) WHERE j.id = $1::bigint)), scope => $5::text))
  SELECT (CASE WHEN (SELECT count(*) FROM (SELECT a.outcome FROM idemq.attempts a WHERE a.job_id = $1::bigint ORDER BY a.token DESC LIMIT 100) l
      WHERE l.outcome = 'released') < 100 THEN idemq.release($1::bigint, $2::bigint, $3::text::interval)
    ELSE idemq.fail($1::bigint, $2::bigint, $4::text, retry_in => $3::text::interval) END)::text FROM held`
)

// attempt is an attempt, from its claim to its end.
type attempt struct {
	queue   *consumer
	handler *handler
	header  JobHeader
	payload []byte
	// unreadable is why the handler cannot be called.
	unreadable error
	// ctx ends when the attempt must stop, for another reason than its time limit.
	ctx    context.Context
	cancel context.CancelCauseFunc
	// expires ends an outside attempt with its lease.
	expires *time.Timer
	// unsure is whether a COMMIT was sent that may have taken effect.
	unsure bool

	mu sync.Mutex
	// latest is the latest checkpoint, and stored the latest one that is not undone with the handler's transaction.
	latest, stored []byte
	// waiting is what AwaitEvent has returned after it has released the job.
	waiting error
}

// claimed is a row with the columns jobColumns.
type claimed struct {
	ID, Token                     *int64
	Attempt, MaxAttempts          *int
	Payload, Key, GroupKey, State *string
	EnqueuedAt                    *int64
	Headers, Kind                 *string
}

// newAttempt begins an attempt that was claimed at asked.  The caller holds the mutex of the run.
func newAttempt(q *consumer, c claimed, asked time.Time) *attempt {
	a := &attempt{queue: q, payload: raw(c.Payload), stored: raw(c.State)}
	a.header = JobHeader{
		ID: *c.ID, Token: *c.Token, Queue: q.name, Kind: deref(c.Kind), Key: deref(c.Key), GroupKey: deref(c.GroupKey),
		Attempt: *c.Attempt, MaxAttempts: *c.MaxAttempts, EnqueuedAt: time.UnixMicro(*c.EnqueuedAt),
	}
	if c.Headers != nil {
		a.unreadable = json.Unmarshal([]byte(*c.Headers), &a.header.Headers)
	}
	a.handler = q.handlerFor(a.header.Kind)
	a.ctx, a.cancel = context.WithCancelCause(q.run.base)
	if !q.inside {
		a.expires = time.AfterFunc(time.Until(asked.Add(q.lease)), func() { a.stop(ErrLeaseLost) })
	}
	return a
}

func (a *attempt) log() *slog.Logger {
	return a.queue.run.log.With("queue", a.header.Queue, "id", a.header.ID, "attempt", a.header.Attempt)
}

// stop ends the handler's context.
func (a *attempt) stop(why error) { a.cancel(&stopped{why, why.Error()}) }

// limits returns the time limit, and how long the handler may then take to end.  If the limit is the queue's, the outcome is reported before
// the server takes the job back.
func (a *attempt) limits() (limit time.Duration, name string, notice time.Duration) {
	a.queue.run.mu.Lock()
	own, queue := a.handler.timeout, a.queue.jobTimeout
	a.queue.run.mu.Unlock()
	if queue == 0 {
		return cmp.Or(own, defaultTimeout), "Timeout", abandonAfter
	}
	notice = min(abandonAfter, queue/10)
	limit = queue - notice - min(time.Second, queue/10)
	if own > 0 && own < limit {
		return own, "Timeout", notice
	}
	return limit, "job_timeout", notice
}

func (a *attempt) setCheckpoint(data []byte, stored bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.latest = data
	if stored {
		a.stored = data
	}
}

func (a *attempt) state() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.latest
}

// waits notes that the job was released, or returns the error with which it was.
func (a *attempt) waits(err error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		a.waiting = err
	}
	return a.waiting
}

var errCallUnderWay = errors.New("the handler has ended while a step was under way; wait for it")

// call calls the handler within its time limit, with a transaction or nil.
func (a *attempt) call(tx *sharedTx) (result *string, err error) {
	if a.unreadable != nil {
		return nil, fmt.Errorf("the headers cannot be decoded: %w", a.unreadable)
	}
	if err := context.Cause(a.ctx); err != nil {
		return nil, err
	}
	a.setCheckpoint(a.stored, true) // a transaction that was rolled back does not count
	r := a.queue.run
	limit, name, notice := a.limits()
	a.header.Deadline = time.Now().Add(limit)
	ctx, end := context.WithDeadlineCause(a.ctx, a.header.Deadline, &stopped{ErrTimeout, fmt.Sprintf("stopped after %s (%s)", limit, name)})
	defer end()
	c := &call{attempt: a, ctx: ctx, tx: tx}
	done := start(func() (*string, error) { return r.w.o.Hooks.around(c) })
	abandoned := false
	var got returned[*string]
	select {
	case got = <-done:
	case <-ctx.Done():
		a.cancel(context.Cause(ctx))
		timer := time.NewTimer(notice)
		defer timer.Stop()
		select {
		case got = <-done:
		case <-timer.C:
			abandoned = true
		case <-r.giveUp.Done():
			abandoned = true
		}
	}
	if abandoned {
		if tx != nil {
			tx.session.abandoned = true
			tx.session.kill()
		}
		c.end()
		r.abandon(a, done)
		return nil, context.Cause(ctx)
	}
	if c.end() && got.err == nil {
		got.err = errCallUnderWay
	}
	return got.value, got.err
}

// call is one call of a handler.
type call struct {
	attempt *attempt
	ctx     context.Context
	// tx is the transaction of an inside handler, which a batch shares.
	tx *sharedTx

	mu    sync.Mutex
	ended bool
	// apart is the number of calls of the job's methods that are under way.
	apart int
}

// end ends the call, and reports whether a call of the job's methods is still under way.
func (c *call) end() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	return c.apart > 0
}

// beginApart begins a call of the job's methods whose effect is committed by itself.  It fails after the handler has used its transaction,
// which has locked the job, and in a batch, whose jobs then run alone.
func (c *call) beginApart(what string) (end func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch t := c.tx; {
	case c.ended:
		return nil, fmt.Errorf("%s was called after the handler had ended", what)
	case t != nil && len(t.jobs) > 1:
		return nil, t.misused(errBatchEnds{what})
	case t != nil && !t.usedAt.IsZero():
		return nil, t.misused(fmt.Errorf("%s is not available after the handler has used its transaction, because the transaction that completes the job has begun. "+
			"Call it before the first statement, or save a checkpoint in the transaction with Job.CheckpointTx", what))
	case t != nil:
		t.unlock()
		t.madeApart = true
	}
	c.apart++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.apart--
	}, nil
}

// settle reports the end of an attempt whose handler has failed, on an idle link or, if there is none, a side link.
func (q *consumer) settle(l *link, a *attempt, err error) {
	v := verdictOf(err)
	if cause := context.Cause(a.ctx); cause != nil && v == nil {
		err = cause // an error caused by the end of the context is not the job's failure, except at its time limit
	}
	id, token, text := a.header.ID, a.header.Token, textOf(err)
	repeat := q.run.side
	if l != nil {
		repeat = l.repeat
	}
	var outcome Outcome
	send := func(sql string, args ...any) error {
		_, err := repeat(q.run.over, func(ctx context.Context, s *session) error {
			return s.row(ctx, sql, append([]any{id, token}, args...)...).Scan(&outcome)
		})
		return err
	}
	var asked error
	switch {
	case errors.As(err, new(*stopped)) && !errors.Is(err, ErrTimeout):
		asked = send(releaseSQL, nil)
	case v == nil || v.kind == refused:
		asked = send(failSQL, text, nil, false, detailsOf(err))
	case v.kind == snooze:
		asked = send(releaseSQL, v.delay)
	case v.kind == holdBack:
		asked = send(holdBackSQL, v.delay, text, given(string(v.scope)))
	default:
		asked = send(failSQL, text, v.delay, v.kind == dead, detailsOf(err))
	}
	if hasState(asked, "22") { // a value is invalid, or the server's encoding lacks a character
		asked = send(failSQL, notASCII.ReplaceAllString(text+" (and: "+textOf(asked)+")", "?"), nil, v != nil && v.kind == dead, nil)
	}
	switch {
	case hasState(asked, "IQ001", "IQ002", "IQ006"):
		outcome = OutcomeStale
	case asked != nil:
		outcome, err = OutcomeLost, asked
	}
	q.ended(a, outcome, err)
}

// ended ends an attempt, of which err is the error unless it has succeeded.
func (q *consumer) ended(a *attempt, outcome Outcome, err error) {
	r := q.run
	a.cancel(nil)
	r.mu.Lock()
	if a.expires != nil {
		a.expires.Stop()
	}
	delete(r.running, a.header.Token)
	r.counts[outcome]++
	q.note(outcome, err)
	r.mu.Unlock()
	switch outcome {
	case OutcomeCommitted:
	case OutcomeReleased, OutcomeWaiting:
		a.log().Info("idemq: job "+string(outcome), "why", err)
	case OutcomeRetrying, OutcomeDead:
		a.log().Warn("idemq: job "+string(outcome), "error", err)
		r.w.o.Hooks.failed(a, Failure{err, outcome, outcome == OutcomeRetrying})
	case OutcomeLost:
		a.log().Warn("idemq: the job waits until its lease expires", "error", err)
	default:
		a.log().Warn("idemq: the attempt no longer owned its job", "outcome", outcome, "error", err)
	}
}
