package idemq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	maxReruns = 3
	// quickFirstUse: if a handler uses its transaction within this time, the next job's transaction begins with its claim.
	quickFirstUse = 2 * time.Millisecond
	// slotConnects is the time that jobs wait for the connection of their slot.
	slotConnects = 3 * time.Second

	commitSQL              = `SELECT idemq.commit($1::bigint, $2::bigint, $3::text::jsonb)::text`
	commitAndClaimSQL      = `SELECT ` + jobColumns + ` FROM idemq.commit_and_claim($1::bigint, $2::bigint, $3::text::jsonb, queue => $4::text, max_jobs => $5::int, lease => $6::text::interval, worker => $7::text, attach => $8::boolean)`
	commitManySQL          = `SELECT outcome::text, id, token FROM idemq.commit_many($1::text::bigint[], $2::text::bigint[], $3::text::jsonb[])`
	commitManyAndClaimSQL  = `SELECT outcome::text, ` + jobColumns + ` FROM idemq.commit_many_and_claim($1::text::bigint[], $2::text::bigint[], $3::text::jsonb[], queue => $4::text, max_jobs => $5::int, lease => $6::text::interval, worker => $7::text, attach => $8::boolean)`
	holdClaimedSQL         = `SELECT idemq.hold_claimed()`
	handlerEndedOwnTx      = "the handler has ended the transaction in which its job is committed; remove that statement, or use HandleOutside"
	handlerLeftResultsOpen = "the handler has ended while a statement was running or a result was open; close its rows"
)

// slot runs one transaction at a time, on a connection of its own.
type slot struct {
	link *link
	// quick is whether the last handler used its transaction at once.
	quick bool
	// locked is the session that is in a transaction and has locked the last claimed job.
	locked *session
	// givenUp is a session that was given up during a transaction.
	givenUp *session
}

// unlock ends the transaction that has locked the last claimed job, which is given back over another connection: that would wait for it.
func (own *slot) unlock(r *run) {
	s := own.locked
	own.locked = nil
	if s != nil {
		_ = own.link.with(r.over, func(now *session) error {
			if now != s {
				return nil // its transaction has ended with it
			}
			return s.exec(r.over, "ROLLBACK")
		})
	}
}

// slots are the slots of all queues of a worker.  Each has a connection, which is opened when it is first needed.
type slots struct {
	server *server
	mu     sync.Mutex
	idle   []*slot
	all    []*slot
}

func (p *slots) acquire() *slot {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.idle); n > 0 {
		s := p.idle[n-1]
		p.idle = p.idle[:n-1]
		return s
	}
	s := &slot{link: newLink(p.server, true)}
	p.all = append(p.all, s)
	return s
}

func (p *slots) release(s *slot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = append(p.idle, s)
}

func (p *slots) links() (links []*link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.all {
		links = append(links, s.link)
	}
	return links
}

// errSettled is an answer about the job itself, after which its transaction must roll back.
type errSettled struct{ state string }

func (e errSettled) Error() string { return e.state }

// errHandler is the error of a handler, which says nothing about the session.
type errHandler struct{ err error }

func (e errHandler) Error() string { return e.err.Error() }

// settledBy returns the meaning for the job of an error of the worker's own statement, or nil.
func settledBy(err error) error {
	if errors.As(err, new(errSettled)) {
		return err
	}
	if aboutJob(err) {
		return errSettled{sqlState(err)}
	}
	return nil
}

// doneJob is a job whose handler has succeeded.
type doneJob struct {
	attempt *attempt
	result  *string
}

// connectSlot reports whether attempts can run in a slot.  If its connection cannot be opened although the worker has one, for example
// because the server accepts no more of them, other workers get the jobs.  The slot takes no job until it is connected.
func (q *consumer) connectSlot(own *slot, attempts []*attempt) bool {
	r := q.run
	if own.link.connected() || r.once {
		return true
	}
	opened := make(chan struct{})
	go func() {
		defer close(opened)
		_ = own.link.with(r.stopping, func(*session) error { return nil })
	}()
	for {
		select {
		case <-opened:
			return true
		case <-r.over.Done():
			<-opened
			return true
		case <-time.After(slotConnects):
			if r.control.connected() {
				q.giveBack(attempts, 0, "there is no connection for its handler")
				<-opened
				return false
			}
		}
	}
}

