package idemq

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	version = "1.0.0"

	silenceLimit       = 10 * time.Second
	pooledSilenceLimit = 30 * time.Second

	// If a session is in a transaction, the server would keep its job's lock until it notices the loss.
	workingSQL = `SELECT pid FROM pg_catalog.pg_stat_activity
  WHERE pid = ANY ($1::text::int[]) AND (state IS NULL OR state NOT IN ('idle', 'idle in transaction', 'idle in transaction (aborted)'))`
	endBackendSQL = `SELECT count(pg_catalog.pg_terminate_backend(pid)) FROM pg_catalog.pg_stat_activity
  WHERE pid = $1::int AND extract(epoch FROM backend_start)::text = $2::text AND state LIKE 'idle in transaction%'`

	reportInterval = 30 * time.Second
	// firstReportAfter: a worker that ends sooner reports nothing.
	firstReportAfter = time.Second

	// Like heartbeats, its commit does not wait for the disk or a standby.
	reportSQL = `SELECT pg_catalog.set_config('synchronous_commit', 'off', true), idemq.report_worker($1::text::uuid, $2::text, $3::text::text[], program => 'go', version => $4::text,
  host => $5::text, concurrency => $6::int, running => $7::text::bigint[], done => $8::bigint, stopping => $9::boolean, end_waits => '{}')`
)

// watchSilence detects silent connections: a proxy or a firewall drops the packets, and neither side learns that the connection is broken.
//
// A session that has awaited an answer for a while is cut if the server, which is asked on the control link, has had nothing to do for it
// twice in a row.  A statement that takes long, because it waits for a lock or a standby, is left alone.  Behind a pooler, the process in
// the server is not known; there, an answer may take pooledSilenceLimit.  The waits of the waiter have a limit, and so have the statements
// of control.
func (r *run) watchSilence() {
	for r.over.Err() == nil {
		limit := min(max(r.lease()/3, time.Second), silenceLimit)
		sleep(r.over, limit/2)
		var silent []*session
		for _, s := range r.main.all() {
			awaited := s.wire.silentFor()
			switch {
			case awaited < limit || s == r.control.current.Load() || s == r.waiter.current.Load():
				s.suspected = false
			case s.direct:
				silent = append(silent, s)
			case awaited >= max(r.lease(), pooledSilenceLimit) && !s.wire.lent.Load():
				s.kill()
			}
		}
		if len(silent) == 0 || r.over.Err() != nil {
			continue
		}
		working := r.working(silent)
		for _, s := range silent {
			if s.suspected && !working[s.pid] && s.wire.silentFor() > 0 {
				s.kill()
				_ = r.control.ask(r.over, silenceLimit, func(ctx context.Context, own *session) error {
					return own.exec(ctx, endBackendSQL, s.pid, s.backendStart)
				})
			}
			s.suspected = !working[s.pid]
		}
	}
}

// working returns the processes that are busy, or none if the server does not answer.
func (r *run) working(sessions []*session) map[int32]bool {
	pids := array(sessions, func(s *session) any { return s.pid })
	working := map[int32]bool{}
	_ = r.control.ask(r.over, silenceLimit, func(ctx context.Context, s *session) error {
		rows, err := s.query(ctx, workingSQL, pids)
		if err != nil {
			return err
		}
		var pid int32
		_, err = pgx.ForEachRow(rows, []any{&pid}, func() error { working[pid] = true; return nil })
		return err
	})
	return working
}

func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// reportRegularly reports the worker to the server, for monitoring only.
func (r *run) reportRegularly() {
	for pause := firstReportAfter; !r.once; pause = reportInterval {
		sleep(r.stopping, pause)
		if r.stopping.Err() != nil {
			return
		}
		if err := r.report(false); err != nil {
			r.log.Debug("idemq: the worker could not report itself", "error", err)
		} else {
			r.reported.Store(true)
		}
	}
}

func (r *run) report(stopping bool) error {
	ids, _ := pairs(r.attempts())
	names := array(r.queues, func(q *consumer) any { return q.name })
	concurrency, done := 0, int64(0)
	r.mu.Lock()
	for _, q := range r.queues {
		concurrency += q.concurrency * q.batch()
	}
	for _, n := range r.counts {
		done += n
	}
	r.mu.Unlock()
	host, _ := os.Hostname()
	return r.control.ask(r.over, shortestAnswerTimeout, func(ctx context.Context, s *session) error {
		return s.exec(ctx, reportSQL, r.process, r.w.o.Name, names, version, host, concurrency, ids, done, stopping)
	})
}
