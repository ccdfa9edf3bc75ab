package idemq

import (
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
	// longestWait limits one wait in the server.  Behind a pooler a wait cannot be ended, so a worker that stops lets it time out.
	longestWait       = 5 * time.Second
	longestPooledWait = 3 * time.Second
	// listenAfter is the time after which a worker without free slots listens for the end of its attempts, so that short jobs cost nothing.
	listenAfter = 10 * time.Millisecond
	// waitEnds is the time in which a wait must end after a request to end it.
	waitEnds = 3500 * time.Millisecond
	// lastWords is the time after the grace period in which the outcomes of the last jobs are reported.
	lastWords  = 4 * time.Second
	errorPause = 5 * time.Second
	lostPause  = 200 * time.Millisecond
)

const (
	waitSQL    = `CALL idemq.wait($1::text, $2::text::interval)`
	waitAnySQL = `CALL idemq.wait_any($1::text::text[], $2::text::interval)`
	endWaitSQL = `SELECT count(*) FROM idemq.heartbeat_many('{}', '{}', NULL, end_waits => ARRAY[$1::int])`
	// Each lease keeps its length.
	heartbeatSQL   = `SELECT token, outcome::text FROM idemq.heartbeat_many($1::text::bigint[], $2::text::bigint[], NULL, end_waits => '{}')`
	releaseManySQL = `SELECT count(*) FROM idemq.release_many($1::text::bigint[], $2::text::bigint[])`
	settingsSQL    = `SELECT q.name, (1000000 * extract(epoch FROM coalesce(w.lease, q.lease)))::bigint, coalesce((1000000 * extract(epoch FROM q.job_timeout))::bigint, 0)
  FROM ROWS FROM (pg_catalog.unnest($1::text::text[]), pg_catalog.unnest($2::text::interval[])) AS w (name, lease) JOIN idemq.queues AS q USING (name)`
	// Of attempts that a heartbeat calls stale: whether they have ended themselves, and whether the job was cancelled.
	staleSQL = `SELECT s.token, EXISTS (SELECT FROM idemq.attempts AS a WHERE a.job_id = s.id AND a.token = s.token
      AND (a.outcome IN ('failed', 'committed') OR (a.outcome = 'released' AND a.error IS NULL)))
    OR EXISTS (SELECT FROM idemq.jobs AS j WHERE j.id = s.id AND j.token = s.token AND j.status = 'completed'),
    EXISTS (SELECT FROM idemq.jobs AS j WHERE j.id = s.id AND j.status = 'cancelled')
  FROM unnest($1::text::bigint[], $2::text::bigint[]) AS s (id, token)`
)

// run is one call of Run or Drain.
//
// One link claims jobs and renews leases, one waits for jobs, and the others belong to the jobs, so no job delays a heartbeat.  A queue
// without work has no connection.  Claims go in rounds: a round visits each queue with a free slot, and then the worker sleeps until one of
// these queues has a job.
type run struct {
	w     *Worker
	once  bool
	log   *slog.Logger
	hooks *hooks
	// base has the values of the caller's context, but does not end with it.
	base context.Context
	// stopping ends when the worker must claim nothing more, and over when it must not wait any longer.
	stopping, over context.Context
	stop, finish   context.CancelFunc

	main, waitServer *server
	control, waiter  *link
	slots            *slots
	commits          chan *link // for outside jobs
	others           []*link    // for the checkpoints, steps and failures of outside jobs
	queues           []*consumer
	report           *report
	wg               sync.WaitGroup

	// changed is signalled when a slot is free, and heartbeatNow when heartbeats are due.
	changed, heartbeatNow chan struct{}
	// told is whether the server has said that an attempt may have ended.
	told atomic.Bool

	mu           sync.Mutex
	running      map[int64]*attempt // by token
	counts       Outcomes
	sleepers     []*consumer
	settingsRead time.Time
	ends         int // how often a slot has become free
	turn         int // of outside links
	errs         []error
	abandoned    []*attempt
}

