package idemq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	settingsMaxAge = time.Minute
	// mostSides is the largest number of connections for what is committed apart from handlers' transactions.
	mostSides = 6
	// longestWait limits one wait in the server.  Behind a pooler a wait cannot be ended, so a worker that stops lets it time out.
	longestWait       = 5 * time.Second
	longestPooledWait = 3 * time.Second
	// listenAfter is the time after which a worker without free slots listens for the end of its attempts, so that short jobs cost nothing.
	listenAfter = 10 * time.Millisecond
	// waitEnds is the time in which a wait must end after a request to end it.
	waitEnds = 3500 * time.Millisecond
	// abandonInDrain is how long handlers may take after the grace period, and lastWords how long the report of their outcomes may.
	abandonInDrain = 2 * time.Second
	lastWords      = 2 * time.Second
	errorPause     = 5 * time.Second
	lostPause      = 200 * time.Millisecond

	claimSQL       = `SELECT ` + jobColumns + ` FROM idemq.claim($1::text, $2::int, lease => $3::text::interval, worker => $4::text, attach => $5::boolean)`
	waitSQL        = `CALL idemq.wait($1::text, $2::text::interval)`
	waitAnySQL     = `CALL idemq.wait_any($1::text::text[], $2::text::interval)`
	endWaitSQL     = `SELECT count(*) FROM idemq.heartbeat_many('{}', '{}', NULL, end_waits => ARRAY[$1::int])`
	releaseManySQL = `SELECT count(*) FROM idemq.release_many($1::text::bigint[], $2::text::bigint[], delay => $3::text::interval)`
	// Each lease keeps its length.
	heartbeatSQL = `SELECT h.token, CASE WHEN EXISTS (SELECT FROM idemq.jobs AS j WHERE j.id = h.id AND j.status = 'cancelled') THEN 'cancelled' ELSE h.outcome::text END
  FROM idemq.heartbeat_many($1::text::bigint[], $2::text::bigint[], NULL, end_waits => '{}') AS h WHERE h.outcome <> 'current'`
	settingsSQL = `SELECT q.name, (1000000 * extract(epoch FROM coalesce(w.lease, q.lease)))::bigint, coalesce((1000000 * extract(epoch FROM q.job_timeout))::bigint, 0)
  FROM ROWS FROM (pg_catalog.unnest($1::text::text[]), pg_catalog.unnest($2::text::interval[])) AS w (name, lease) JOIN idemq.queues AS q USING (name)`
)

// run is one call of Run or Drain.
//
// Its goroutines are: this one, which claims jobs and sleeps until there are more; one per slot in use, and one per handler that it calls;
// one that waits in the server while this one sleeps; one that renews leases; and those of watch.go.
//
// One link claims jobs and renews leases, one waits for jobs, each slot of Handle has one, and up to mostSides serve everything else, so no
// job delays a heartbeat.  A queue without work has no connection.  Claims go in rounds: a round visits each queue with a free slot, and then
// the worker sleeps until one of these queues has a job.
type run struct {
	w    *Worker
	once bool
	log  *slog.Logger
	// base has the values of the caller's context, but does not end with it.
	base context.Context
	// The worker claims nothing more after stopping, waits for no handler after giveUp, and for nothing after over.
	stopping, giveUp, over   context.Context
	stop, abandonAll, finish context.CancelFunc

	main, waitServer *server
	control, waiter  *link
	slots, sides     *links
	queues           []*consumer
	process          string
	wg               sync.WaitGroup
	// changed is signalled when a slot is free, and beatNow when heartbeats are due.
	changed, beatNow chan struct{}
	reported         atomic.Bool

	mu           sync.Mutex
	running      map[int64]*attempt // by token
	counts       Outcomes
	sleepers     []*consumer // the queues for which the server is waiting
	settingsRead time.Time
	settingsOf   *session
	ends         int // how often a slot has become free
	errs         []error
	abandoned    []abandonedCall
}

// abandonedCall is a call of a handler that has not ended in time.
type abandonedCall struct {
	attempt *attempt
	done    <-chan returned[*string]
}

