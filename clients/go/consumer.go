package idemq

import (
	"context"
	"fmt"
	"slices"
	"time"
)

const (
	claimSQL = `SELECT ` + jobColumns + ` FROM idemq.claim($1::text, $2::int, lease => $3::text::interval, worker => $4::text, attach => $5::boolean)`
)

// consumer is one queue of a worker: its slots, its settings and the attempts that it has claimed.  The mutex of the run protects what
// changes.
type consumer struct {
	*queueHandlers
	run         *run
	concurrency int
	attach      bool
	group       *groupCommit

	busy int
	// empty is whether the last claim found nothing, and nothing has happened since.
	empty bool
	// known is whether a claim has been answered.
	known             bool
	pausedUntil       time.Time
	lease, jobTimeout time.Duration
	breaker           breaker
	// probe is the attempt that may begin while the breaker is open.
	probe   *attempt
	unknown map[string]bool
}

func newConsumer(r *run, q *queueHandlers) *consumer {
	c := &consumer{queueHandlers: q, run: r, concurrency: max(q.o.Concurrency, 1), lease: 30 * time.Second, unknown: map[string]bool{}}
	c.attach = q.inside && r.w.o.WaitConn == nil
	if q.o.Attach != nil {
		c.attach = *q.o.Attach
	}
	c.group = &groupCommit{queue: c}
	return c
}

// handlerFor returns the handler for a kind, or nil.
func (q *consumer) handlerFor(kind string) *handler {
	if h := q.handlers[kind]; h != nil || len(q.handlers) > 1 {
		return h
	}
	return q.handlers[""]
}

// free returns the number of free slots.  The caller holds the mutex, as for the next methods.
func (q *consumer) free() int {
	if q.breaker.open() {
		return max(1-q.busy, 0)
	}
	return q.concurrency - q.busy
}

func (q *consumer) batch() int {
	if q.breaker.open() {
		return 1
	}
	return max(q.o.Batch, 1)
}

func (q *consumer) paused() bool { return time.Now().Before(q.pausedUntil) }

func (q *consumer) batchNow() int {
	q.run.mu.Lock()
	defer q.run.mu.Unlock()
	return q.batch()
}

func (q *consumer) isKnown() bool {
	q.run.mu.Lock()
	defer q.run.mu.Unlock()
	return q.known
}

func (q *consumer) pauseFor(d time.Duration) {
	q.run.mu.Lock()
	defer q.run.mu.Unlock()
	if until := time.Now().Add(d); until.After(q.pausedUntil) {
		q.pausedUntil = until
	}
}

// mayClaim reports whether a commit also claims the next jobs.
func (q *consumer) mayClaim() bool {
	q.run.mu.Lock()
	defer q.run.mu.Unlock()
	return !q.run.isStopping() && !q.paused() && !q.breaker.open()
}

// attachesTo reports whether leases are attached to a session.  A lease cannot be attached to a pooler's session.
func (q *consumer) attachesTo(s *session) bool { return q.attach && s.direct }

func (q *consumer) claimArgs(s *session, jobs int) []any {
	return []any{q.name, jobs, givenInterval(q.o.Lease), q.run.w.o.Name, q.attachesTo(s)}
}

// begun returns the attempts of claimed jobs.
func (q *consumer) begun(claims []*claimed, asked time.Time, s *session) []*attempt {
	r := q.run
	r.mu.Lock()
	defer r.mu.Unlock()
	attempts := make([]*attempt, len(claims))
	for n, c := range claims {
		a := newAttempt(q, c, asked)
		if !q.inside {
			a.outsideLink = r.others[r.turn%len(r.others)]
			r.turn++
		}
		r.running[a.header.Token] = a
		attempts[n] = a
	}
	return attempts
}

// start runs attempts in a slot, and then those that were claimed with their commits.
func (q *consumer) start(attempts []*attempt) {
	r := q.run
	r.mu.Lock()
	if q.breaker.open() && q.busy == 0 {
		q.probe = attempts[0]
	}
	q.busy++
	r.mu.Unlock()
	r.wg.Add(1)
	go func() {
		defer r.wg.Done()
		defer r.freed(q)
		var own *slot
		if q.inside {
			own = r.slots.acquire()
			defer r.slots.release(own)
		}
		for attempts = q.unheld(own, attempts); len(attempts) > 0; attempts = q.unheld(own, attempts) {
			if r.isStopping() { // they were claimed with the last commit, and have not begun
				for _, a := range attempts {
					a.cancel(ErrDraining)
				}
			}
			if q.inside {
				attempts = q.runInside(own, attempts)
			} else {
				attempts = q.runOutside(attempts[0])
			}
		}
	}()
}

