package idemq

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	assertCurrentSQL = `SELECT idemq.assert_current($1::bigint, $2::bigint)`
	// Even behind a pooler, the server must not end a transaction while the handler is busy elsewhere.
	noIdleTimeoutSQL = `SELECT pg_catalog.set_config('idle_in_transaction_session_timeout', '0', true)`
)

var endsTransaction = regexp.MustCompile(`(?is)^(?:\s|;|--[^\n]*(?:\n|$)|/\*.*?\*/)*(begin|start\s+transaction|commit|end|abort|prepare\s+transaction|rollback)\b\s*((?:work\s+|transaction\s+)?to\b)?`)

// errBatchEnds ends a batch, because one of its jobs must run alone.
type errBatchEnds struct{ what string }

func (e errBatchEnds) Error() string { return "Job." + e.what + " was called" }

// sharedTx is the transaction of some jobs on one session.  It begins when a handler first uses it, or has begun when it is created.
//
// Until then, the calls of a job (steps, checkpoints, events) are committed by themselves on the same session.
type sharedTx struct {
	run     *run
	session *session
	jobs    []*attempt
	// turn is held while a statement is under way that is committed by itself.
	turn chan struct{}

	mu        sync.Mutex
	begun     bool
	beginning bool
	// failed is the error that prevented it from beginning.
	failed error
	usedAt time.Time
	// misuse is the first mistake of a handler, after which its attempt fails even if it has ignored the error.
	misuse error
	// aborting is the first error of a statement.
	aborting error
	over     bool
	// open is the number of statements that are under way, and of results that have not been closed.
	open int
	// results are those that have not been closed.
	results map[interface{ finish() }]bool
	// calls are the calls of a job that are under way, and apartCalls is their number so far.
	calls      []string
	apartCalls int
	savepoints int
}

func (t *sharedTx) isUsed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.usedLocked()
}

func (t *sharedTx) usedLocked() bool { return !t.usedAt.IsZero() || len(t.jobs) > 1 }

// touched reports whether there is anything to commit or to roll back.
func (t *sharedTx) touched() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.begun || t.beginning || t.failed != nil
}

// begin begins the transaction and locks its jobs.
func (t *sharedTx) begin(ctx context.Context) error {
	t.mu.Lock()
	switch {
	case t.begun || t.failed != nil:
		defer t.mu.Unlock()
		return t.failed
	case t.beginning:
		defer t.mu.Unlock()
		return errors.New("the handler's transaction was used by two goroutines at the same time")
	}
	t.beginning = true
	t.mu.Unlock()

	var b pgx.Batch
	b.Queue("BEGIN")
	if !t.session.direct {
		b.Queue(noIdleTimeoutSQL)
	}
	for _, a := range t.jobs {
		b.Queue(assertCurrentSQL, a.header.ID, a.header.Token)
	}
	err := typed(t.session.batch(ctx, &b).Close())

	t.mu.Lock()
	defer t.mu.Unlock()
	t.beginning = false
	t.session.socket.controlled.Store(false)
	if err != nil {
		t.failed = err
		return err
	}
	t.begun = true
	return nil
}

// apart calls fn with a function that runs statements, each committed by itself.  It fails after the first use, and in a batch.
func (t *sharedTx) apart(what string, fn func(asker) error) error {
	if err := t.refuseApart(what); err != nil {
		return err
	}
	t.mu.Lock()
	t.calls = append(t.calls, what)
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.calls = t.calls[:len(t.calls)-1]
	}()
	return fn(t.ask)
}

// refuseApart fails if the handler has used its transaction, or if other jobs share it, which then run alone.
func (t *sharedTx) refuseApart(what string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.jobs) > 1 {
		t.misuse = errBatchEnds{what}
		return t.misuse
	}
	if t.usedAt.IsZero() {
		return nil
	}
	err := fmt.Errorf("%s is not available after the handler has used its transaction, because the transaction that completes the job has begun. "+
		"Call it before the first statement, or save a checkpoint in the transaction with Job.CheckpointTx", what)
	return t.misused(err)
}