func newRun(ctx context.Context, w *Worker, once bool) *run {
	r := &run{
		w: w, once: once, log: w.o.Logger, base: context.WithoutCancel(ctx), running: map[int64]*attempt{}, counts: Outcomes{},
		changed: make(chan struct{}, 1), heartbeatNow: make(chan struct{}, 1),
	}
	r.over, r.finish = context.WithCancel(r.base)
	r.stopping, r.stop = context.WithCancel(ctx)
	r.hooks = &hooks{Hooks: w.o.Hooks, run: r, running: make(chan struct{}, 100)}
	process := newUUID()
	application := "idemq " + w.queues[0].name
	if len(w.queues) > 1 {
		application += fmt.Sprintf(" and %d more", len(w.queues)-1)
	}
	r.main = newServer(w.conn, application, r.log)
	r.waitServer = r.main
	if w.o.WaitConn != nil {
		r.waitServer = newServer(w.o.WaitConn, application, r.log)
	}
	for _, s := range []*server{r.main, r.waitServer} {
		s.process, s.retry, s.over = process, !once, r.over
	}
	r.control, r.waiter = newLink(r.main, false), newLink(r.waitServer, false)
	r.control.onConnect = func(ctx context.Context, s *session) error {
		signal(r.heartbeatNow) // a restarted server keeps attached leases only for a short time
		r.told.Store(true)
		return r.readSettings(ctx, s)
	}
	r.slots = &slots{server: r.main}
	outside := 0
	for _, q := range w.queues {
		own := newConsumer(r, q)
		r.queues = append(r.queues, own)
		if !q.inside {
			outside += own.concurrency
		}
	}
	r.commits = make(chan *link, 2)
	for range 2 {
		r.commits <- newLink(r.main, false)
	}
	for range min(outside, 4) {
		r.others = append(r.others, newLink(r.main, false))
	}
	r.report = newReport(r, process)
	return r
}

// signal wakes up the reader of a channel.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// within returns a context that also ends when the worker must not wait any longer.
func (r *run) within(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	forget := context.AfterFunc(r.over, cancel)
	return ctx, func() {
		forget()
		cancel()
	}
}

func (r *run) run() (Outcomes, error) {
	defer r.stop()
	defer r.finish()
	if started := r.w.o.Hooks.Started; started != nil {
		_, _, err := guarded(func() (struct{}, bool, error) { return struct{}{}, true, started(r.base, r.w) })
		if err != nil {
			return r.counts, err
		}
	}
	for _, task := range []func(){r.sendHeartbeats, r.watchSilence, r.report.regularly, r.giveUp, r.endAfterGrace} {
		r.wg.Add(1)
		go func() {
			defer r.wg.Done()
			task()
		}()
	}
	r.dispatch()
	r.stop()
	for r.busy() > 0 {
		r.listen()
	}
	r.report.stopped()
	r.finish()
	r.wg.Wait()
	r.closeLinks()
	r.hooks.ended()
	r.log.Debug("idemq: stopped", "queues", r.names())
	if stopped := r.w.o.Hooks.Stopped; stopped != nil {
		r.hooks.call("Stopped", func(ctx context.Context) { stopped(ctx, r.w, r.counts) })
	}
	for _, a := range r.abandoned {
		select {
		case <-a.running:
		default:
			a.log().Warn("idemq: a handler is still running although its job was given back, because it ignores its context")
		}
	}
	return r.counts, errors.Join(r.errs...)
}

func (r *run) closeLinks() {
	links := append([]*link{r.control, r.waiter, <-r.commits, <-r.commits}, r.others...)
	for _, each := range append(links, r.slots.links()...) {
		each.close()
	}
	r.main.cleanedUp()
	r.waitServer.cleanedUp()
}

