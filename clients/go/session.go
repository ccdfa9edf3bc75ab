package idemq

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
)

// sessionInfoSQL returns the process of the session, whether it is read-only, statement_timeout in milliseconds,
// whether idemq.hold_claimed exists, when the process started, and whether the server tells the worker about its attempts.
// Settings are made only if the process belongs to the session ($1); behind a pooler, they would reach other programs.
const sessionInfoSQL = `SELECT who.pid, pg_catalog.current_setting('transaction_read_only') = 'on',
    (SELECT setting FROM pg_catalog.pg_settings WHERE name = 'statement_timeout')::int,
    EXISTS (SELECT FROM pg_catalog.pg_proc AS f JOIN pg_catalog.pg_namespace AS n ON n.oid = f.pronamespace
      WHERE n.nspname = 'idemq' AND f.proname = 'hold_claimed' AND pg_catalog.has_function_privilege(f.oid, 'EXECUTE')),
    coalesce((SELECT extract(epoch FROM backend_start)::text FROM pg_catalog.pg_stat_get_activity(who.pid)), ''),
    CASE WHEN who.pid = $1::int THEN pg_catalog.set_config('array_nulls', 'on', false) || pg_catalog.set_config('idle_session_timeout',
        pg_catalog.set_config('idle_in_transaction_session_timeout', '0', false), false) END,
    coalesce(CASE WHEN who.pid = $1::int AND pg_catalog.current_setting('idemq.process', true) IS NOT NULL
      THEN pg_catalog.set_config('idemq.process', $2::text, false) END, '') <> ''
  FROM pg_catalog.pg_backend_pid() AS who (pid)`

// session is one connection to a server that accepts writes.  Only its owner may use conn; others may call kill and read the wire.
type session struct {
	conn *pgx.Conn
	wire *wire
	// direct is whether the server process belongs to this session only.  A pooler invents the number that it reports.
	direct           bool
	pid              int32
	backendStart     string
	statementTimeout time.Duration
	// canHold is whether idemq.hold_claimed exists, and hearsEnds whether the server tells the worker at once if one of its attempts ends.
	canHold, hearsEnds bool
	// held is whether a transaction has begun, and has locked the job that was claimed last.
	held bool
	// aborting is the latest error, unless it only says that an earlier one has aborted the transaction.
	aborting atomic.Pointer[pgconn.PgError]
	killed   atomic.Bool
	// abandoned is whether a handler that has not ended may still use conn.
	abandoned bool
	// suspected is whether the server had nothing to do for the silent session when it was last asked.  Only the watcher uses it.
	suspected bool
}

// connect opens a session.  lends: it is for handlers, whose statements may be cancelled without the end of the session.
func (s *server) connect(ctx context.Context, lends bool) (*session, error) {
	config := s.config.Copy()
	own := new(session)
	after, onError, dial := config.AfterNetConnect, config.OnPgError, config.DialFunc
	config.AfterNetConnect = func(ctx context.Context, config *pgconn.Config, conn net.Conn) (net.Conn, error) {
		if after != nil {
			var err error
			if conn, err = after(ctx, config, conn); err != nil {
				return conn, err
			}
		}
		own.wire = &wire{Conn: conn}
		return own.wire, nil
	}
	config.OnPgError = func(conn *pgconn.PgConn, err *pgconn.PgError) bool {
		if err.Code != "25P02" {
			own.aborting.Store(err)
		}
		return onError == nil || onError(conn, err)
	}
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if own.killed.Load() {
			return nil, errors.New("a session that was ended sends no cancel request")
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(s.over, cancel)()
		conn, err := dial(ctx, network, address)
		if err == nil && own.conn != nil && s.pooled.Load() {
			conn, err = pooledCancelConn{conn}, conn.SetDeadline(time.Now().Add(cancelTimeout))
		}
		return conn, err
	}
	if lends {
		config.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
			return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: cancelTimeout}
		}
	}
	prepares := config.DefaultQueryExecMode < pgx.QueryExecModeDescribeExec
	if s.pooled.Load() && prepares {
		config.DefaultQueryExecMode = pgx.QueryExecModeDescribeExec
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	own.conn = conn
	if err := own.inspect(ctx, s.process); err != nil {
		own.close()
		return nil, err
	}
	if !own.direct && !s.pooled.Swap(true) && prepares {
		own.close()
		return s.connect(ctx, lends)
	}
	return own, nil
}