// misused notes a mistake.
func (t *sharedTx) misused(err error) error {
	if t.misuse == nil {
		t.misuse = err
	}
	return err
}

// ask runs a statement that is committed by itself, after the one before it.
func (t *sharedTx) ask(ctx context.Context, fn func(context.Context, *session) error) error {
	ctx, stop := t.run.within(ctx)
	defer stop()
	select {
	case t.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-t.turn }()
	t.mu.Lock()
	own := !t.over && !t.usedLocked()
	if own {
		t.apartCalls++
		t.open++
	}
	t.mu.Unlock()
	if own {
		t.rollbackLocked(ctx)
		gone := t.session.gone()
		var err error
		if !gone {
			err = fn(ctx, t.session)
			gone = t.session.broken(err)
		}
		t.mu.Lock()
		t.open--
		t.mu.Unlock()
		if !gone || ctx.Err() != nil {
			return err
		}
	}
	_, err := t.run.control.repeat(ctx, fn)
	return err
}

// rollbackUnused is rollbackLocked for other callers.
func (t *sharedTx) rollbackUnused() {
	ctx, stop := t.run.within(context.Background())
	defer stop()
	t.turn <- struct{}{}
	defer func() { <-t.turn }()
	t.rollbackLocked(ctx)
}

// rollbackLocked rolls back a transaction that the worker has begun and the handler has not used, because it has locked the job.  The
// caller holds the turn.
func (t *sharedTx) rollbackLocked(ctx context.Context) {
	t.mu.Lock()
	back := t.begun && !t.usedLocked()
	if back {
		t.begun = false
	}
	t.mu.Unlock()
	if back {
		_ = t.session.exec(ctx, "ROLLBACK") // if this fails, the session is gone
	}
}

// handlerTx is the pgx.Tx that a handler gets, or a savepoint in it.
type handlerTx struct {
	handling  *handling
	savepoint string
	closed    bool
}

var _ pgx.Tx = (*handlerTx)(nil)

var errWorkerEnds = errors.New("the worker ends this transaction: it is committed with the job, or rolled back if the handler returns an error; use Begin for a savepoint")

// enter begins the use of the transaction.
func (x *handlerTx) enter(ctx context.Context, sql string) error {
	t := x.handling.shared
	if x.closed {
		return pgx.ErrTxClosed
	}
	if word := endsTransaction.FindStringSubmatch(sql); word != nil && word[2] == "" {
		return fmt.Errorf("%s is not allowed in a handler: %w", strings.ToUpper(word[1]), errWorkerEnds)
	}
	if why, reason := x.handling.attempt.stopReason(); why == ErrLeaseLost {
		return reason
	}
	if x.handling.over() {
		return errors.New("the handler has ended, and so has its transaction")
	}
	t.mu.Lock()
	if t.over {
		defer t.mu.Unlock()
		return errors.New("the handler has ended, and so has its transaction")
	}
	if len(t.calls) > 0 {
		defer t.mu.Unlock()
		return t.misused(fmt.Errorf("the handler's transaction was used while %s was under way; use it after the call has returned", t.calls[0]))
	}
	if t.usedAt.IsZero() {
		t.usedAt = time.Now()
	}
	t.open++
	t.mu.Unlock()
	if err := t.begin(ctx); err != nil {
		x.exit()
		if aboutJob(err) {
			x.handling.attempt.cancel(ErrLeaseLost)
		}
		return err
	}
	return nil
}

// exit ends a use.
func (x *handlerTx) exit() { x.closeResult(nil) }

// keep notes a result that must be closed.
func keep[T interface{ finish() }](x *handlerTx, result T) T {
	t := x.handling.shared
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.results == nil {
		t.results = map[interface{ finish() }]bool{}
	}
	t.results[result] = true
	return result
}