// endAfterGrace ends the handlers of a worker that was told to stop after the grace period.
func (r *run) endAfterGrace() {
	<-r.stopping.Done()
	if n := len(r.attempts()); n > 0 && !r.once {
		r.log.Info("idemq: stopping", "queues", r.names(), "jobs", n, "grace", r.w.o.Grace)
	}
	sleep(r.over, r.w.o.Grace)
	if r.over.Err() != nil {
		return
	}
	for _, a := range r.attempts() {
		a.cancel(ErrDraining)
	}
	sleep(r.over, lastWords)
	r.finish()
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

func (r *run) isStopping() bool { return r.stopping.Err() != nil }

// fail ends the run with an error.
func (r *run) fail(err error) {
	r.mu.Lock()
	r.errs = append(r.errs, err)
	r.mu.Unlock()
	r.stop()
}

// ready returns the queues for which to claim.  The caller holds the mutex.
func (r *run) ready() (ready []*consumer) {
	for _, q := range r.queues {
		if q.free() > 0 && !q.empty && !q.paused() {
			ready = append(ready, q)
		}
	}
	return ready
}

// dispatch claims jobs for free slots, in rounds, until the worker must stop or, in a drain, there is no work.
func (r *run) dispatch() {
	for round := 0; !r.isStopping(); round++ {
		r.mu.Lock()
		ready := r.ready()
		r.mu.Unlock()
		for n := range ready {
			r.claimFor(ready[(n+round)%len(ready)])
		}
		if len(ready) > 0 {
			continue
		}
		if r.once && r.drained() {
			return
		}
		r.rest()
	}
}

// drained reports whether a drain has nothing to do any more.
func (r *run) drained() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, q := range r.queues {
		if q.busy > 0 || q.paused() || !q.empty {
			return false
		}
	}
	return true
}

// claimFor claims jobs for the free slots of a queue.
func (r *run) claimFor(q *consumer) {
	r.mu.Lock()
	jobs, ends := q.free()*q.batch(), r.ends
	r.mu.Unlock()
	if r.isStopping() || jobs == 0 {
		return
	}
	attempts, err := r.claim(q, jobs)
	if err == nil {
		r.mu.Lock()
		q.known = true
		// In a drain, a job that has ended meanwhile may have added jobs after the claim.
		q.empty = len(attempts) == 0 && (!r.once || ends == r.ends)
		r.mu.Unlock()
		for chunk := range slices.Chunk(attempts, max(1, q.batchNow())) {
			q.start(chunk)
		}
		return
	}
	if r.isStopping() {
		return
	}
	// The caller must fix an error at startup.  A later error may be fixed meanwhile.
	refused := !isLost(err) && sqlState(err) != "" && !hasState(err, "08", "25", "40", "53", "57")
	if r.once || refused && !q.isKnown() {
		r.fail(r.withoutExtension(err))
		return
	}
	if isLost(err) {
		sleep(r.stopping, lostPause)
		return
	}
	r.log.Error("idemq: claim failed; trying again", "queue", q.name, "after", errorPause, "error", r.withoutExtension(err))
	q.pauseFor(errorPause)
}

// claim claims jobs.
func (r *run) claim(q *consumer, jobs int) (attempts []*attempt, err error) {
	err = r.control.ask(r.stopping, r.controlLimit(), func(ctx context.Context, s *session) error {
		r.mu.Lock()
		old := time.Since(r.settingsRead) > settingsMaxAge
		r.mu.Unlock()
		if old {
			if err := r.readSettings(ctx, s); err != nil {
				return err
			}
		}
		asked := time.Now()
		rows, err := s.query(ctx, claimSQL, q.claimArgs(s, jobs)...)
		if err != nil {
			return err
		}
		claims, err := pgx.CollectRows(rows, scanClaimed)
		if err != nil {
			return err
		}
		if !r.isStopping() || len(claims) == 0 {
			attempts = q.begun(claims, asked, s)
			return nil
		}
		var ids, tokens []int64
		for _, c := range claims {
			ids, tokens = append(ids, *c.id), append(tokens, *c.token)
		}
		return s.exec(ctx, releaseManySQL, numbers(ids), numbers(tokens))
	})
	return attempts, typed(err)
}

