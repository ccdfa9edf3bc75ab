package idemq

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// handlerTx is the pgx.Tx that a handler gets, or a savepoint in it.
type handlerTx struct {
	call      *call
	savepoint string
	closed    bool
}

var _ pgx.Tx = (*handlerTx)(nil)

var (
	errWorkerEnds = errors.New("the worker ends this transaction: it is committed with the job, or rolled back if the handler returns an error; use Begin for a savepoint")
	errTxEnded    = errors.New("the handler has ended, and so has its transaction")

	endsTransaction = regexp.MustCompile(`(?is)^(?:\s|;|--[^\n]*(?:\n|$)|/\*.*?\*/)*(begin|start\s+transaction|commit|end|abort|prepare\s+transaction|rollback)\b\s*((?:work\s+|transaction\s+)?to\b)?`)
)

// enter begins the use of the transaction, by one of these statements.
func (x *handlerTx) enter(ctx context.Context, statements ...string) error {
	c := x.call
	c.mu.Lock()
	defer c.mu.Unlock()
	switch cause := context.Cause(c.ctx); {
	case x.closed:
		return pgx.ErrTxClosed
	case c.ended:
		return errTxEnded
	case errors.Is(cause, ErrLeaseLost):
		return cause
	case c.apart > 0:
		return c.tx.misused(errors.New("the handler's transaction was used while a step was under way; use it after the call has returned"))
	}
	for _, sql := range statements {
		if word := endsTransaction.FindStringSubmatch(sql); word != nil && word[2] == "" {
			return fmt.Errorf("%s is not allowed in a handler: %w", strings.ToUpper(word[1]), errWorkerEnds)
		}
	}
	if c.tx.usedAt.IsZero() {
		c.tx.usedAt = time.Now()
	}
	if err := c.tx.begin(ctx); err != nil {
		return err
	}
	c.tx.session.wire.lent.Store(true)
	return nil
}

func (x *handlerTx) conn() *pgx.Conn { return x.call.tx.session.conn }

// Begin starts a savepoint.
func (x *handlerTx) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := x.enter(ctx); err != nil {
		return nil, err
	}
	x.call.tx.savepoints++
	name := fmt.Sprintf("idemq_%d", x.call.tx.savepoints)
	if _, err := x.Exec(ctx, "SAVEPOINT "+name); err != nil {
		return nil, err
	}
	return &handlerTx{call: x.call, savepoint: name}, nil
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
	return err
}

// Exec runs a statement.
func (x *handlerTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := x.enter(ctx, sql); err != nil {
		return pgconn.CommandTag{}, err
	}
	return x.conn().Exec(ctx, sql, args...)
}

// Query runs a query.
func (x *handlerTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := x.enter(ctx, sql); err != nil {
		return errRows{err: err}, err
	}
	return x.conn().Query(ctx, sql, args...)
}

// QueryRow runs a query that returns one row.
func (x *handlerTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := x.enter(ctx, sql); err != nil {
		return errRows{err: err}
	}
	return x.conn().QueryRow(ctx, sql, args...)
}

// SendBatch runs several statements.
func (x *handlerTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	statements := make([]string, len(b.QueuedQueries))
	for n, each := range b.QueuedQueries {
		statements[n] = each.SQL
	}
	if err := x.enter(ctx, statements...); err != nil {
		return errBatch{err}
	}
	return x.conn().SendBatch(ctx, b)
}

// CopyFrom copies rows to a table.
func (x *handlerTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, source pgx.CopyFromSource) (int64, error) {
	if err := x.enter(ctx); err != nil {
		return 0, err
	}
	return x.conn().CopyFrom(ctx, table, columns, source)
}

// Prepare prepares a statement.
func (x *handlerTx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := x.enter(ctx, sql); err != nil {
		return nil, err
	}
	return x.conn().Prepare(ctx, name, sql)
}

// LargeObjects returns the large objects of the database.
func (x *handlerTx) LargeObjects() pgx.LargeObjects {
	ctx := context.Background()
	if err := x.enter(ctx); err != nil {
		return pgx.LargeObjects{}
	}
	tx, err := x.conn().BeginTx(ctx, pgx.TxOptions{BeginQuery: "SELECT"}) // the transaction has already begun
	if err != nil {
		return pgx.LargeObjects{}
	}
	return tx.LargeObjects()
}

// Conn returns the connection.  Its Close returns an error.
func (x *handlerTx) Conn() *pgx.Conn {
	if err := x.enter(context.Background()); err != nil {
		x.call.tx.session.kill() // nothing may be written outside the transaction
	}
	return x.conn()
}

// errRows and errBatch are the results of statements that were not sent.
type errRows struct {
	pgx.Rows
	err error
}

func (r errRows) Close()                        {}
func (r errRows) Err() error                    { return r.err }
func (r errRows) CommandTag() pgconn.CommandTag { return pgconn.CommandTag{} }
func (r errRows) Next() bool                    { return false }
func (r errRows) Scan(...any) error             { return r.err }

type errBatch struct{ err error }

func (b errBatch) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, b.err }
func (b errBatch) Query() (pgx.Rows, error)         { return errRows{err: b.err}, b.err }
func (b errBatch) QueryRow() pgx.Row                { return errRows{err: b.err} }
func (b errBatch) Close() error                     { return b.err }