func newRun(ctx context.Context, w *Worker, once bool) *run {
	r := &run{
		w: w, once: once, log: w.o.Logger, base: context.WithoutCancel(ctx), running: map[int64]*attempt{}, counts: Outcomes{}, process: newUUID(),
		changed: make(chan struct{}, 1), beatNow: make(chan struct{}, 1),
	}
	r.over, r.finish = context.WithCancel(r.base)
	r.giveUp, r.abandonAll = context.WithCancel(r.over)
	r.stopping, r.stop = context.WithCancel(ctx)
	for _, q := range w.queues {
		r.queues = append(r.queues, newConsumer(r, q))
	}
	application := "idemq " + w.queues[0].name
	if len(w.queues) > 1 {
		application += fmt.Sprintf(" and %d more", len(w.queues)-1)
	}
	r.main = newServer(w.conn, application)
	r.waitServer = r.main
	if w.o.WaitConn != nil {
		r.waitServer = newServer(w.o.WaitConn, application)
	}
	for _, s := range []*server{r.main, r.waitServer} {
		s.log, s.process, s.retry, s.over = r.log, r.process, !once, r.over
	}
	r.control, r.waiter = newLink(r.main, false), newLink(r.waitServer, false)
	r.slots = &links{server: r.main, lends: true}
	r.sides = &links{server: r.main, places: make(chan struct{}, mostSides)}
	return r
}

// signal wakes up the reader of a channel.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// spawn runs a task until it ends, at the latest when the run is over.
func (r *run) spawn(task func()) {
	r.wg.Add(1)
	go func() {
		defer r.wg.Done()
		task()
	}()
}

func (r *run) run() (Outcomes, error) {
	defer r.stop()
	for _, task := range []func(){r.beat, r.watchSilence, r.reportRegularly, r.endAfterGrace} {
		r.spawn(task)
	}
	r.dispatch()
	r.stop()
	for r.busy() > 0 && r.over.Err() == nil {
		r.rest()
	}
	if r.reported.Load() {
		_ = r.report(true)
	}
	r.finish()
	r.wg.Wait()
	for _, l := range slices.Concat(r.slots.all, r.sides.all, []*link{r.control, r.waiter}) {
		l.close()
	}
	r.main.cleanups.Wait()
	r.waitServer.cleanups.Wait()
	for _, each := range r.abandoned {
		select {
		case <-each.done:
		default:
			each.attempt.log().Warn("idemq: a handler is still running although its job was given back, because it ignores its context")
		}
	}
	r.log.Debug("idemq: stopped", "queues", r.names())
	return r.counts, errors.Join(r.errs...)
}

// endAfterGrace ends the handlers of a worker that was told to stop after the grace period.
func (r *run) endAfterGrace() {
	<-r.stopping.Done()
	if n := len(r.attempts()); n > 0 && !r.once {
		r.log.Info("idemq: stopping", "queues", r.names(), "jobs", n, "grace", r.w.o.Grace)
	}
	sleep(r.over, r.w.o.Grace)
	for _, a := range r.attempts() {
		a.stop(ErrDraining)
	}
	sleep(r.over, abandonInDrain)
	r.abandonAll()
	sleep(r.over, lastWords)
	r.finish()
}

func (r *run) abandon(a *attempt, done <-chan returned[*string]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.abandoned = append(r.abandoned, abandonedCall{a, done})
}

func (r *run) names() string {
	names := make([]string, len(r.queues))
	for n, q := range r.queues {
		names[n] = q.name
	}
	return strings.Join(names, ", ")
}

// attempts returns the attempts whose outcome has not been reported.
func (r *run) attempts() []*attempt {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]*attempt, 0, len(r.running))
	for _, a := range r.running {
		all = append(all, a)
	}
	return all
}

// busy returns the number of slots in use.
func (r *run) busy() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, q := range r.queues {
		n += q.busy
	}
	return n
}

// fail ends the run with an error.
func (r *run) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errs = append(r.errs, err)
	r.stop()
}

// side runs a statement that may be repeated, on a link that no transaction uses.
func (r *run) side(ctx context.Context, fn func(context.Context, *session) error) (again bool, err error) {
	l := r.sides.acquire()
	defer r.sides.release(l)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.over, cancel)()
	again, err = l.repeat(ctx, fn)
	return again, typed(err)
}

// dispatch claims jobs for free slots, in rounds, until the worker must stop or, in a drain, there is no work.
func (r *run) dispatch() {
	for round := 0; r.stopping.Err() == nil; round++ {
		r.mu.Lock()
		ready := r.ready()
		drained := r.once && !slices.ContainsFunc(r.queues, func(q *consumer) bool { return q.busy > 0 || q.paused() || !q.empty })
		r.mu.Unlock()
		for n := range ready {
			r.claimFor(ready[(n+round)%len(ready)])
		}
		switch {
		case drained:
			return
		case len(ready) == 0:
			r.rest()
		}
	}
}

// ready returns the queues for which to claim.  The caller holds the mutex.
func (r *run) ready() (ready []*consumer) {
	for _, q := range r.queues {
		if q.wanted() > 0 && !q.empty && !q.paused() {
			ready = append(ready, q)
		}
	}
	return ready
}