func scanClaimed(row pgx.CollectableRow) (*claimed, error) {
	c := new(claimed)
	return c, row.Scan(c.dest()...)
}

// withoutExtension replaces an error by a clearer one if the database does not have the extension.
func (r *run) withoutExtension(err error) error {
	if !hasState(err, "3F000", "42P01", "42883") {
		return err
	}
	return fmt.Errorf("the database %q does not have idemq, or an older version: run CREATE EXTENSION idemq in it: %w", r.main.config.Database, err)
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
	if err == nil {
		r.mu.Lock()
		r.settingsRead = time.Now()
		r.mu.Unlock()
		signal(r.heartbeatNow)
	}
	return err
}

// lease returns the shortest lease.
func (r *run) lease() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	lease := r.queues[0].lease
	for _, q := range r.queues {
		lease = min(lease, q.lease)
	}
	return lease
}

// controlLimit is the time for a statement on the control link.  A heartbeat is sent after a third of the lease, and given up after another
// third; the last third is left for a new connection.
func (r *run) controlLimit() time.Duration {
	return min(max(r.lease()/3, shortestAnswerTimeout), answerTimeout)
}

// freed notes that a slot of a queue is free again.
func (r *run) freed(q *consumer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	q.busy--
	r.ends++
	if r.once { // the job may have added jobs to other queues
		for _, each := range r.queues {
			each.empty = false
		}
	}
	if slices.Contains(r.sleepers, q) {
		return // the server is waiting for this queue
	}
	q.empty = false
	signal(r.changed)
}

// rest sleeps until a queue with a free slot may have a job, a queue gets its first free slot, or a pause ends.
func (r *run) rest() {
	r.mu.Lock()
	select {
	case <-r.changed:
	default:
	}
	if len(r.ready()) > 0 {
		r.mu.Unlock()
		return
	}
	var pauseEnds time.Time
	var sleepers []*consumer
	for _, q := range r.queues {
		switch {
		case q.paused():
			if pauseEnds.IsZero() || q.pausedUntil.Before(pauseEnds) {
				pauseEnds = q.pausedUntil
			}
		case q.free() > 0 && !r.once:
			sleepers = append(sleepers, q)
		}
	}
	r.sleepers = sleepers
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		r.sleepers = nil
		r.mu.Unlock()
	}()
	var pause <-chan time.Time
	if !pauseEnds.IsZero() {
		timer := time.NewTimer(time.Until(pauseEnds) + time.Millisecond)
		defer timer.Stop()
		pause = timer.C
	}
	if len(sleepers) == 0 {
		r.listenUntil(pause)
		return
	}
	ready, changed, err := r.waitUntil(pause, sleepers)
	if err != nil && !r.isStopping() {
		r.waitFailed(sleepers, err)
	}
	if ready || !changed || err != nil {
		r.mu.Lock()
		for _, q := range sleepers {
			q.empty = false
		}
		r.mu.Unlock()
	}
}

func (r *run) waitFailed(sleepers []*consumer, err error) {
	switch {
	case isLost(err):
		sleep(r.stopping, lostPause)
	case len(sleepers) > 1: // the claims find out which queue is the cause
		sleep(r.stopping, time.Second)
	default:
		r.log.Error("idemq: wait failed; trying again", "queue", sleepers[0].name, "after", errorPause, "error", err)
		sleep(r.stopping, errorPause)
	}
}

