package idemq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	maxReruns = 3
	// quickFirstUse: if a handler uses its transaction within this time, the next job's transaction begins with its claim.
	quickFirstUse = 2 * time.Millisecond
	// slotConnects is the time that jobs wait for the connection of their slot.
	slotConnects = 5 * time.Second

	assertCurrentSQL = `SELECT idemq.assert_current($1::bigint, $2::bigint)`
	// Even behind a pooler, the server must not end a transaction while the handler is busy elsewhere.
	noIdleTimeoutSQL  = `SELECT pg_catalog.set_config('idle_in_transaction_session_timeout', '0', true)`
	commitSQL         = `SELECT idemq.commit($1::bigint, $2::bigint, $3::text::jsonb)::text`
	commitAndClaimSQL = `SELECT ` + jobColumns + ` FROM idemq.commit_and_claim($1::bigint, $2::bigint, $3::text::jsonb, queue => $4::text, max_jobs => $5::int, lease => $6::text::interval, worker => $7::text, attach => $8::boolean)`
	holdClaimedSQL    = `SELECT idemq.hold_claimed()`
)

var (
	errOwnEnd   = errors.New("the handler has ended the transaction in which its job is committed; remove that statement, or use HandleOutside")
	errLeftOpen = errors.New("the handler has ended while a statement was running or a result was open; close its rows")
	errClosed   = errors.New("the handler has closed its connection, which belongs to the worker")
)

// errBatchEnds ends a batch, because one of its jobs must run alone.
type errBatchEnds struct{ what string }

func (e errBatchEnds) Error() string { return "Job." + e.what + " was called" }

// errHandler is the error of a handler, which says nothing about the session or the job.  So it has no Unwrap.
type errHandler struct{ err error }

func (e errHandler) Error() string { return e.err.Error() }

// doneJob is a job whose handler has succeeded.
type doneJob struct {
	attempt *attempt
	result  *string
}

// runInside runs attempts to their end on a link of their slot, and returns those that were claimed with the last commit.  They share a
// transaction, unless one was lost before and may be the cause of a crash.  If the transaction fails, each runs again by itself.
func (q *consumer) runInside(l *link, attempts []*attempt) (next []*attempt) {
	if len(attempts) == 1 || !slices.ContainsFunc(attempts, func(a *attempt) bool { return a.header.Attempt > 1 }) {
		next, alone := q.runTogether(l, attempts, true)
		if !alone {
			return next
		}
	}
	for n := range attempts {
		next, _ = q.runTogether(l, attempts[n:n+1], n == len(attempts)-1)
	}
	return next
}

// runTogether runs attempts in one transaction.  It returns the attempts that it claimed, or alone if each must run again by itself.
func (q *consumer) runTogether(l *link, group []*attempt, claim bool) (next []*attempt, alone bool) {
	r, a := q.run, group[0]
	for count := 1; ; count++ {
		wait := r.over
		if count == 1 && !a.unsure {
			limited, cancel := context.WithTimeout(r.over, slotConnects)
			defer cancel()
			wait = limited
		}
		var t *sharedTx
		err := l.with(wait, func(s *session) (err error) {
			t = &sharedTx{queue: q, session: s, jobs: group, begun: s.held}
			s.held = false
			next, err = t.run(claim, count > 1 || a.unsure)
			return err
		})
		if err == nil {
			for _, each := range group {
				q.ended(each, OutcomeCommitted, nil)
			}
			return next, false
		}
		if t == nil && !a.unsure { // there is no connection, for example because the server accepts no more of them
			q.notConnected(group, err)
			return nil, false
		}
		lost := isLost(err)
		var own errHandler
		if errors.As(err, &own) {
			err, lost = own.err, false
		}
		if len(group) > 1 {
			if ends := (errBatchEnds{}); errors.As(err, &ends) {
				r.log.Info(fmt.Sprintf("idemq: running the %d jobs of a transaction one at a time: %s", len(group), ends), "queue", q.name)
			}
			return nil, true
		}
		switch {
		case a.waits(nil) != nil:
			q.ended(a, OutcomeWaiting, a.waits(nil))
			return nil, false
		case own.err != nil: // whatever the handler's own statements say about this or another job
		case hasState(err, "IQ006") || hasState(err, "IQ002") && a.unsure: // some queues keep no finished jobs
			q.ended(a, OutcomeCommitted, nil)
			return nil, false
		case hasState(err, "IQ001", "IQ002"):
			q.ended(a, OutcomeStale, err)
			return nil, false
		}
		again := lost || hasState(err, "40001", "40P01") && verdictOf(err) == nil
		if again && (a.ctx.Err() == nil || a.unsure) && count <= maxReruns && r.over.Err() == nil {
			sleep(r.over, 20*time.Millisecond*time.Duration(count))
			continue
		}
		q.settle(l, a, err)
		return nil, false
	}
}

