package idemq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	defaultTimeout = time.Hour
	// abandonAfter is the time that a handler may take to end after its context has ended.
	abandonAfter   = 5 * time.Second
	abandonInDrain = 2 * time.Second
)

// attempt is an attempt, from its claim to its end.
type attempt struct {
	queue       *consumer
	handler     *handler
	header      JobHeader
	payload     []byte
	checkpoint  []byte // as claimed
	unreadable  error
	lease       time.Duration
	limit       time.Duration
	limitName   string
	notice      time.Duration
	claimedAt   time.Time
	outsideLink *link

	mu        sync.Mutex
	leaseEnds time.Time
	why       error // one of ErrLeaseLost, ErrTimeout, ErrCancelled and ErrDraining
	reason    error
	end       context.CancelCauseFunc
	// giveUp is closed when the worker no longer waits for the handler.
	giveUp      chan struct{}
	giveUpTimer *time.Timer
	// commitSent is whether a commit was sent, and may have taken effect.
	commitSent bool
	// endedItself is whether an outside handler has ended its attempt through SQL.
	endedItself bool
	// lost is whether the lease was lost at the last check.
	lost bool
	// waiting is the verdict of AwaitEvent, and released is whether the job has already been released.
	waiting  *verdict
	released bool
	// arrived are events that the handler has received in its transaction.
	arrived []awaited
	// latest is the latest checkpoint, and stored the latest one that is not undone with the handler's transaction.
	latest, stored []byte
	// running is closed when the handler has ended.
	running chan struct{}
}

type awaited struct {
	name    string
	timeout time.Duration
}

const jobColumns = `id, token, attempt, max_attempts, payload::text, key, group_key, checkpoint::text, (1000000 * extract(epoch FROM enqueued_at))::bigint, headers::text, kind`

// claimed is a row with the columns jobColumns.
type claimed struct {
	id, token                                 *int64
	attempt, maxAttempts                      *int
	payload, key, group, state, headers, kind *string
	enqueuedAt                                *int64
}

// dest returns where to scan a row, after the columns before.
func (c *claimed) dest(before ...any) []any {
	return append(before, &c.id, &c.token, &c.attempt, &c.maxAttempts, &c.payload, &c.key, &c.group, &c.state, &c.enqueuedAt, &c.headers, &c.kind)
}

func bytesOf(text *string) []byte {
	if text == nil {
		return nil
	}
	return []byte(*text)
}

// newAttempt begins an attempt that was claimed at asked.  The caller holds the mutex of the run.
func newAttempt(q *consumer, c *claimed, asked time.Time) *attempt {
	a := &attempt{queue: q, claimedAt: time.Now(), payload: bytesOf(c.payload), checkpoint: bytesOf(c.state), lease: q.lease, leaseEnds: asked.Add(q.lease)}
	a.header = JobHeader{
		ID: *c.id, Token: *c.token, Queue: q.name, Kind: deref(c.kind), Key: deref(c.key), GroupKey: deref(c.group),
		Attempt: *c.attempt, MaxAttempts: *c.maxAttempts, EnqueuedAt: fromMicros(c.enqueuedAt),
	}
	if c.headers != nil {
		if err := json.Unmarshal([]byte(*c.headers), &a.header.Headers); err != nil {
			a.unreadable = fmt.Errorf("the headers cannot be decoded: %w", err)
		}
	}
	a.handler = q.handlerFor(a.header.Kind)
	a.limits()
	return a
}

// limits sets the time limit.  If it is the queue's, the outcome is reported before the server takes the job back.
func (a *attempt) limits() {
	a.limit, a.limitName, a.notice = defaultTimeout, "Timeout", abandonAfter
	if a.queue.jobTimeout > 0 {
		a.notice = min(abandonAfter, a.queue.jobTimeout/10)
		a.limit, a.limitName = a.queue.jobTimeout-a.notice-min(time.Second, a.queue.jobTimeout/10), "job_timeout"
	}
	if a.handler != nil && a.handler.timeout > 0 && (a.handler.timeout < a.limit || a.queue.jobTimeout == 0) {
		a.limit, a.limitName = a.handler.timeout, "Timeout"
	}
}