// waitUntil waits in the server for one of these queues, or until something changes.  Then the server is asked to end the wait.
func (r *run) waitUntil(pause <-chan time.Time, queues []*consumer) (ready, changed bool, err error) {
	type answer struct {
		ready bool
		err   error
	}
	answers := make(chan answer, 1)
	go func() {
		ready, err := r.wait(queues)
		answers <- answer{ready, err}
	}()
	stopping := r.stopping.Done()
	if len(queues) == 0 {
		stopping = nil // while handlers run, it listens
	}
	select {
	case a := <-answers:
		return a.ready, false, a.err
	case <-r.changed:
	case <-pause:
	case <-stopping:
	case <-r.over.Done():
	}
	r.endWait()
	limit := time.NewTimer(waitEnds)
	defer limit.Stop()
	select {
	case a := <-answers:
		return a.ready, true, nil
	case <-limit.C: // the connection is silent, or the server could not be asked
	case <-r.over.Done():
	}
	if s := r.waiter.current.Load(); s != nil {
		s.kill()
	}
	<-answers
	return false, true, nil
}

// endWait asks the server to end the wait.  A cancel request would also end it, but the server would log an ERROR.
func (r *run) endWait() {
	s := r.waiter.current.Load()
	if s == nil || !s.direct || r.over.Err() != nil {
		return // it times out
	}
	_ = r.control.ask(r.over, waitEnds, func(ctx context.Context, own *session) error { return own.exec(ctx, endWaitSQL, s.pid) })
}

// wait waits until one of these queues has work, an attempt of this worker ends, or the wait times out.  Without queues, it waits only for
// the attempts.
func (r *run) wait(queues []*consumer) (ready bool, err error) {
	ctx := r.over
	if len(queues) > 0 {
		ctx = r.stopping
	}
	err = r.waiter.with(ctx, func(s *session) error {
		if len(queues) == 0 && !s.hearsEnds || len(queues) > 0 && r.isStopping() {
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
		case len(queues) == 1:
			arg = queues[0].name
		case len(queues) > 1:
			sql, arg = waitAnySQL, array(queues, func(q *consumer) any { return q.name })
		}
		if err := s.row(limited, sql, arg, interval(longest)).Scan(&ready); err != nil {
			return err
		}
		if !ready && s.hearsEnds && len(r.attempts()) > 0 {
			r.told.Store(true)
			signal(r.heartbeatNow)
		}
		return nil
	})
	return ready, err
}

// listen is listenUntil for a worker that is stopping.
func (r *run) listen() { r.listenUntil(nil) }

// listenUntil listens for the end of an attempt, in the session that otherwise waits for jobs, until something changes.
func (r *run) listenUntil(pause <-chan time.Time) {
	stopping := r.stopping.Done()
	if r.isStopping() {
		stopping = nil
	}
	select {
	case <-r.changed:
		return
	case <-pause:
		return
	case <-stopping:
		return
	case <-r.over.Done():
		// Attempts that wait for the server end now; handlers were abandoned before.
		<-r.changed
		return
	case <-time.After(listenAfter):
	}
	// A worker that is stopping does not open a session for that.
	if s := r.waiter.current.Load(); s != nil && s.hearsEnds && !s.killed.Load() || s == nil && stopping != nil {
		if _, changed, err := r.waitUntil(pause, nil); changed || err == nil {
			return
		}
	}
	// Until then, heartbeats find the end of an attempt.
	select {
	case <-r.changed:
	case <-pause:
	case <-stopping:
	case <-r.over.Done():
	case <-time.After(time.Second):
	}
}

// sendHeartbeats renews leases until the end.
func (r *run) sendHeartbeats() {
	answered, asking := make(chan struct{}, 1), false
	due := time.Now()
	for r.over.Err() == nil {
		lease := r.lease()
		timer := time.NewTimer(min(lease/6, time.Hour))
		select {
		case <-timer.C:
		case <-r.heartbeatNow:
		case <-answered:
			asking = false
		case <-r.over.Done():
		}
		timer.Stop()
		// The heartbeats that are under way may have been answered before an attempt ended, so others are sent after them.
		if now := time.Now(); !asking && (r.told.Load() || now.Sub(due) >= lease/3) {
			r.told.Store(false)
			asking, due = true, now
			go func() {
				r.sendHeartbeat()
				answered <- struct{}{}
			}()
		}
		for _, a := range r.attempts() {
			if !a.queue.inside && a.leaseOver() {
				r.lose(a, ErrLeaseLost)
			}
		}
	}
	if asking {
		<-answered
	}
}