// closeResult ends a use that had a result.
func (x *handlerTx) closeResult(result interface{ finish() }) {
	t := x.handling.shared
	t.mu.Lock()
	defer t.mu.Unlock()
	t.open--
	delete(t.results, result)
}

// closeResults closes results that a handler has left open, on a session that was killed, so that the driver forgets their contexts.
func (t *sharedTx) closeResults() {
	t.mu.Lock()
	if t.open > len(t.results) { // the handler still runs a statement
		t.mu.Unlock()
		return
	}
	results := t.results
	t.results = nil
	t.mu.Unlock()
	for result := range results {
		result.finish()
	}
}

// seen notes the error of a statement.
func (x *handlerTx) seen(err error) error {
	if err == nil || errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	t := x.handling.shared
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.aborting == nil {
		t.aborting = err
	}
	return err
}

// Begin starts a savepoint.
func (x *handlerTx) Begin(ctx context.Context) (pgx.Tx, error) {
	t := x.handling.shared
	t.mu.Lock()
	t.savepoints++
	name := fmt.Sprintf("idemq_%d", t.savepoints)
	t.mu.Unlock()
	if _, err := x.Exec(ctx, "SAVEPOINT "+name); err != nil {
		return nil, err
	}
	return &handlerTx{handling: x.handling, savepoint: name}, nil
}

// Commit releases a savepoint.  The transaction itself is committed by the worker.
func (x *handlerTx) Commit(ctx context.Context) error { return x.end(ctx, "RELEASE SAVEPOINT ") }

// Rollback rolls back to a savepoint.  The transaction itself is rolled back by the worker.
func (x *handlerTx) Rollback(ctx context.Context) error {
	return x.end(ctx, "ROLLBACK TO SAVEPOINT ")
}

func (x *handlerTx) end(ctx context.Context, sql string) error {
	if x.savepoint == "" {
		return errWorkerEnds
	}
	_, err := x.Exec(ctx, sql+x.savepoint)
	x.closed = true
	if err == nil && strings.HasPrefix(sql, "ROLLBACK") {
		t := x.handling.shared
		t.mu.Lock()
		defer t.mu.Unlock()
		t.aborting = nil
	}
	return err
}

// Exec runs a statement.
func (x *handlerTx) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	if err := x.enter(ctx, sql); err != nil {
		return tag, err
	}
	defer x.exit()
	tag, err = x.conn().Exec(ctx, sql, args...)
	return tag, x.seen(err)
}

func (x *handlerTx) conn() *pgx.Conn { return x.handling.shared.session.conn }

// Query runs a query.
func (x *handlerTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := x.enter(ctx, sql); err != nil {
		return errRows{err}, err
	}
	rows, err := x.conn().Query(ctx, sql, args...)
	if err != nil {
		x.exit()
		return rows, x.seen(err)
	}
	return keep(x, &txRows{Rows: rows, tx: x}), nil
}

// QueryRow runs a query that returns one row.
func (x *handlerTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := x.enter(ctx, sql); err != nil {
		return errRow{err}
	}
	return keep(x, &txRow{row: x.conn().QueryRow(ctx, sql, args...), tx: x})
}

// SendBatch runs several statements.
func (x *handlerTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	for _, each := range b.QueuedQueries {
		if word := endsTransaction.FindStringSubmatch(each.SQL); word != nil && word[2] == "" {
			return errBatch{fmt.Errorf("%s is not allowed in a handler: %w", strings.ToUpper(word[1]), errWorkerEnds)}
		}
	}
	if err := x.enter(ctx, ""); err != nil {
		return errBatch{err}
	}
	return keep(x, &txBatch{BatchResults: x.handling.shared.session.batch(ctx, b), tx: x})
}