// unheld gives back the attempts that must not begin, because their handlers would probably fail, or because there is no handler.  It
// returns the others.
func (q *consumer) unheld(own *slot, attempts []*attempt) []*attempt {
	if len(attempts) == 0 {
		return nil
	}
	q.run.mu.Lock()
	open, probe := q.breaker.open(), q.probe
	q.run.mu.Unlock()
	var held, unknown, left []*attempt
	for _, a := range attempts {
		switch {
		case a.handler == nil:
			unknown = append(unknown, a)
		case open && a != probe && !a.isCommitSent():
			held = append(held, a)
		default:
			left = append(left, a)
		}
	}
	if own != nil && len(left) < len(attempts) {
		own.unlock(q.run)
	}
	q.giveBack(held, 0, "the last attempts have failed with the same error")
	for _, a := range unknown {
		q.warnOnce(a)
	}
	q.giveBack(unknown, or(q.o.UnknownKind, time.Minute), "there is no handler for its kind")
	return left
}

// warnOnce says once for each kind that there is no handler for it.
func (q *consumer) warnOnce(a *attempt) {
	q.run.mu.Lock()
	defer q.run.mu.Unlock()
	if kind := a.header.Kind; !q.unknown[kind] && len(q.unknown) < 1000 {
		q.unknown[kind] = true
		a.log().Warn("idemq: there is no handler for this kind, so the worker gives such jobs back", "kind", kind)
	}
}

const releaseManyLaterSQL = `SELECT count(*) FROM idemq.release_many($1::text::bigint[], $2::text::bigint[], delay => $3::text::interval)`

// giveBack releases attempts that have not begun.
func (q *consumer) giveBack(attempts []*attempt, delay time.Duration, why string) {
	if len(attempts) == 0 {
		return
	}
	ids, tokens := pairs(attempts)
	_, err := q.run.control.repeat(q.run.over, func(ctx context.Context, s *session) error {
		return s.exec(ctx, releaseManyLaterSQL, ids, tokens, givenInterval(delay))
	})
	for _, a := range attempts {
		if err != nil {
			q.ended(a, OutcomeLost, err.Error())
		} else {
			q.ended(a, OutcomeReleased, why)
		}
	}
}

// failed calls the hook for an attempt that has failed, and notices failures that repeat.
func (q *consumer) failed(a *attempt, err error, outcome Outcome, willRetry bool) {
	r := q.run
	if !r.once && (outcome == OutcomeRetrying || outcome == OutcomeDead) {
		r.mu.Lock()
		opened := q.breaker.failed(a.header.Kind, err)
		pause := q.breaker.pause()
		r.mu.Unlock()
		if opened {
			r.log.Error("idemq: ten attempts in a row have failed with the same error, so the worker runs one job at a time until one succeeds", "queue", q.name, "kind", a.header.Kind, "error", err)
		}
		q.pauseFor(pause)
	}
	r.hooks.failed(a, Failure{err, outcome, willRetry})
}

// ended ends an attempt.
func (q *consumer) ended(a *attempt, outcome Outcome, text string) {
	r := q.run
	r.mu.Lock()
	closed := false
	if outcome == OutcomeCommitted {
		if closed = q.breaker.succeeded(a.header.Kind); closed {
			q.pausedUntil = time.Time{}
		}
	}
	delete(r.running, a.header.Token)
	r.counts[outcome]++
	r.mu.Unlock()
	if closed {
		r.log.Info(fmt.Sprintf("idemq: an attempt has succeeded, so the worker runs %d jobs at a time again", q.concurrency*max(q.o.Batch, 1)), "queue", q.name)
	}
	switch outcome {
	case OutcomeCommitted:
	case OutcomeReleased, OutcomeWaiting:
		a.log().Info("idemq: job "+string(outcome), "why", text)
	case OutcomeStale, OutcomeNotFound:
		a.log().Warn("idemq: the lease was lost", "why", text)
	case OutcomeLost:
		a.log().Warn("idemq: the job waits until its lease expires", "error", text)
	default:
		a.log().Warn("idemq: job "+string(outcome), "error", text)
	}
}

// abandon notes a handler that has not ended in time.
func (r *run) abandon(a *attempt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.abandoned = append(slices.DeleteFunc(r.abandoned, func(each *attempt) bool {
		select {
		case <-each.running:
			return true
		default:
			return false
		}
	}), a)
}