// inspect reads the properties of a new session.
func (s *session) inspect(ctx context.Context, process string) error {
	var readOnly bool
	var milliseconds int
	var none *string
	told := int32(s.conn.PgConn().PID())
	err := s.conn.QueryRow(ctx, sessionInfoSQL, pgx.QueryExecModeExec, told, process).Scan(
		&s.pid, &readOnly, &milliseconds, &s.canHold, &s.backendStart, &none, &s.hearsEnds)
	if err != nil {
		return err
	}
	s.direct = s.pid == told
	s.statementTimeout = time.Duration(milliseconds) * time.Millisecond
	if readOnly {
		config := s.conn.Config()
		return &Error{SQLState: "25006", Message: fmt.Sprintf("%s:%d does not accept writes: it is a standby, or default_transaction_read_only is on for this role, database or server", config.Host, config.Port)}
	}
	return nil
}

// gone reports whether the session has ended.  Only its owner may call it.
func (s *session) gone() bool { return s.killed.Load() || s.conn.IsClosed() }

// broken reports whether an error means that the session can no longer be used.  25006: the server has become a standby.
func (s *session) broken(err error) bool {
	return err != nil && (s.gone() || hasState(err, "08", "57P01", "57P02", "57P03", "57P05", "25006", "40003"))
}

// kill ends the session at once, whatever it is doing.
func (s *session) kill() {
	s.killed.Store(true)
	_ = s.wire.Conn.Close()
}

// close ends the session properly.
func (s *session) close() {
	if !s.killed.Swap(true) {
		_ = s.wire.SetDeadline(time.Now().Add(500 * time.Millisecond))
		_ = s.conn.Close(context.Background())
	}
}

// args adds the mode of execution of the worker's own statements.  Behind a pooler, nothing may be prepared.
func (s *session) args(args []any) []any {
	if s.direct {
		return args
	}
	return append([]any{pgx.QueryExecModeExec}, args...)
}

func (s *session) query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return s.conn.Query(ctx, sql, s.args(args)...)
}

func (s *session) row(ctx context.Context, sql string, args ...any) pgx.Row {
	return s.conn.QueryRow(ctx, sql, s.args(args)...)
}

func (s *session) exec(ctx context.Context, sql string, args ...any) error {
	_, err := s.conn.Exec(ctx, sql, s.args(args)...)
	return err
}

// batch sends several statements in one message, and reads their results.  If ctx ends before, so does the session; the driver would leave
// a goroutine behind.
func (s *session) batch(ctx context.Context, b *pgx.Batch) error {
	defer context.AfterFunc(ctx, s.kill)()
	return typed(s.conn.SendBatch(context.WithoutCancel(ctx), b).Close())
}

// wire is the network connection of a session.  It knows for how long an answer has been awaited.  While it is lent to a handler, the
// handler cannot close it, and the end of its transaction is noticed.
type wire struct {
	net.Conn
	readingAt    atomic.Int64
	lent, failed atomic.Bool
	// closing is set if the handler has tried to close it, and controlled if it has ended or begun a transaction.
	closing, controlled atomic.Bool
}

// pooledCancelConn is the connection of a cancel request to a pooler.  pgbouncer before 1.21 ends if this connection is closed before the
// request has been answered, as pgx would do when the statement ends first.  Therefore only the deadline set at the beginning applies.
type pooledCancelConn struct{ net.Conn }

// SetDeadline does nothing.
func (pooledCancelConn) SetDeadline(time.Time) error { return nil }

// Messages of the protocol: the end of a session, and what the server says after COMMIT and BEGIN.
var (
	terminate = []byte{'X', 0, 0, 0, 4}
	committed = []byte("C\x00\x00\x00\x0bCOMMIT\x00")
	begun     = []byte("C\x00\x00\x00\x0aBEGIN\x00")
	errLent   = errors.New("only the worker may close the connection of a handler")
)

// Read notes for how long an answer is awaited, and whether it is the end of a handler's transaction.
func (w *wire) Read(b []byte) (int, error) {
	w.readingAt.Store(time.Now().UnixNano())
	n, err := w.Conn.Read(b)
	w.readingAt.Store(0)
	if err != nil {
		w.failed.Store(true)
	}
	if w.lent.Load() && (bytes.Contains(b[:n], committed) || bytes.Contains(b[:n], begun)) {
		w.controlled.Store(true)
	}
	return n, err
}

// Write refuses to end the session of a handler.  After an error, the driver itself ends it.
func (w *wire) Write(b []byte) (int, error) {
	if w.lent.Load() && !w.failed.Load() && bytes.Equal(b, terminate) {
		w.closing.Store(true)
		return 0, errLent
	}
	n, err := w.Conn.Write(b)
	if err != nil {
		w.failed.Store(true)
	}
	return n, err
}

// Close fails while the connection is lent.
func (w *wire) Close() error {
	if w.closing.Load() && w.lent.Load() {
		return errLent
	}
	return w.Conn.Close()
}

// silentFor returns for how long an answer has been awaited without any data.
func (w *wire) silentFor() time.Duration {
	since := w.readingAt.Load()
	if since == 0 {
		return 0
	}
	return time.Duration(time.Now().UnixNano() - since)
}