// claimFor claims jobs for the free slots of a queue.
func (r *run) claimFor(q *consumer) {
	r.mu.Lock()
	jobs, ends := q.wanted()*q.batch(), r.ends
	if q.slow() {
		jobs = min(jobs, 1)
	}
	r.mu.Unlock()
	if jobs == 0 { // a failure has just slowed the queue down
		return
	}
	var attempts []*attempt
	err := r.control.ask(r.stopping, r.controlLimit(), func(ctx context.Context, s *session) error {
		if s != r.settingsOf || time.Since(r.settingsRead) > settingsMaxAge {
			if err := r.readSettings(ctx, s); err != nil {
				return err
			}
		}
		asked := time.Now()
		rows, err := s.query(ctx, claimSQL, q.claimArgs(s, jobs)...)
		if err != nil {
			return err
		}
		claims, err := pgx.CollectRows(rows, pgx.RowToStructByPos[claimed])
		if err == nil {
			attempts = q.begun(claims, asked)
		}
		return err
	})
	if err != nil {
		r.claimFailed(q, typed(err))
		return
	}
	r.mu.Lock()
	q.known = true
	// In a drain, a job that has ended meanwhile may have added jobs after the claim.
	q.empty = len(attempts) == 0 && (!r.once || ends == r.ends)
	r.mu.Unlock()
	for chunk := range slices.Chunk(attempts, q.batch()) {
		q.start(chunk)
	}
}

// claimFailed ends the run if the caller must fix an error at startup.  A later error may be fixed meanwhile.
func (r *run) claimFailed(q *consumer, err error) {
	if hasState(err, "3F000", "42P01", "42883") {
		err = fmt.Errorf("the database %q does not have idemq, or an older version: run CREATE EXTENSION idemq in it: %w", r.main.config.Database, err)
	}
	switch {
	case r.stopping.Err() != nil:
	case r.once, !isLost(err) && sqlState(err) != "" && !q.known && !hasState(err, "08", "25", "40", "53", "57"):
		r.fail(err)
	case isLost(err):
		sleep(r.stopping, lostPause)
	default:
		r.log.Error("idemq: claim failed; trying again", "queue", q.name, "after", errorPause, "error", err)
		q.pauseFor(errorPause)
	}
}

// readSettings reads the settings of the queues.  A queue that does not exist is reported by its claim.
func (r *run) readSettings(ctx context.Context, s *session) error {
	names := array(r.queues, func(q *consumer) any { return q.name })
	leases := array(r.queues, func(q *consumer) any { return givenInterval(q.o.Lease) })
	rows, err := s.query(ctx, settingsSQL, names, leases)
	if err != nil {
		return err
	}
	var name string
	var lease, timeout int64
	_, err = pgx.ForEachRow(rows, []any{&name, &lease, &timeout}, func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, q := range r.queues {
			if q.name == name {
				q.lease, q.jobTimeout = time.Duration(lease)*time.Microsecond, time.Duration(timeout)*time.Microsecond
			}
		}
		return nil
	})
	r.settingsOf, r.settingsRead = s, time.Now()
	signal(r.beatNow) // a restarted server keeps attached leases only for a short time
	return err
}

// lease returns the shortest lease.
func (r *run) lease() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.MinFunc(r.queues, func(a, b *consumer) int { return int(a.lease - b.lease) }).lease
}

// controlLimit is the time for a statement on the control link.  A heartbeat is sent after a third of the lease, and given up after another
// third; the last third is left for a new connection.
func (r *run) controlLimit() time.Duration {
	return min(max(r.lease()/3, shortestAnswerTimeout), answerTimeout)
}

// rest sleeps until a queue with a free slot may have a job, a slot has become free, a pause ends, or the worker must stop.  Meanwhile, the
// server waits for jobs, and tells the worker at once if one of its attempts has ended.
func (r *run) rest() {
	r.mu.Lock()
	select {
	case <-r.changed:
	default:
	}
	wake, stopping := r.stopping.Done(), r.stopping.Err() != nil
	if stopping {
		wake = r.over.Done()
	}
	pause := time.Hour
	var sleepers []*consumer
	busy := 0
	for _, q := range r.queues {
		busy += q.busy
		switch {
		case q.paused():
			pause = min(pause, time.Until(q.pausedUntil)+time.Millisecond)
		case q.wanted() > 0 && !r.once && !stopping:
			sleepers = append(sleepers, q)
		}
	}
	if stopping && busy == 0 || !stopping && len(r.ready()) > 0 {
		r.mu.Unlock()
		return
	}
	r.sleepers = sleepers
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		r.sleepers = nil
		r.mu.Unlock()
	}()
	timer := time.NewTimer(pause)
	defer timer.Stop()
	if len(sleepers) == 0 {
		select {
		case <-r.changed:
			return
		case <-timer.C:
			return
		case <-wake:
			return
		case <-time.After(listenAfter):
		}
	}
	ctx, end := context.WithCancel(r.over)
	defer end()
	answers := make(chan error, 1)
	go func() { answers <- r.wait(ctx, sleepers) }()
	select {
	case err := <-answers:
		r.waitFailed(sleepers, err)
		return
	case <-r.changed:
	case <-timer.C:
	case <-wake:
	}
	end()
	r.endWait()
	select {
	case <-answers:
		return
	case <-time.After(waitEnds): // the connection is silent, or the server could not be asked
	case <-r.over.Done():
	}
	if s := r.waiter.current.Load(); s != nil {
		s.kill()
	}
	<-answers
}

