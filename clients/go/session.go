package idemq

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// sessionInfo returns the process of the session, whether it is read-only, whether the server is a standby, statement_timeout in
// milliseconds, whether idemq.hold_claimed exists, when the process started, and whether the server tells the worker about its attempts.
// Settings are made only if the process belongs to the session ($1); behind a pooler, they would reach other programs.
const sessionInfoSQL = `SELECT who.pid, pg_catalog.current_setting('transaction_read_only') = 'on', pg_catalog.pg_is_in_recovery(),
    (SELECT setting FROM pg_catalog.pg_settings WHERE name = 'statement_timeout')::int,
    EXISTS (SELECT FROM pg_catalog.pg_proc AS f JOIN pg_catalog.pg_namespace AS n ON n.oid = f.pronamespace
      WHERE n.nspname = 'idemq' AND f.proname = 'hold_claimed' AND pg_catalog.has_function_privilege(f.oid, 'EXECUTE')),
    coalesce((SELECT extract(epoch FROM backend_start)::text FROM pg_catalog.pg_stat_get_activity(who.pid)), ''),
    CASE WHEN who.pid = $1::int THEN pg_catalog.set_config('array_nulls', 'on', false) || pg_catalog.set_config('idle_session_timeout',
        pg_catalog.set_config('idle_in_transaction_session_timeout', '0', false), false) END,
    CASE WHEN who.pid = $1::int AND pg_catalog.current_setting('idemq.process', true) IS NOT NULL
      THEN pg_catalog.set_config('idemq.process', $2::text, false) END
  FROM pg_catalog.pg_backend_pid() AS who (pid)`

// session is one connection to a server that accepts writes.  Only its owner may use conn; others may call kill and silentFor.
type session struct {
	conn   *pgx.Conn
	socket *socket
	// direct is whether the server process belongs to this session only.  A pooler invents the number that it reports.
	direct           bool
	pid              int32
	backendStart     string
	statementTimeout time.Duration
	// canHold is whether idemq.hold_claimed exists.  hearsEnds is whether the server tells the worker at once if one of its attempts ends.
	canHold, hearsEnds bool
	killed             atomic.Bool
	// abandoned is whether a handler that has not ended may still use conn.
	abandoned bool
	// suspected is how many times in a row the server had nothing to do for a silent session.  Only the watcher uses it.
	suspected int
}

// gone reports whether the session has ended.  Only its owner may call it.
func (s *session) gone() bool { return s.killed.Load() || s.conn.IsClosed() }

// kill ends the session at once, whatever it is doing.
func (s *session) kill() {
	s.killed.Store(true)
	s.socket.kill()
}

// close ends the session properly.
func (s *session) close() {
	if s.killed.Swap(true) {
		return
	}
	_ = s.socket.conn.SetDeadline(time.Now().Add(500 * time.Millisecond))
	_ = s.conn.Close(context.Background())
	s.socket.kill()
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

// batch sends several statements in one message.  If ctx ends before the results are closed, so does the session.
func (s *session) batch(ctx context.Context, b *pgx.Batch) *batchResults {
	// The driver would leave a goroutine behind if the session is lost.
	stop := context.AfterFunc(ctx, s.kill)
	return &batchResults{s.conn.SendBatch(context.WithoutCancel(ctx), b), stop}
}

// batchResults are the results of a batch.
type batchResults struct {
	pgx.BatchResults
	stop func() bool
}

// Close closes the results.  If reading a row has failed, the driver frees the connection only at the second call.
func (b *batchResults) Close() error {
	defer b.stop()
	err := b.BatchResults.Close()
	if err != nil {
		_ = b.BatchResults.Close()
	}
	return err
}

// broken reports whether an error means that the session can no longer be used.  25006: the server has become a standby.
func (s *session) broken(err error) bool {
	return err != nil && (s.gone() || hasState(err, "08", "57P01", "57P02", "57P03", "57P05", "25006", "40003"))
}

// socket is the network connection of a session.  It knows for how long an answer has been awaited.  While it is lent to a handler, the
// handler cannot close it, and a COMMIT that it runs is noticed.
type socket struct {
	conn      net.Conn
	readingAt atomic.Int64
	lent      atomic.Bool
	failed    atomic.Bool
	// closing is set if the handler has tried to close it, and controlled if it has ended or begun a transaction.
	closing, controlled atomic.Bool
}

// wire is the net.Conn that pgx gets.
type wire struct {
	net.Conn
	socket *socket
}

func (w *wire) Read(b []byte) (int, error) {
	w.socket.readingAt.Store(time.Now().UnixNano())
	n, err := w.Conn.Read(b)
	w.socket.readingAt.Store(0)
	if err != nil {
		w.socket.failed.Store(true)
	}
	return n, err
}

func (w *wire) Write(b []byte) (int, error) {
	if w.socket.refuses() {
		return 0, errLent
	}
	n, err := w.Conn.Write(b)
	if err != nil {
		w.socket.failed.Store(true)
	}
	return n, err
}

func (w *wire) Close() error {
	if w.socket.refuses() {
		return errLent
	}
	return w.Conn.Close()
}

// cancelConn is the connection of a cancel request, which must not outlive the worker.
type cancelConn struct {
	net.Conn
	forget func() bool
}

func (c *cancelConn) Close() error {
	c.forget()
	return c.Conn.Close()
}

// pooledCancelConn is the connection of a cancel request to a pooler.  pgbouncer before 1.21 ends if this connection is closed before the
// request has been answered, as pgx would do when the statement ends first.  Therefore only the deadline set at the beginning applies.
type pooledCancelConn struct{ net.Conn }

func (pooledCancelConn) SetDeadline(time.Time) error { return nil }

var errLent = errors.New("only the worker may close the connection of a handler")

func (s *socket) refuses() bool { return s.lent.Load() && s.closing.Load() }

func (s *socket) kill() {
	if s.conn != nil {
		_ = s.conn.Close()
	}
}

// silentFor returns for how long an answer has been awaited without any data.
func (s *socket) silentFor() time.Duration {
	since := s.readingAt.Load()
	if since == 0 {
		return 0
	}
	return time.Duration(time.Now().UnixNano() - since)
}

// Messages of the protocol: the end of a session, and what the server says after COMMIT and BEGIN.
var (
	terminate = []byte{'X', 0, 0, 0, 4}
	committed = []byte("C\x00\x00\x00\x0bCOMMIT\x00")
	begun     = []byte("C\x00\x00\x00\x0aBEGIN\x00")
)

// lentReader notices a transaction that a handler has ended in a text with several statements.
type lentReader struct {
	io.Reader
	socket *socket
}

func (r lentReader) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	if r.socket.lent.Load() && (bytes.Contains(b[:n], committed) || bytes.Contains(b[:n], begun)) {
		r.socket.controlled.Store(true)
	}
	return n, err
}

