package idemq

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"
)

const (
	// unknownKind is the time after which a job is ready again if there is no handler for its kind.
	unknownKind = time.Minute
	// After so many failures in a row with the same error, one job runs at a time, and each failure is followed by a pause, so that the backlog
	// does not use up its attempts.
	slowsDownAfter = 10
	firstPause     = time.Second
	longestPause   = 10 * time.Second
)

// values are what differs in errors with the same cause.
var values = regexp.MustCompile(`(?i)"[^"]*"|'[^']*'|\b[0-9a-f]{8,}\b|\d+`)

// consumer is one queue of a worker.  The mutex of the run protects what changes.
type consumer struct {
	*queueHandlers
	run         *run
	concurrency int
	attach      bool
	group       groupCommit

	busy int // slots in use
	// empty is whether the last claim found nothing, and nothing has happened since, and known whether a claim has been answered.
	empty, known      bool
	pausedUntil       time.Time
	lease, jobTimeout time.Duration
	unknown           map[string]bool
	// failures counts the attempts in a row that have failed with the same error, which is alike.
	failures int
	alike    string
}

func newConsumer(r *run, q *queueHandlers) *consumer {
	c := &consumer{queueHandlers: q, run: r, concurrency: max(q.o.Concurrency, 1), lease: 30 * time.Second, unknown: map[string]bool{}}
	c.attach = q.inside && r.w.o.WaitConn == nil
	if q.o.Attach != nil {
		c.attach = *q.o.Attach
	}
	return c
}

// handlerFor returns the handler for a kind, or nil.
func (q *consumer) handlerFor(kind string) *handler {
	if h := q.handlers[kind]; h != nil || len(q.handlers) > 1 {
		return h
	}
	return q.handlers[""]
}

func (q *consumer) batch() int { return max(q.o.Batch, 1) }

// wanted returns the number of slots for which to claim.  The caller holds the mutex, as for the next methods.
func (q *consumer) wanted() int {
	if q.slow() {
		return max(1-q.busy, 0)
	}
	return q.concurrency - q.busy
}

func (q *consumer) slow() bool { return q.failures >= slowsDownAfter }

// note notices failures that repeat.
func (q *consumer) note(outcome Outcome, err error) {
	was := q.slow()
	switch outcome {
	case OutcomeCommitted:
		q.failures = 0
		if was {
			q.pausedUntil = time.Time{}
			q.run.log.Info(fmt.Sprintf("idemq: an attempt has succeeded, so the worker runs %d jobs at a time again", q.concurrency*q.batch()), "queue", q.name)
		}
	case OutcomeRetrying, OutcomeDead:
		if alike := values.ReplaceAllString(shorten(textOf(err), 2000), "?"); alike != q.alike {
			q.alike, q.failures = alike, 0
		}
		q.failures++
		if !q.slow() || q.run.once {
			return
		}
		q.pausedUntil = time.Now().Add(min(firstPause<<min(q.failures-slowsDownAfter, 10), longestPause))
		if !was {
			q.run.log.Error("idemq: ten attempts in a row have failed with the same error, so the worker runs one job at a time until one succeeds", "queue", q.name, "error", err)
		}
	}
}

// paused reports whether no job is claimed for now.
func (q *consumer) paused() bool { return time.Now().Before(q.pausedUntil) }

func (q *consumer) pauseFor(d time.Duration) {
	q.run.mu.Lock()
	defer q.run.mu.Unlock()
	q.pausedUntil = time.Now().Add(d)
}

// mayClaim reports whether a commit also claims the next jobs.
func (q *consumer) mayClaim() bool {
	q.run.mu.Lock()
	defer q.run.mu.Unlock()
	return q.run.stopping.Err() == nil && !q.paused() && !q.slow()
}

// claimArgs are the arguments of a claim.  A lease cannot be attached to a pooler's session.
func (q *consumer) claimArgs(s *session, jobs int) []any {
	return []any{q.name, jobs, givenInterval(q.o.Lease), q.run.w.o.Name, q.attach && s.direct}
}

// begun returns the attempts of claimed jobs.
func (q *consumer) begun(claims []claimed, asked time.Time) []*attempt {
	q.run.mu.Lock()
	defer q.run.mu.Unlock()
	attempts := make([]*attempt, len(claims))
	for n, c := range claims {
		attempts[n] = newAttempt(q, c, asked)
		q.run.running[*c.Token] = attempts[n]
	}
	return attempts
}

// start runs attempts in a slot, and then those that were claimed with their commits.
func (q *consumer) start(attempts []*attempt) {
	r := q.run
	r.mu.Lock()
	q.busy++
	r.mu.Unlock()
	r.spawn(func() {
		defer q.freed()
		var l *link
		if q.inside {
			l = r.slots.acquire()
			defer r.slots.release(l)
			defer l.unlock()
		}
		for attempts = q.runnable(l, attempts); len(attempts) > 0; attempts = q.runnable(l, attempts) {
			if q.inside {
				attempts = q.runInside(l, attempts)
			} else {
				attempts = q.runOutside(attempts[0])
			}
		}
	})
}

// freed notes that a slot is free again.
func (q *consumer) freed() {
	r := q.run
	r.mu.Lock()
	defer r.mu.Unlock()
	q.busy--
	r.ends++
	if r.once { // the job may have added jobs to other queues
		for _, each := range r.queues {
			each.empty = false
		}
	}
	for _, each := range r.sleepers {
		if each == q {
			return // the server is waiting for this queue
		}
	}
	q.empty = false
	signal(r.changed)
}

// runnable gives back the attempts that must not begin, and returns the others.  The link of the slot, if it has one, has perhaps locked them.
func (q *consumer) runnable(l *link, attempts []*attempt) (known []*attempt) {
	var back []*attempt
	delay, why := unknownKind, "there is no handler for its kind"
	if q.run.stopping.Err() != nil {
		back, delay, why = attempts, 0, "the worker is stopping"
	} else {
		for _, a := range attempts {
			if a.handler != nil {
				known = append(known, a)
				continue
			}
			back = append(back, a)
			q.warnOnce(a)
		}
	}
	if len(back) > 0 {
		if l != nil {
			l.unlock()
		}
		q.giveBack(back, delay, why)
	}
	return known
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

// giveBack releases attempts that have not begun.
func (q *consumer) giveBack(attempts []*attempt, delay time.Duration, why string) {
	ids, tokens := pairs(attempts)
	_, err := q.run.side(q.run.over, func(ctx context.Context, s *session) error {
		return s.exec(ctx, releaseManySQL, ids, tokens, givenInterval(delay))
	})
	for _, a := range attempts {
		if err != nil {
			q.ended(a, OutcomeLost, err)
		} else {
			q.ended(a, OutcomeReleased, errors.New(why))
		}
	}
}
