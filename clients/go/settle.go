package idemq

import (
	"context"
	"errors"
	"time"
)

const (
	failSQL    = `SELECT idemq.fail($1::bigint, $2::bigint, $3::text, retry_in => $4::text::interval, permanent => $5::boolean, details => $6::text::jsonb)::text`
	releaseSQL = `SELECT idemq.release($1::bigint, $2::bigint, $3::text::interval)::text`
	// Ends the attempt of a job that asked for a hold.  The first 100 such attempts in a row do not count.
	giveBackSQL = `SELECT (CASE WHEN (SELECT count(*) FROM (SELECT a.outcome FROM idemq.attempts a WHERE a.job_id = $1::bigint ORDER BY a.token DESC LIMIT 100) l
      WHERE l.outcome = 'released') < 100 THEN idemq.release($1::bigint, $2::bigint, $3::text::interval)
    ELSE idemq.fail($1::bigint, $2::bigint, $4::text, retry_in => $3::text::interval) END)::text`
	// Ends an attempt that has lost its connection to the server.  The first three such attempts in a row do not count.
	giveBackLostSQL = `SELECT (CASE WHEN (SELECT count(*) FROM (SELECT a.outcome FROM idemq.attempts a WHERE a.job_id = $1::bigint ORDER BY a.token DESC LIMIT 3) l
      WHERE l.outcome = 'released') < 3 THEN idemq.release($1::bigint, $2::bigint, '1 s')
    ELSE idemq.fail($1::bigint, $2::bigint, $3::text, details => $4::text::jsonb) END)::text`
	// Holds back, then ends the attempt, in one transaction.
	holdBackSQL = `WITH held AS MATERIALIZED (SELECT idemq.hold_back($1::bigint, $2::bigint,
    least($3::text::interval, (SELECT nullif(q.max_hold_back, '0') FROM idemq.jobs j JOIN idemq.queues q USING (queue_id) WHERE j.id = $1::bigint)), scope => $5::text))
  ` + giveBackSQL + ` FROM held`
	// The state of a job after its lease was lost: whether no other attempt has begun, and how the attempt has ended itself.
	becameSQL = `SELECT j.status::text, j.token = $2::bigint, coalesce(a.error, j.last_error),
    CASE WHEN a.outcome IN ('failed', 'committed') OR (a.outcome = 'released' AND a.error IS NULL) THEN a.outcome::text END
  FROM idemq.job($1::bigint) AS j LEFT JOIN idemq.attempts AS a ON a.job_id = j.id AND a.token = $2::bigint`
)

// settle reports the outcome of an attempt whose handler has failed.
func (q *consumer) settle(link *link, a *attempt, err error) {
	why, reason := a.stopReason()
	if v := get(a, func() *verdict { return a.waiting }); v != nil && why == nil {
		err = v // whatever the handler did afterwards
	}
	v := verdictOf(err)
	if v != nil && v.kind == refused {
		v = nil // an error like any other
	}
	// An error caused by the end of the context is not the job's failure, except at its timeout.
	if why != nil && v == nil {
		err = reason
	}
	s := &settlement{q, link, a, err, v, why}
	outcome, failed, asked := s.ask()
	if asked != nil && (hasState(asked, "22") && !isLost(asked)) {
		// A value is invalid, or the server's encoding lacks a character.
		failed = true
		outcome, asked = s.fail(ascii(textOf(err)+" (and: "+textOf(asked)+")"), nil, v != nil && v.kind == dead, nil)
	}
	if asked != nil {
		if failed {
			q.failed(a, err, OutcomeLost, true)
		}
		q.ended(a, OutcomeLost, textOf(asked))
		return
	}
	var failure error
	if failed {
		failure = err
	}
	switch outcome {
	case OutcomeStale, OutcomeNotFound:
		q.endStale(link, a, outcome, failure, textOf(err))
	case OutcomeCancelled: // an open transaction is cancelling the job; if it is rolled back, the attempt ends as released
		q.endStale(link, a, OutcomeStale, failure, textOf(err))
	default:
		if failed {
			q.failed(a, err, outcome, outcome != OutcomeDead)
		}
		q.ended(a, outcome, textOf(err))
	}
}

// settlement is the end of an attempt whose handler has failed.
type settlement struct {
	q    *consumer
	link *link
	a    *attempt
	err  error
	v    *verdict
	why  error
}