func (a *attempt) log() *slog.Logger {
	return a.queue.run.log.With("queue", a.header.Queue, "id", a.header.ID, "attempt", a.header.Attempt)
}

// restart prepares another call of the handler.  What a transaction that was rolled back has done does not count.
func (a *attempt) restart() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waiting, a.released, a.arrived = nil, false, nil
	a.latest = a.stored
	if a.stored == nil {
		a.latest = a.checkpoint
	}
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

func (a *attempt) waits(v *verdict, released bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waiting, a.released = v, released
}

func (a *attempt) received(name string, timeout time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.arrived = append(a.arrived, awaited{name, timeout})
}

// get reads members under the mutex.
func get[T any](a *attempt, of func() T) T {
	a.mu.Lock()
	defer a.mu.Unlock()
	return of()
}

func (a *attempt) stopReason() (why, reason error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.why, a.reason
}

func (a *attempt) setCommitSent(sent bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.commitSent = sent
}

func (a *attempt) isCommitSent() bool { return get(a, func() bool { return a.commitSent }) }

// renew notes that a heartbeat, sent at asked, has extended the lease.
func (a *attempt) renew(asked time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.leaseEnds = asked.Add(a.lease)
}

func (a *attempt) leaseOver() bool {
	return get(a, func() bool { return !a.endedItself && time.Now().After(a.leaseEnds) })
}

// cancel ends the handler's context.
func (a *attempt) cancel(why error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.why != nil {
		if why == ErrDraining && a.giveUpTimer != nil {
			a.giveUpTimer.Reset(abandonInDrain)
		}
		return
	}
	text := map[error]string{ErrLeaseLost: "the lease was lost", ErrCancelled: "the job was cancelled", ErrDraining: "the worker is stopping"}[why]
	if why == ErrTimeout {
		text = fmt.Sprintf("stopped after %s (%s)", a.limit, a.limitName)
	}
	a.why, a.reason = why, &stopped{why, text}
	if a.end != nil {
		a.end(a.reason)
		a.abandonSoon()
	}
}

// abandonSoon begins the time in which the handler must end.
func (a *attempt) abandonSoon() {
	after := abandonAfter
	switch a.why {
	case ErrTimeout:
		after = a.notice
	case ErrDraining:
		after = abandonInDrain
	}
	giveUp := a.giveUp
	a.giveUpTimer = time.AfterFunc(after, func() { close(giveUp) })
}

// jobContext is the context of a handler.
type jobContext struct {
	context.Context
	deadline time.Time
}

func (c jobContext) Deadline() (time.Time, bool) { return c.deadline, true }

// outcome is what a handler has returned.
type outcome struct {
	result *string
	err    error
}

var errStepUnderWay = errors.New("the handler has ended while a step was under way; wait for it")

// call calls the handler within its time limit.  abandoned: the handler has not ended in time.
func (a *attempt) call(h *handling) (result *string, err error, abandoned bool) {
	a.mu.Lock()
	if a.why != nil {
		defer a.mu.Unlock()
		return nil, a.reason, false
	}
	if a.unreadable != nil {
		defer a.mu.Unlock()
		return nil, a.unreadable, false
	}
	inner, end := context.WithCancelCause(a.queue.run.base)
	a.end, a.giveUp, a.giveUpTimer = end, make(chan struct{}), nil
	a.header.Deadline = time.Now().Add(a.limit)
	ctx := jobContext{inner, a.header.Deadline}
	running, giveUp := make(chan struct{}), a.giveUp
	a.running = running
	a.mu.Unlock()

	timer := time.AfterFunc(a.limit, func() { a.cancel(ErrTimeout) })
	done := make(chan outcome, 1)
	go protected(func() (*string, bool, error) {
		result, err := a.queue.run.hooks.around(ctx, a, h)
		return result, true, err
	}, func(result *string, _ bool, err error) {
		if under := h.endSteps(); under && err == nil {
			err = errStepUnderWay
		}
		done <- outcome{result, err}
		close(running)
	})
	var got outcome
	select {
	case got = <-done:
	case <-giveUp:
		abandoned = true
		_, got.err = a.stopReason()
	}
	timer.Stop()
	a.mu.Lock()
	if a.giveUpTimer != nil {
		a.giveUpTimer.Stop()
	}
	a.end = nil
	a.mu.Unlock()
	end(nil)
	return got.result, got.err, abandoned
}