// runInside runs attempts to their end, and returns those that were claimed with the last commit.
func (q *consumer) runInside(own *slot, attempts []*attempt) []*attempt {
	if !q.connectSlot(own, attempts) {
		return nil
	}
	// A job that was lost before may be the cause of a crash, so it runs alone.
	var groups [][]*attempt
	var first []*attempt
	for _, a := range attempts {
		if a.header.Attempt > 1 {
			groups = append(groups, []*attempt{a})
		} else {
			first = append(first, a)
		}
	}
	if len(first) > 0 {
		groups = append(groups, first)
	}
	for len(groups) > 0 {
		group := groups[0]
		groups = groups[1:]
		next, alone := q.runGroup(own, group, len(groups) == 0)
		if !alone && len(groups) == 0 {
			return next
		}
		if alone {
			groups = slices.Concat(slices.Collect(slices.Chunk(group, 1)), groups)
		}
		var left [][]*attempt
		for _, each := range groups { // this one may have been the tenth failure
			if each = q.unheld(own, each); len(each) > 0 {
				left = append(left, each)
			}
		}
		groups = left
	}
	return nil
}

// runGroup runs attempts in one transaction.  It returns the attempts that it claimed, or alone if each must run again by itself.
func (q *consumer) runGroup(in *slot, group []*attempt, claim bool) (next []*attempt, alone bool) {
	r, a := q.run, group[0]
	// Whether COMMIT was sent but not answered.  Then only assert_current can tell the outcome.
	unsure := slices.ContainsFunc(group, func(a *attempt) bool { return a.isCommitSent() })
	for count := 1; ; count++ {
		var done []doneJob
		begun := false
		err := in.link.with(r.over, func(s *session) (err error) {
			begun = true
			next, done, err = q.transact(s, in, group, claim, count > 1 || unsure)
			return err
		})
		if err == nil {
			if done != nil {
				wants := 0
				if claim {
					wants = q.batchNow()
				}
				return q.group.commit(done, wants, in.link), false
			}
			for _, each := range group {
				q.ended(each, OutcomeCommitted, "")
			}
			return next, false
		}
		cut := begun && isLost(err)
		var own errHandler
		if errors.As(err, &own) {
			err, cut = own.err, false
		}
		if len(group) > 1 {
			var ends errBatchEnds
			if errors.As(err, &ends) {
				r.log.Info(fmt.Sprintf("idemq: running the %d jobs of a transaction one at a time: %s", len(group), ends), "queue", q.name)
			}
			return nil, true
		}
		if get(a, func() bool { return a.released }) {
			q.ended(a, OutcomeWaiting, a.waiting.text)
			return nil, false
		}
		var settled errSettled
		if errors.As(err, &settled) {
			// In a queue that keeps no finished jobs, a completed job does not exist any more.
			if settled.state == "IQ006" || settled.state == "IQ002" && unsure {
				q.ended(a, OutcomeCommitted, "")
			} else {
				q.endStale(in.link, a, OutcomeStale, nil, "")
			}
			return nil, false
		}
		if cut {
			unsure = unsure || a.isCommitSent()
		} else if sqlState(err) != "" {
			a.setCommitSent(unsure)
		}
		why, _ := a.stopReason()
		again := cut || hasState(err, "40001", "40P01") && verdictOf(err) == nil
		if again && (why == nil || a.isCommitSent()) && count <= maxReruns && r.over.Err() == nil {
			sleep(r.over, 20*time.Millisecond*time.Duration(count))
			continue
		}
		q.endInside(in, a, err)
		return nil, false
	}
}

// endInside reports the end of an attempt whose transaction was rolled back.
func (q *consumer) endInside(own *slot, a *attempt, err error) {
	if s := own.givenUp; s != nil {
		own.givenUp = nil
		q.run.endBackend(own.link, s)
	}
	if lost, ok := err.(errLost); ok {
		err = lost.error
	}
	q.settle(own.link, a, err)
}