func (r *run) sendHeartbeat() {
	attempts := slices.DeleteFunc(r.attempts(), func(a *attempt) bool {
		return get(a, func() bool { return a.why == ErrTimeout || a.endedItself })
	})
	if len(attempts) == 0 {
		return
	}
	ids, tokens := pairs(attempts)
	err := r.control.ask(r.over, r.controlLimit(), func(ctx context.Context, s *session) error {
		asked := time.Now()
		outcomes := map[int64]string{}
		rows, err := s.query(ctx, heartbeatSQL, ids, tokens)
		if err != nil {
			return err
		}
		var token int64
		var outcome string
		if _, err = pgx.ForEachRow(rows, []any{&token, &outcome}, func() error { outcomes[token] = outcome; return nil }); err != nil {
			return err
		}
		var stale []*attempt
		for _, a := range attempts {
			switch outcomes[a.header.Token] {
			case "current":
				a.renew(asked)
			case "expired":
				r.lose(a, ErrTimeout)
			case "cancelled":
				r.lose(a, ErrCancelled)
			default:
				stale = append(stale, a)
			}
		}
		return r.loseStale(ctx, s, stale)
	})
	if err != nil && !isLost(err) && r.over.Err() == nil {
		r.log.Warn("idemq: heartbeat failed", "error", err)
	}
}

// pairs returns the ids and tokens of attempts as arrays.
func pairs(attempts []*attempt) (ids, tokens string) {
	return array(attempts, func(a *attempt) any { return a.header.ID }), array(attempts, func(a *attempt) any { return a.header.Token })
}

// lose ends the handler of an attempt that has lost its lease.  If the job is committed, or about to be, it has no lease any more.
func (r *run) lose(a *attempt, why error) {
	r.mu.Lock()
	running := r.running[a.header.Token] == a
	r.mu.Unlock()
	if running && !get(a, func() bool { return a.commitSent || a.endedItself }) {
		a.cancel(why)
	}
}

// loseStale ends attempts that the server calls stale.  An outside handler that has ended its attempt through SQL continues.
func (r *run) loseStale(ctx context.Context, s *session, stale []*attempt) error {
	if len(stale) == 0 {
		return nil
	}
	ids, tokens := pairs(stale)
	rows, err := s.query(ctx, staleSQL, ids, tokens)
	if err != nil {
		return err
	}
	var token int64
	var ended, cancelled bool
	_, err = pgx.ForEachRow(rows, []any{&token, &ended, &cancelled}, func() error {
		n := slices.IndexFunc(stale, func(a *attempt) bool { return a.header.Token == token })
		a := stale[n]
		switch {
		case ended && !a.queue.inside:
			a.mu.Lock()
			a.endedItself = true
			a.mu.Unlock()
		case cancelled:
			r.lose(a, ErrCancelled)
		default:
			r.lose(a, ErrLeaseLost)
		}
		return nil
	})
	return err
}

// giveUp ends the worker if it has had no connection for GiveUpAfter.
func (r *run) giveUp() {
	after := r.w.o.GiveUpAfter
	for after > 0 && r.over.Err() == nil {
		for _, s := range []*server{r.main, r.waitServer} {
			s.mu.Lock()
			down := !s.downAt.IsZero() && time.Since(s.downAt) >= after
			s.mu.Unlock()
			if down && !r.isStopping() {
				r.fail(fmt.Errorf("the worker gives up, because it has had no connection for %s", after))
				for _, a := range r.attempts() {
					a.cancel(ErrDraining)
				}
			}
		}
		sleep(r.over, min(after/4, time.Second))
	}
}