// protected calls fn, and then deliver with what fn has returned, or with an error if it panicked or called runtime.Goexit.
func protected[T any](fn func() (T, bool, error), deliver func(T, bool, error)) {
	var value T
	var ok, returned bool
	var err error
	defer func() {
		if p := recover(); p != nil {
			err = &panicked{p, string(debug.Stack())}
		} else if !returned {
			err = errGoexit
		}
		deliver(value, ok, err)
	}()
	value, ok, err = fn()
	returned = true
}

// guarded calls fn in a goroutine of its own, because fn may call runtime.Goexit, and waits for it.
func guarded[T any](fn func() (T, bool, error)) (value T, ok bool, err error) {
	done := make(chan struct{})
	go protected(fn, func(v T, o bool, e error) {
		value, ok, err = v, o, e
		close(done)
	})
	<-done
	return value, ok, err
}

// asker runs a statement that is committed by itself.
type asker func(ctx context.Context, fn func(context.Context, *session) error) error

// handling is one call of a handler.
type handling struct {
	attempt *attempt
	// shared is the transaction of an inside handler, which a batch shares.
	shared *sharedTx

	mu    sync.Mutex
	ended bool
	steps int
}

// beginStep notes that a step is under way.
func (h *handling) beginStep(name string) (end func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended {
		return nil, fmt.Errorf("step %s was called after the handler had ended", name)
	}
	h.steps++
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.steps--
	}, nil
}

// endSteps ends the handler, and reports whether a step is still under way.
func (h *handling) endSteps() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	return h.steps > 0
}

func (h *handling) over() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ended
}

// used reports whether calls of the job belong to the handler's transaction.
func (h *handling) used() bool { return h.shared != nil && h.shared.isUsed() }

// outside runs a statement of an outside handler.
func (h *handling) outside(ctx context.Context, fn func(context.Context, *session) error) error {
	ctx, stop := h.attempt.queue.run.within(ctx)
	defer stop()
	_, err := h.attempt.outsideLink.repeat(ctx, fn)
	return err
}

// apart calls fn with a function that runs statements, each committed by itself.
func (h *handling) apart(what string, fn func(asker) error) error {
	if h.shared == nil {
		return fn(h.outside)
	}
	return h.shared.apart(what, fn)
}

// ask runs a statement in the handler's transaction if that has been used, and otherwise by itself.
func (h *handling) ask(ctx context.Context, fn func(context.Context, *session) error) error {
	switch {
	case h.shared == nil:
		return h.outside(ctx, fn)
	case h.used():
		return h.use(ctx, fn)
	}
	return h.shared.ask(ctx, fn)
}

// use runs a statement in the handler's transaction, if it has one.
func (h *handling) use(ctx context.Context, fn func(context.Context, *session) error) error {
	if h.shared == nil {
		return h.outside(ctx, fn)
	}
	t := &handlerTx{handling: h}
	if err := t.enter(ctx, ""); err != nil {
		return err
	}
	defer t.exit()
	return fn(ctx, h.shared.session)
}

// owns reports whether a transaction is the one of the handler.
func (h *handling) owns(tx pgx.Tx) bool {
	own, ok := tx.(*handlerTx)
	return ok && h.shared != nil && own.handling.shared == h.shared
}

// unlock makes sure that another transaction can lock the job.
func (h *handling) unlock(what string) error {
	if h.shared == nil {
		return nil
	}
	if err := h.shared.refuseApart(what); err != nil {
		return err
	}
	h.shared.rollbackUnused()
	return nil
}