// notConnected gives attempts back for which there is no connection.  Other workers may have one.
func (q *consumer) notConnected(group []*attempt, err error) {
	if q.run.once {
		q.run.fail(err)
	}
	q.giveBack(group, 0, "there is no connection for its handler")
	q.pauseFor(time.Second)
}

// sharedTx is the transaction of some jobs on one session.  It begins when a handler first uses it, or has begun when it is created.  The
// mutex of the call that is under way protects it.
type sharedTx struct {
	queue      *consumer
	session    *session
	jobs       []*attempt
	begun      bool
	failed     error // why it could not begin
	usedAt     time.Time
	savepoints int
	// madeApart is whether a method of the job was called.
	madeApart bool
	// misuse is the first mistake of a handler, after which its attempt fails even if it has ignored the error.
	misuse error
}

// misused notes a mistake.
func (t *sharedTx) misused(err error) error {
	if t.misuse == nil {
		t.misuse = err
	}
	return err
}

// begin begins the transaction and locks its jobs.
func (t *sharedTx) begin(ctx context.Context) error {
	if t.begun || t.failed != nil {
		return t.failed
	}
	var b pgx.Batch
	b.Queue("BEGIN")
	if !t.session.direct {
		b.Queue(noIdleTimeoutSQL)
	}
	for _, a := range t.jobs {
		b.Queue(assertCurrentSQL, a.header.ID, a.header.Token)
	}
	t.failed = t.session.batch(ctx, &b)
	t.begun = t.failed == nil
	return t.failed
}

// unlock rolls back a transaction that the worker has begun and the handler has not used, because it has locked the job.
func (t *sharedTx) unlock() {
	if t.begun {
		t.begun = false
		_ = t.session.exec(t.queue.run.over, "ROLLBACK") // if this fails, the session is gone
	}
}

// run calls the handlers, and commits their changes with their jobs.  It returns the attempts that were claimed with the commit.  lock: an
// earlier transaction may have been committed.
func (t *sharedTx) run(claim, lock bool) (next []*attempt, err error) {
	// In the order of ids, like the server's own batches, so that two batches never deadlock.
	t.jobs = slices.Clone(t.jobs)
	slices.SortFunc(t.jobs, func(a, b *attempt) int { return int(min(max(a.header.ID-b.header.ID, -1), 1)) })
	defer func() {
		if err != nil {
			t.rollback()
		}
	}()
	if lock {
		if err := t.begin(t.queue.run.over); err != nil {
			return nil, err
		}
	}
	var done []doneJob
	began := time.Now()
	for _, a := range t.jobs {
		result, err := t.call(a)
		if err != nil {
			return nil, err
		}
		done = append(done, doneJob{a, result})
	}
	quick := !t.usedAt.IsZero() && t.usedAt.Sub(began) < quickFirstUse && !t.madeApart
	return t.commit(done, claim && t.queue.mayClaim(), quick)
}