// ask sends the statement that ends the attempt.
func (s *settlement) ask() (outcome Outcome, failed bool, err error) {
	if outcome, err := s.keepEvents(); outcome != "" || err != nil {
		return outcome, false, err
	}
	text := textOf(s.err)
	id, token := s.a.header.ID, s.a.header.Token
	v := s.v
	if v == nil {
		v = &verdict{kind: retryLater, delay: -1}
		switch {
		case s.why != nil && s.why != ErrTimeout:
			v = &verdict{kind: snooze}
		case !s.q.inside && serverLost(s.err, s.q.run.main, s.a.claimedAt):
			outcome, err = s.send(giveBackLostSQL, id, token, text, detailsOf(s.err))
			return outcome, outcome != OutcomeReleased, err
		}
	}
	switch v.kind {
	case waiting:
		outcome, err = s.await(v.event, v.delay)
		if outcome == "arrived" || outcome == "timed_out" {
			outcome, err = s.send(releaseSQL, id, token, nil)
		}
		return outcome, false, err
	case snooze:
		var delay any
		if v.exact != "" {
			delay = v.exact
		} else if v.delay > 0 {
			delay = interval(v.delay)
		}
		outcome, err = s.send(releaseSQL, id, token, delay)
		return outcome, false, err
	case holdBack:
		outcome, err = s.send(holdBackSQL, id, token, interval(v.delay), ascii(text), given(string(v.scope)))
		if hasState(err, "22") { // the server refuses the hold
			outcome, err = s.send(giveBackSQL, id, token, interval(v.delay), ascii(text))
		}
		return outcome, outcome == OutcomeRetrying || outcome == OutcomeDead, err
	}
	var delay any
	if v.kind == retryLater && v.delay >= 0 {
		delay = interval(v.delay)
	}
	outcome, err = s.fail(text, delay, v.kind == dead, detailsOf(s.err))
	return outcome, true, err
}

func (s *settlement) fail(text string, delay any, permanent bool, details any) (Outcome, error) {
	return s.send(failSQL, s.a.header.ID, s.a.header.Token, text, delay, permanent, details)
}

// send runs a statement, which may be repeated, and returns its outcome.
func (s *settlement) send(sql string, args ...any) (outcome Outcome, err error) {
	_, err = s.link.repeat(s.q.run.over, func(ctx context.Context, own *session) error {
		return own.row(ctx, sql, args...).Scan(&outcome)
	})
	if aboutJob(err) {
		return OutcomeStale, nil
	}
	return outcome, err
}

// await records a wait again, because it was undone with the handler's transaction.
func (s *settlement) await(name string, timeout time.Duration) (outcome Outcome, err error) {
	return s.send(`SELECT outcome FROM idemq.await_event($1::bigint, $2::bigint, $3::text, $4::text::interval)`, s.a.header.ID, s.a.header.Token, name, interval(timeout))
}

// keepEvents records again the events that the handler has received, which was also undone.  Otherwise they might be deleted before the
// next attempt.  It returns the outcome of the attempt if this has ended it.
func (s *settlement) keepEvents() (Outcome, error) {
	if !s.q.inside {
		return "", nil
	}
	for _, each := range get(s.a, func() []awaited { return s.a.arrived }) {
		if outcome, err := s.await(each.name, each.timeout); err != nil || outcome != "arrived" {
			return outcome, err
		}
	}
	return "", nil
}

// became is the state of a job after its lease was lost.
type became struct {
	status        Status
	last          bool
	err, own      *string
	found, failed bool
}

// endStale ends an attempt that the server calls stale or does not know.  It asks for the state of the job, so that the true outcome is
// counted, logged and reported.  err is the error of an attempt that has failed.
func (q *consumer) endStale(link *link, a *attempt, outcome Outcome, err error, text string) {
	var b became
	_, asked := link.repeat(q.run.over, func(ctx context.Context, s *session) error {
		return s.row(ctx, becameSQL, a.header.ID, a.header.Token).Scan(&b.status, &b.last, &b.err, &b.own)
	})
	b.found, b.failed = asked == nil, asked != nil && !noRows(asked)
	finished := !b.found || b.status == StatusCompleted || b.status == StatusDead || b.status == StatusCancelled
	report := func(outcome Outcome, willRetry bool) {
		if err != nil {
			q.failed(a, err, outcome, willRetry)
		}
	}
	switch {
	case b.failed:
		report(outcome, true)
		q.ended(a, outcome, text)
	case b.last && b.status == StatusCompleted && a.isCommitSent():
		q.ended(a, OutcomeCommitted, "")
	case b.last && b.status == StatusDead:
		if err == nil {
			if _, err = a.stopReason(); err == nil {
				err = errors.New(or(deref(b.err), "the lease was lost"))
			}
		}
		q.failed(a, err, OutcomeDead, false)
		q.ended(a, OutcomeDead, or(deref(b.err), text))
	case b.own != nil && !q.inside:
		report(OutcomeRetrying, !finished)
		ended := Outcome(*b.own)
		if ended == "failed" {
			ended = OutcomeRetrying
		}
		q.ended(a, ended, "the handler has ended the attempt itself")
	default:
		report(outcome, !finished)
		q.ended(a, outcome, b.text()+ifGiven("; this attempt: ", text))
	}
}

func ifGiven(before, text string) string {
	if text == "" {
		return ""
	}
	return before + text
}

// text says what has become of the job.
func (b *became) text() string {
	switch {
	case !b.found:
		return "the job no longer exists"
	case b.status == StatusCancelled:
		return "the job was cancelled"
	case b.status == StatusCompleted:
		return "another attempt has completed the job"
	case b.status == StatusDead:
		return "another attempt has failed, and the job is dead"
	case b.last:
		return "the job was reclaimed, and will be tried again" + ifGiven(": ", deref(b.err))
	}
	return "another attempt is running"
}