// CopyFrom copies rows to a table.
func (x *handlerTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, source pgx.CopyFromSource) (int64, error) {
	if err := x.enter(ctx, ""); err != nil {
		return 0, err
	}
	defer x.exit()
	n, err := x.conn().CopyFrom(ctx, table, columns, source)
	return n, x.seen(err)
}

// Prepare prepares a statement.
func (x *handlerTx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := x.enter(ctx, sql); err != nil {
		return nil, err
	}
	defer x.exit()
	description, err := x.conn().Prepare(ctx, name, sql)
	return description, x.seen(err)
}

// LargeObjects returns the large objects of the database.
func (x *handlerTx) LargeObjects() pgx.LargeObjects {
	ctx := context.Background()
	if err := x.enter(ctx, ""); err != nil {
		return pgx.LargeObjects{}
	}
	defer x.exit()
	tx, err := x.conn().BeginTx(ctx, pgx.TxOptions{BeginQuery: "SELECT"}) // the transaction has already begun
	if err != nil {
		return pgx.LargeObjects{}
	}
	return tx.LargeObjects()
}

// Conn returns the connection.  Its Close returns an error.
func (x *handlerTx) Conn() *pgx.Conn {
	if err := x.enter(context.Background(), ""); err != nil {
		x.handling.shared.session.kill() // nothing may be written outside the transaction
		return x.conn()
	}
	x.exit()
	return x.conn()
}

// txRows, txRow and txBatch note when a result has been closed.
type txRows struct {
	pgx.Rows
	tx     *handlerTx
	closed bool
}

func (r *txRows) finish() { r.Rows.Close() }

func (r *txRows) done() {
	if !r.closed {
		r.closed = true
		r.tx.closeResult(r)
		_ = r.tx.seen(r.Rows.Err())
	}
}

// Close closes the result.
func (r *txRows) Close() {
	r.Rows.Close()
	r.done()
}

// Next prepares the next row, or closes the result.
func (r *txRows) Next() bool {
	more := r.Rows.Next()
	if !more {
		r.done()
	}
	return more
}

// Scan reads the current row.  An error closes the result.
func (r *txRows) Scan(dest ...any) error {
	err := r.Rows.Scan(dest...)
	if err != nil {
		r.done()
	}
	return err
}

type txRow struct {
	row  pgx.Row
	tx   *handlerTx
	read bool
}

func (r *txRow) finish() { _ = r.row.Scan() }

// Scan reads the row.
func (r *txRow) Scan(dest ...any) error {
	err := r.row.Scan(dest...)
	if !r.read {
		r.read = true
		r.tx.closeResult(r)
	}
	return r.tx.seen(err)
}

type txBatch struct {
	pgx.BatchResults
	tx     *handlerTx
	closed bool
}

func (b *txBatch) finish() { _ = b.BatchResults.Close() }

// Close closes the results.
func (b *txBatch) Close() error {
	err := b.BatchResults.Close()
	if !b.closed {
		b.closed = true
		b.tx.closeResult(b)
	}
	return b.tx.seen(err)
}

// errBatch, errRow and errRows are results of statements that were not sent.
type errBatch struct{ err error }

func (b errBatch) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, b.err }
func (b errBatch) Query() (pgx.Rows, error)         { return errRows(b), b.err }
func (b errBatch) QueryRow() pgx.Row                { return errRow(b) }
func (b errBatch) Close() error                     { return b.err }

type errRow struct{ err error }

func (r errRow) Scan(...any) error { return r.err }

type errRows struct{ err error }

func (r errRows) Close()                                       {}
func (r errRows) Err() error                                   { return r.err }
func (r errRows) CommandTag() pgconn.CommandTag                { return pgconn.CommandTag{} }
func (r errRows) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (r errRows) Next() bool                                   { return false }
func (r errRows) Scan(...any) error                            { return r.err }
func (r errRows) Values() ([]any, error)                       { return nil, r.err }
func (r errRows) RawValues() [][]byte                          { return nil }
func (r errRows) Conn() *pgx.Conn                              { return nil }