// call calls one handler.
func (t *sharedTx) call(a *attempt) (*string, error) {
	s, w := t.session, t.session.wire
	w.closing.Store(false)
	w.controlled.Store(false)
	s.aborting.Store(nil)
	result, err := a.call(t)
	if s.abandoned {
		return nil, errHandler{err}
	}
	w.lent.Store(false)
	status, aborting := s.conn.PgConn().TxStatus(), s.aborting.Load()
	switch {
	case t.failed != nil:
		return nil, t.failed
	case t.misuse != nil:
		err = t.misuse
	case w.closing.Load():
		err = errClosed
	case s.gone() && err != nil:
		return nil, err
	case s.conn.PgConn().IsBusy():
		s.kill()
		err = cmp.Or(err, errLeftOpen)
	case w.controlled.Load() || t.begun && status == 'I':
		err = errOwnEnd
	case err == nil && a.waits(nil) != nil:
		err = a.waits(nil)
	case err == nil && t.begun && status == 'E':
		err = fmt.Errorf("the handler has ignored an error, which has aborted its transaction: %w", aborting)
	case t.begun && status == 'E' && verdictOf(err) == nil && hasState(aborting, "40001", "40P01") && !hasState(err, "40001", "40P01"):
		err = errors.Join(err, aborting)
	}
	if err != nil {
		return nil, errHandler{err}
	}
	return result, nil
}

// rollback rolls back what the handlers have done.
func (t *sharedTx) rollback() {
	s := t.session
	switch {
	case s.abandoned: // the handler may still use the connection, which was closed
	case s.wire.closing.Load():
		s.kill()
	case !s.gone() && s.conn.PgConn().TxStatus() != 'I':
		ctx, cancel := context.WithTimeout(t.queue.run.over, answerTimeout)
		defer cancel()
		if s.exec(ctx, "ROLLBACK") != nil {
			s.kill()
		}
	}
}

// commit completes jobs in their transaction, and claims the next ones.  hold: if the next one is a single job, its transaction begins.
func (t *sharedTx) commit(done []doneJob, claim, hold bool) ([]*attempt, error) {
	q, s := t.queue, t.session
	asked := time.Now()
	var b pgx.Batch
	var claims []claimed
	committed, held := false, ""
	if !t.begun {
		b.Queue("BEGIN")
	}
	for n, d := range done {
		args := []any{d.attempt.header.ID, d.attempt.header.Token, d.result}
		if n < len(done)-1 || !claim {
			b.Queue(commitSQL, args...)
			continue
		}
		b.Queue(commitAndClaimSQL, append(args, q.claimArgs(s, q.batch())...)...).Query(func(rows pgx.Rows) (err error) {
			claims, err = pgx.CollectRows(rows, pgx.RowToStructByPos[claimed])
			return err
		})
	}
	b.Queue("COMMIT").Exec(func(tag pgconn.CommandTag) error {
		if committed = tag.String() == "COMMIT"; !committed {
			return errors.New("the transaction was rolled back")
		}
		return nil
	})
	hold = hold && claim && s.direct && s.canHold && q.batch() == 1
	if hold {
		b.Queue("BEGIN")
		b.Queue(holdClaimedSQL).QueryRow(func(row pgx.Row) error { return row.Scan(&held) })
	}
	was := done[0].attempt.unsure
	for _, d := range done {
		d.attempt.unsure = true
	}
	err := s.batch(q.run.over, &b)
	if !committed {
		if sqlState(err) != "" && !s.broken(err) {
			for _, d := range done {
				d.attempt.unsure = was
			}
		}
		if t.begun && hasState(err, "IQ006") { // while the job was locked, only its handler can have ended it
			return nil, errHandler{fmt.Errorf("the handler has ended its own job; let the worker end it, or use HandleOutside: %v", err)}
		}
		return nil, err
	}
	// The jobs are committed, whatever the other answers are.
	s.held = held == "held" && len(claims) == 1
	if err != nil || hold && !s.held {
		t.rollback()
	}
	return q.begun(claims, asked), nil
}
