package idemq

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"
)

// splitFrom: if at least this many jobs end at once, they are completed with two statements.  While the server executes one, the handlers of
// the other run.
const splitFrom = 32

// runOutside runs an attempt without a transaction, and returns the one that was claimed with its commit.
func (q *consumer) runOutside(a *attempt) []*attempt {
	a.restart()
	result, err, abandoned := a.call(&handling{attempt: a})
	if abandoned {
		q.run.abandon(a)
	}
	waits, released := get(a, func() *verdict { return a.waiting }), get(a, func() bool { return a.released })
	if waits != nil && released {
		q.ended(a, OutcomeWaiting, waits.text) // whatever the handler has returned
		return nil
	}
	if unencodable, ok := err.(errUnencodable); ok { // the effect has already happened
		a.log().Warn("idemq: the job is completed without a result, because of an error", "error", unencodable.error)
		err = nil
	}
	if err != nil {
		q.settle(a.outsideLink, a, err)
		return nil
	}
	return q.group.commit([]doneJob{{a, result}}, 1, nil)
}

// groupCommit completes jobs whose handlers have no transaction, several in one statement, which also claims the next jobs.  If it is
// repeated after a lost answer, the outcome is already_committed.
type groupCommit struct {
	queue      *consumer
	mu         sync.Mutex
	ended      []*endedJobs
	committing int
}

// endedJobs are jobs that end together.
type endedJobs struct {
	done  []doneJob
	wants int // jobs to claim next
	link  *link
	next  chan []*attempt
}

// commit completes these jobs, and returns those that the same statement has claimed.  link is idle.
func (g *groupCommit) commit(done []doneJob, wants int, link *link) []*attempt {
	e := &endedJobs{done, wants, link, make(chan []*attempt, 1)}
	g.mu.Lock()
	g.ended = append(g.ended, e)
	begin := g.committing == 0 || g.committing == 1 && link == nil && len(g.ended) >= splitFrom
	if begin {
		g.committing++
		g.queue.run.wg.Add(1)
	}
	g.mu.Unlock()
	if begin {
		go g.commitAll(link == nil)
	}
	return <-e.next
}

// commitAll commits until no job has ended.
func (g *groupCommit) commitAll(outside bool) {
	r := g.queue.run
	defer r.wg.Done()
	var own *link
	if outside {
		own = <-r.commits
		defer func() { r.commits <- own }()
	}
	runtime.Gosched() // jobs that end now are included
	for {
		g.mu.Lock()
		share := len(g.ended)
		if share == 0 {
			g.committing--
			g.mu.Unlock()
			return
		}
		if outside && g.committing == 1 && share >= splitFrom {
			share = (share + 1) / 2
		}
		ended := g.ended[:share:share]
		g.ended = g.ended[share:]
		g.mu.Unlock()
		var done []doneJob
		wants, link := 0, own
		for _, e := range ended {
			done = append(done, e.done...)
			wants += e.wants
			if link == nil {
				link = e.link
			}
		}
		next := g.send(done, wants, link)
		for _, e := range ended {
			n := min(e.wants, len(next))
			e.next <- next[:n:n]
			next = next[n:]
		}
	}
}

// send completes jobs, and claims others.
func (g *groupCommit) send(done []doneJob, wants int, link *link) (next []*attempt) {
	q := g.queue
	for _, d := range done {
		d.attempt.setCommitSent(true)
	}
	for count := 1; ; count++ {
		next, err := g.sendOnce(done, wants, link)
		switch {
		case err == nil:
			return next
		case hasState(err, "40001", "40P01") && count <= maxReruns:
			continue
		case !hasState(err, "22", "54"):
			for _, d := range done {
				q.ended(d.attempt, OutcomeLost, textOf(err))
			}
			return nil
		case wants > 0: // perhaps the server cannot send the next job, and has not refused a result
			return g.send(done, 0, link)
		case len(done) > 1:
			for _, d := range done {
				g.send([]doneJob{d}, 0, link)
			}
			return nil
		}
		d := done[0]
		d.attempt.setCommitSent(false)
		switch {
		case q.inside:
			q.settle(link, d.attempt, err)
		case d.result != nil: // the effect has already happened
			d.attempt.log().Warn("idemq: the job is completed without a result, because of an error", "error", err)
			g.send([]doneJob{{d.attempt, nil}}, 0, link)
		default:
			q.ended(d.attempt, OutcomeLost, textOf(err))
		}
		return nil
	}
}

func (g *groupCommit) sendOnce(done []doneJob, wants int, link *link) (next []*attempt, err error) {
	q := g.queue
	var outcomes map[int64]string
	again, err := link.repeat(q.run.over, func(ctx context.Context, s *session) (err error) {
		asked := time.Now()
		var claims []*claimed
		outcomes, claims, err = q.sendCommitMany(ctx, s, done, wants > 0 && q.mayClaim(), wants)
		if err == nil {
			next = q.begun(claims, asked, s)
		}
		return err
	})
	var lost errLost
	if errors.As(err, &lost) {
		err = lost.error
	}
	if err != nil {
		return nil, err
	}
	for _, d := range done {
		outcome := outcomes[d.attempt.header.Token]
		// In a queue that keeps no finished jobs, a completed job does not exist any more.
		if outcome == "committed" || outcome == "already_committed" || outcome == "not_found" && again {
			q.ended(d.attempt, OutcomeCommitted, "")
		} else {
			q.endStale(link, d.attempt, OutcomeStale, nil, "")
		}
	}
	return next, nil
}