// wait waits until one of these queues has work, an attempt of this worker ends, or the wait times out.  Without queues, it waits only for
// the attempts.  ctx ends it only before it has begun.
func (r *run) wait(ctx context.Context, queues []*consumer) error {
	var ready bool
	err := r.waiter.with(ctx, func(s *session) error {
		if len(queues) == 0 && !s.hearsEnds {
			sleep(ctx, time.Second) // heartbeats find the end of an attempt
			return nil
		}
		longest := longestWait
		if !s.direct {
			longest = longestPooledWait
		}
		if s.statementTimeout > 0 {
			longest = min(longest, s.statementTimeout*8/10)
		}
		limited, cancel := context.WithTimeout(r.over, longest+answerTimeout)
		defer cancel()
		sql, arg := waitSQL, any(nil)
		switch {
		case ctx.Err() != nil:
			return nil
		case len(queues) == 1:
			arg = queues[0].name
		case len(queues) > 1:
			sql, arg = waitAnySQL, array(queues, func(q *consumer) any { return q.name })
		}
		if err := s.row(limited, sql, arg, interval(longest)).Scan(&ready); err != nil {
			return err
		}
		if !ready && s.hearsEnds {
			signal(r.beatNow)
		}
		return nil
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, q := range queues {
		q.empty = q.empty && err == nil && !ready && ctx.Err() != nil
	}
	return err
}

// endWait asks the server to end the wait.  A cancel request would also end it, but the server would log an ERROR.
func (r *run) endWait() {
	s := r.waiter.current.Load()
	if s == nil || !s.direct || r.over.Err() != nil {
		return // it times out
	}
	_ = r.control.ask(r.over, waitEnds, func(ctx context.Context, own *session) error { return own.exec(ctx, endWaitSQL, s.pid) })
}

func (r *run) waitFailed(sleepers []*consumer, err error) {
	switch {
	case err == nil || r.stopping.Err() != nil:
	case isLost(err):
		signal(r.beatNow)
		sleep(r.stopping, lostPause)
	case len(sleepers) > 1: // the claims find out which queue is the cause
		sleep(r.stopping, time.Second)
	default:
		r.log.Error("idemq: wait failed; trying again", "queues", r.names(), "after", errorPause, "error", err)
		sleep(r.stopping, errorPause)
	}
}

// beat renews leases until the end.
func (r *run) beat() {
	for r.over.Err() == nil {
		timer := time.NewTimer(min(r.lease()/3, time.Hour))
		select {
		case <-timer.C:
		case <-r.beatNow:
		case <-r.over.Done():
		}
		timer.Stop()
		r.heartbeat()
	}
}

func (r *run) heartbeat() {
	attempts := r.attempts()
	if len(attempts) == 0 || r.over.Err() != nil {
		return
	}
	var asked time.Time
	why := map[int64]error{}
	ids, tokens := pairs(attempts)
	err := r.control.ask(r.over, r.controlLimit(), func(ctx context.Context, s *session) error {
		asked = time.Now()
		rows, err := s.query(ctx, heartbeatSQL, ids, tokens)
		if err != nil {
			return err
		}
		var token int64
		var outcome string
		_, err = pgx.ForEachRow(rows, []any{&token, &outcome}, func() error {
			why[token] = map[string]error{"expired": ErrTimeout, "cancelled": ErrCancelled}[outcome]
			why[token] = cmp.Or(why[token], ErrLeaseLost)
			return nil
		})
		return err
	})
	if err != nil {
		if !isLost(err) && r.over.Err() == nil {
			r.log.Warn("idemq: heartbeat failed", "error", err)
		}
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range attempts {
		lost := why[a.header.Token]
		switch {
		case r.running[a.header.Token] != a: // it has ended meanwhile
		case lost != nil:
			a.stop(lost)
		case a.expires != nil:
			a.expires.Reset(time.Until(asked.Add(a.queue.lease)))
		}
	}
}

// pairs returns the ids and tokens of attempts as arrays.
func pairs(attempts []*attempt) (ids, tokens string) {
	return array(attempts, func(a *attempt) any { return a.header.ID }), array(attempts, func(a *attempt) any { return a.header.Token })
}
