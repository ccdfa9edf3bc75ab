package idemq

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	silenceLimit       = 10 * time.Second
	pooledSilenceLimit = 30 * time.Second

	// If a session is in a transaction, the server would keep its job's lock until it notices the loss.
	workingSQL = `SELECT pid FROM pg_catalog.pg_stat_activity
  WHERE pid = ANY ($1::text::int[]) AND (state IS NULL OR state NOT IN ('idle', 'idle in transaction', 'idle in transaction (aborted)'))`
	endBackendSQL = `SELECT count(pg_catalog.pg_terminate_backend(pid)) FROM pg_catalog.pg_stat_activity
  WHERE pid = $1::int AND extract(epoch FROM backend_start)::text = $2::text AND state LIKE 'idle in transaction%'`
)

// watchSilence detects silent connections: a proxy or a firewall drops the packets, and neither side learns that the connection is broken.
//
// A session that has awaited an answer for a while is cut if the server, which is asked on the control link, has nothing to do for it.  A
// statement that takes long, because it waits for a lock or a standby, is left alone.  Behind a pooler, the process in the server is not
// known; there, an answer may take pooledSilenceLimit.
func (r *run) watchSilence() {
	for r.over.Err() == nil {
		limit := min(max(r.lease()/3, time.Second), silenceLimit)
		sleep(r.over, limit/2)
		var silent []*session
		for _, s := range r.main.all() {
			// The waits of the waiter have a limit, and so have the statements of control.
			if s != r.control.current.Load() && s != r.waiter.current.Load() && s.socket.silentFor() >= limit {
				silent = append(silent, s)
			}
		}
		if len(silent) == 0 || r.over.Err() != nil {
			continue
		}
		working := r.working(silent)
		for _, s := range silent {
			awaited := s.socket.silentFor()
			switch {
			case !s.direct:
				if !s.socket.lent.Load() && awaited >= max(r.lease(), pooledSilenceLimit) {
					s.kill()
				}
			case working[s.pid] || awaited == 0:
				s.suspected = 0
			default:
				// Only the second time in a row counts, because an answer may have been under way the first time.
				if s.suspected++; s.suspected > 1 {
					s.kill()
					r.endBackend(r.control, s)
				}
			}
		}
	}
}

// working returns the processes that are busy, or none if the server does not answer.
func (r *run) working(sessions []*session) map[int32]bool {
	var pids []int32
	for _, s := range sessions {
		if s.direct {
			pids = append(pids, s.pid)
		}
	}
	working := map[int32]bool{}
	_ = r.control.ask(r.over, silenceLimit, func(ctx context.Context, s *session) error {
		rows, err := s.query(ctx, workingSQL, numbers(pids))
		if err != nil {
			return err
		}
		var pid int32
		_, err = pgx.ForEachRow(rows, []any{&pid}, func() error { working[pid] = true; return nil })
		return err
	})
	return working
}

// endBackend ends the process of a session that the worker has given up, if it is still in a transaction, which locks its job.
func (r *run) endBackend(l *link, s *session) {
	_ = l.ask(r.over, silenceLimit, func(ctx context.Context, own *session) error {
		return own.exec(ctx, endBackendSQL, s.pid, s.backendStart)
	})
}