// transact calls the handlers, and commits their changes with their jobs.  It returns the attempts that were claimed with the commit or, if
// the handlers have no changes to commit, done.
func (q *consumer) transact(s *session, own *slot, group []*attempt, claim, lock bool) (next []*attempt, done []doneJob, err error) {
	// In the order of ids, like the server's own batches, so that two batches never deadlock.
	jobs := slices.Clone(group)
	slices.SortFunc(jobs, func(a, b *attempt) int { return int(min(max(a.header.ID-b.header.ID, -1), 1)) })
	t := &sharedTx{run: q.run, session: s, jobs: jobs, begun: own.locked == s, turn: make(chan struct{}, 1)}
	own.locked = nil
	if lock || slices.ContainsFunc(jobs, func(a *attempt) bool { return get(a, func() bool { return a.lost }) }) {
		// The lease may have ended; only the server knows.
		if err := t.begin(q.run.over); err != nil {
			return nil, nil, q.rollback(t, own, false, err)
		}
	}
	began := time.Now()
	for _, a := range jobs {
		result, err, abandoned := q.callInside(t, a)
		if err != nil {
			return nil, nil, q.rollback(t, own, abandoned, errHandler{err})
		}
		done = append(done, doneJob{a, result})
	}
	t.mu.Lock()
	own.quick = t.apartCalls == 0 && !t.usedAt.IsZero() && t.usedAt.Sub(began) < quickFirstUse
	t.over = true
	t.mu.Unlock()
	if !t.touched() {
		return nil, done, nil
	}
	if next, err = q.commit(s, own, done, claim); err != nil {
		return nil, nil, q.rollback(t, own, false, err)
	}
	return next, nil, nil
}

// callInside calls one handler.
func (q *consumer) callInside(t *sharedTx, a *attempt) (*string, error, bool) {
	a.restart()
	h := &handling{attempt: a, shared: t}
	socket := t.session.socket
	socket.closing.Store(false)
	socket.controlled.Store(false)
	socket.lent.Store(true)
	result, err, abandoned := a.call(h)
	if abandoned {
		q.run.abandon(a)
		return nil, err, true
	}
	closing, controlled := socket.closing.Load(), socket.controlled.Load()
	socket.lent.Store(false)
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.failed != nil:
		return nil, t.failed, false
	case t.misuse != nil:
		return nil, t.misuse, false
	case closing:
		return nil, errors.New("the handler has closed its connection, which belongs to the worker"), t.open > 0
	case t.open > 0:
		if err == nil {
			err = errors.New(handlerLeftResultsOpen)
		}
		return nil, err, true
	case controlled || t.begun && !t.session.gone() && t.session.conn.PgConn().TxStatus() == 'I':
		return nil, errors.New(handlerEndedOwnTx), false
	}
	if err == nil {
		if v := get(a, func() *verdict { return a.waiting }); v != nil {
			err = v
		}
	}
	if t.begun && !t.session.gone() && t.session.conn.PgConn().TxStatus() == 'E' && t.aborting != nil && verdictOf(err) == nil {
		if err == nil {
			err = fmt.Errorf("the handler has ignored an error, which has aborted its transaction: %w", t.aborting)
		} else if hasState(t.aborting, "40001", "40P01") && !hasState(err, "40001", "40P01") {
			err = errors.Join(err, t.aborting)
		}
	}
	return result, err, false
}

