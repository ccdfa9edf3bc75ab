package idemq

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	commitManySQL = `SELECT outcome::text, id, token, NULL::int, NULL::int, NULL::text, NULL::text, NULL::text, NULL::text, NULL::bigint, NULL::text, NULL::text
  FROM idemq.commit_many($1::text::bigint[], $2::text::bigint[], $3::text::jsonb[])`
	commitManyAndClaimSQL = `SELECT outcome::text, ` + jobColumns + `
  FROM idemq.commit_many_and_claim($1::text::bigint[], $2::text::bigint[], $3::text::jsonb[], queue => $4::text, max_jobs => $5::int, lease => $6::text::interval, worker => $7::text, attach => $8::boolean)`
)

// errUnencodable is the error of an outside handler whose result cannot be encoded.
type errUnencodable struct{ error }

// runOutside runs an attempt without a transaction, and returns the one that was claimed with its commit.
func (q *consumer) runOutside(a *attempt) []*attempt {
	result, err := a.call(nil)
	if waits := a.waits(nil); waits != nil { // whatever the handler has returned
		q.ended(a, OutcomeWaiting, waits)
		return nil
	}
	if errors.As(err, new(errUnencodable)) { // the effect has already happened
		a.log().Warn("idemq: the job is completed without a result, because of an error", "error", err)
		err = nil
	}
	if err != nil {
		q.settle(nil, a, err)
		return nil
	}
	return q.group.commit(q, doneJob{a, result})
}

// groupCommit completes the jobs of outside handlers, several in one statement, which also claims the next jobs.  While the server executes
// one, others end.  If it is repeated after a lost answer, the outcome is already_committed.
type groupCommit struct {
	mu      sync.Mutex
	waiting []endedJob
	running bool
}

// endedJob is a job whose handler waits for its commit, and for the next job.
type endedJob struct {
	doneJob
	next chan []*attempt
}

// commit completes a job, and returns the one that the same statement has claimed.
func (g *groupCommit) commit(q *consumer, done doneJob) []*attempt {
	e := endedJob{done, make(chan []*attempt, 1)}
	g.mu.Lock()
	g.waiting = append(g.waiting, e)
	leads := !g.running
	g.running = true
	g.mu.Unlock()
	if leads {
		q.run.wg.Add(1)
		go g.lead(q)
	}
	return <-e.next
}

// lead commits until no job has ended.
func (g *groupCommit) lead(q *consumer) {
	defer q.run.wg.Done()
	for {
		runtime.Gosched() // jobs that end now are included
		g.mu.Lock()
		ended := g.waiting
		g.waiting = nil
		g.running = len(ended) > 0
		g.mu.Unlock()
		if len(ended) == 0 {
			return
		}
		done := make([]doneJob, len(ended))
		for n, e := range ended {
			done[n] = e.doneJob
		}
		next := q.commitMany(done, len(done))
		for n, e := range ended {
			e.next <- next[min(n, len(next)):min(n+1, len(next))]
		}
	}
}

// commitMany completes jobs, and claims others.
func (q *consumer) commitMany(done []doneJob, claim int) (next []*attempt) {
	for count := 1; ; count++ {
		next, err := q.sendCommitMany(done, claim)
		switch {
		case err == nil:
			return next
		case hasState(err, "40001", "40P01") && count <= maxReruns:
			continue
		case hasState(err, "22", "54") && claim > 0: // perhaps the server cannot send the next job, and has not refused a result
			return q.commitMany(done, 0)
		case hasState(err, "22", "54") && len(done) > 1:
			for _, d := range done {
				q.commitMany([]doneJob{d}, 0)
			}
		case hasState(err, "22", "54") && done[0].result != nil: // the effect has already happened
			done[0].attempt.log().Warn("idemq: the job is completed without a result, because of an error", "error", err)
			q.commitMany([]doneJob{{done[0].attempt, nil}}, 0)
		default:
			for _, d := range done {
				q.ended(d.attempt, OutcomeLost, err)
			}
		}
		return nil
	}
}

// endedRow is a job that was completed, or one that was claimed.
type endedRow struct {
	Outcome Outcome
	claimed
}

func (q *consumer) sendCommitMany(done []doneJob, claim int) (next []*attempt, err error) {
	args := []any{
		array(done, func(d doneJob) any { return d.attempt.header.ID }), array(done, func(d doneJob) any { return d.attempt.header.Token }),
		array(done, func(d doneJob) any { return givenText(d.result) }),
	}
	outcomes := map[int64]Outcome{}
	again, err := q.run.side(q.run.over, func(ctx context.Context, s *session) error {
		sql, args := commitManySQL, args
		if claim > 0 && q.mayClaim() {
			sql, args = commitManyAndClaimSQL, append(args, q.claimArgs(s, claim)...)
		}
		asked := time.Now()
		rows, err := s.query(ctx, sql, args...)
		if err != nil {
			return err
		}
		answers, err := pgx.CollectRows(rows, pgx.RowToStructByPos[endedRow])
		if err != nil {
			return err
		}
		var claims []claimed
		for _, row := range answers {
			if row.Outcome == "claimed" {
				claims = append(claims, row.claimed)
			} else {
				outcomes[*row.Token] = row.Outcome
			}
		}
		next = q.begun(claims, asked)
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, d := range done {
		outcome := outcomes[d.attempt.header.Token]
		// In a queue that keeps no finished jobs, a completed job does not exist any more.
		if outcome == "already_committed" || outcome == OutcomeNotFound && again {
			outcome = OutcomeCommitted
		}
		q.ended(d.attempt, outcome, nil)
	}
	return next, nil
}