// lentWriter refuses to end the session of a handler.  After an error, the driver itself ends it.
type lentWriter struct {
	io.Writer
	socket *socket
}

func (w lentWriter) Write(b []byte) (int, error) {
	if w.socket.lent.Load() && !w.socket.failed.Load() && bytes.Equal(b, terminate) {
		w.socket.closing.Store(true)
		return 0, errLent
	}
	return w.Writer.Write(b)
}

// connect opens a session.  lends: it is for handlers, whose statements may be cancelled without the end of the session.
func (s *server) connect(ctx context.Context, lends bool) (*session, error) {
	config := s.config.Copy()
	own := &session{socket: new(socket)}
	dial, connected := config.DialFunc, new(atomic.Bool)
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(s.over, cancel)()
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		if connected.Load() && s.pooled.Load() {
			return pooledCancelConn{conn}, conn.SetDeadline(time.Now().Add(cancelTimeout))
		}
		if connected.Load() {
			return &cancelConn{conn, context.AfterFunc(s.over, func() { _ = conn.Close() })}, nil
		}
		own.socket.conn = conn
		return &wire{conn, own.socket}, nil
	}
	build := config.BuildFrontend
	config.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		return build(lentReader{r, own.socket}, lentWriter{w, own.socket})
	}
	if lends {
		config.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxHandler {
			return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: cancelTimeout}
		}
	}
	if s.pooled.Load() && config.DefaultQueryExecMode < pgx.QueryExecModeDescribeExec {
		config.DefaultQueryExecMode = pgx.QueryExecModeDescribeExec
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	connected.Store(true)
	own.conn = conn
	if err := s.inspect(ctx, own); err != nil {
		own.kill()
		_ = conn.Close(ctx)
		return nil, err
	}
	if !own.direct && !s.pooled.Swap(true) && config.DefaultQueryExecMode < pgx.QueryExecModeDescribeExec {
		own.close()
		return s.connect(ctx, lends)
	}
	return own, nil
}

// inspect reads the properties of a new session.
func (s *server) inspect(ctx context.Context, own *session) error {
	var readOnly, standby bool
	var milliseconds int
	var none, process *string
	told := int32(own.conn.PgConn().PID())
	err := own.conn.QueryRow(ctx, sessionInfoSQL, pgx.QueryExecModeExec, told, s.process).Scan(
		&own.pid, &readOnly, &standby, &milliseconds, &own.canHold, &own.backendStart, &none, &process)
	if err != nil {
		return err
	}
	own.direct = own.pid == told
	own.statementTimeout = time.Duration(milliseconds) * time.Millisecond
	own.hearsEnds = deref(process) != ""
	switch {
	case readOnly && standby:
		return &Error{SQLState: "25006", Message: fmt.Sprintf("%s:%d is a standby, which does not accept writes", own.conn.Config().Host, own.conn.Config().Port)}
	case readOnly:
		return &Error{SQLState: "25006", Message: "default_transaction_read_only is on for this role, database or server, but a worker must write: ALTER ROLE ... SET default_transaction_read_only = off"}
	}
	return nil
}