// rollback rolls back, and returns the error that counts.
func (q *consumer) rollback(t *sharedTx, own *slot, abandoned bool, err error) error {
	s := t.session
	t.mu.Lock()
	t.over = true
	touched := t.begun || t.failed != nil
	if of, ok := err.(errHandler); ok && (s.gone() && !abandoned || s.broken(t.aborting)) {
		err = of.err
	}
	t.mu.Unlock()
	switch {
	case abandoned:
		// The handler may still use the connection.
		if s.direct {
			own.givenUp = s
		}
		s.abandoned = true
		s.kill()
		t.closeResults()
	case s.socket.closing.Load():
		s.kill()
	case touched && !s.gone():
		ctx, cancel := context.WithTimeout(q.run.over, answerTimeout)
		defer cancel()
		if s.exec(ctx, "ROLLBACK") != nil {
			s.kill()
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failed != nil {
		if settled := settledBy(t.failed); settled != nil {
			return settled
		}
		return t.failed
	}
	return err
}

// commit completes jobs in their transaction, and claims the next ones.
func (q *consumer) commit(s *session, own *slot, done []doneJob, claim bool) (next []*attempt, err error) {
	more := claim && q.mayClaim()
	if len(done) > 1 {
		return q.commitMany(s, done, more)
	}
	a := done[0].attempt
	hold := more && own.quick && s.direct && s.canHold && q.batchNow() == 1
	asked := time.Now()
	var b pgx.Batch
	if more {
		b.Queue(commitAndClaimSQL, append([]any{a.header.ID, a.header.Token, done[0].result}, q.claimArgs(s, q.batchNow())...)...)
	} else {
		b.Queue(commitSQL, a.header.ID, a.header.Token, done[0].result)
	}
	b.Queue("COMMIT")
	if hold {
		b.Queue("BEGIN")
		b.Queue(holdClaimedSQL)
	}
	a.setCommitSent(true)
	answers := s.batch(q.run.over, &b)
	claims, err := readCommit(answers, more)
	if err != nil {
		_ = answers.Close()
		switch {
		case hasState(err, "IQ006"): // while the job was locked, only its handler can have ended it
			return nil, fmt.Errorf("the handler has ended its own job; let the worker end it, or use HandleOutside: %v", err)
		case settledBy(err) != nil:
			return nil, settledBy(err)
		}
		return nil, err
	}
	// The job is committed, whatever the other answers are.
	next = q.begun(claims, asked, s)
	held := "none"
	if hold {
		held = "busy"
		if _, err = answers.Exec(); err == nil {
			err = answers.QueryRow().Scan(&held)
		}
	}
	if closed := answers.Close(); err == nil {
		err = closed
	}
	switch {
	case err != nil && s.broken(err):
		s.kill()
	case held == "held" && len(next) == 1:
		own.locked = s
	case hold:
		if s.exec(q.run.over, "ROLLBACK") != nil {
			s.kill()
		}
	}
	if held == "gone" {
		for _, each := range next {
			each.mu.Lock()
			each.lost = true
			each.mu.Unlock()
		}
	}
	return next, nil
}

// readCommit reads the answers to commit and COMMIT.
func readCommit(answers pgx.BatchResults, more bool) (claims []*claimed, err error) {
	if more {
		var rows pgx.Rows
		if rows, err = answers.Query(); err == nil {
			claims, err = pgx.CollectRows(rows, scanClaimed)
		}
	} else {
		_, err = answers.Exec()
	}
	if err != nil {
		return nil, typed(err)
	}
	tag, err := answers.Exec()
	if err == nil && tag.String() != "COMMIT" {
		err = errors.New("the transaction was rolled back")
	}
	return claims, typed(err)
}

// commitMany completes the jobs of a batch.
func (q *consumer) commitMany(s *session, done []doneJob, more bool) ([]*attempt, error) {
	asked := time.Now()
	outcomes, claims, err := q.sendCommitMany(q.run.over, s, done, more, q.batchNow())
	if err != nil {
		return nil, err
	}
	for _, outcome := range outcomes {
		if outcome != "committed" {
			return nil, errSettled{map[string]string{"already_committed": "IQ006", "not_found": "IQ002"}[outcome]}
		}
	}
	for _, each := range done {
		each.attempt.setCommitSent(true)
	}
	tag, err := s.conn.Exec(q.run.over, "COMMIT", s.args(nil)...)
	if err == nil && tag.String() != "COMMIT" {
		err = errors.New("the transaction was rolled back")
	}
	if err != nil {
		return nil, err
	}
	return q.begun(claims, asked, s), nil
}

// sendCommitMany completes jobs with one statement, which also claims the next ones.  It returns outcomes by token.
func (q *consumer) sendCommitMany(ctx context.Context, s *session, done []doneJob, more bool, jobs int) (outcomes map[int64]string, claims []*claimed, err error) {
	ids, tokens := array(done, func(d doneJob) any { return d.attempt.header.ID }), array(done, func(d doneJob) any { return d.attempt.header.Token })
	args := []any{ids, tokens, array(done, func(d doneJob) any { return d.result })}
	sql := commitManySQL
	if more {
		sql = commitManyAndClaimSQL
		args = append(args, q.claimArgs(s, jobs)...)
	}
	rows, err := s.query(ctx, sql, args...)
	if err != nil {
		return nil, nil, typed(err)
	}
	defer rows.Close()
	outcomes = map[int64]string{}
	for rows.Next() {
		var outcome string
		c := new(claimed)
		dest := []any{&outcome, &c.id, &c.token}
		if more {
			dest = c.dest(&outcome)
		}
		if err := rows.Scan(dest...); err != nil {
			return nil, nil, err
		}
		if outcome == "claimed" {
			claims = append(claims, c)
		} else {
			outcomes[*c.token] = outcome
		}
	}
	return outcomes, claims, typed(rows.Err())
}
