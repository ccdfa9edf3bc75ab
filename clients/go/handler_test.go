package idemq_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"idemq.example/idemq"
)

type none = struct{}

type handlerFunc = func(ctx context.Context, tx pgx.Tx, j *idemq.Job[any]) (any, error)

// drain runs the ready jobs with a handler.
func (f *fixture) drain(h handlerFunc, o *idemq.HandlerOptions) idemq.Outcomes {
	f.Helper()
	w := f.worker(idemq.WorkerOptions{})
	idemq.Handle(w, idemq.Queue[any, any]{Name: f.queue}, h, o)
	outcomes, err := w.Drain(context.Background())
	if err != nil {
		f.Fatal(err)
	}
	return outcomes
}

type ownError struct{ order int }

func (e ownError) Error() string { return fmt.Sprintf("order %d is odd", e.order) }

func TestHowAttemptsEnd(t *testing.T) {
	f := setUp(t, "max_attempts => 5, retry_base => '1 h'")
	divide := func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, "SELECT 1/0"); return err }
	for name, c := range map[string]struct {
		handler handlerFunc
		want    string // status, attempt, last_error
		details string // LIKE
	}{
		"error": {func(context.Context, pgx.Tx, *idemq.Job[any]) (any, error) {
			return nil, fmt.Errorf("first: %w", ownError{3})
		}, "retrying 1 first: order 3 is odd", `%"type": "*fmt.wrapError"%"idemq_test.ownError"%`},
		"sql":    {func(ctx context.Context, tx pgx.Tx, _ *idemq.Job[any]) (any, error) { return nil, divide(ctx, tx) }, "retrying 1 ERROR: division by zero (SQLSTATE 22012)", `%"sqlstate": "22012"%`},
		"panic":  {func(context.Context, pgx.Tx, *idemq.Job[any]) (any, error) { panic("oh") }, "retrying 1 panic: oh", `%"trace": "%handler_test.go%`},
		"goexit": {func(context.Context, pgx.Tx, *idemq.Job[any]) (any, error) { runtime.Goexit(); return nil, nil }, "retrying 1 the handler called runtime.Goexit, as t.FailNow does", "%"},
		"later": {func(ctx context.Context, tx pgx.Tx, j *idemq.Job[any]) (any, error) {
			return nil, fmt.Errorf("%w", idemq.RetryLater(time.Minute, errors.New("soon")))
		}, "retrying 1 soon", "%"},
		"dead": {func(context.Context, pgx.Tx, *idemq.Job[any]) (any, error) { return nil, idemq.Dead(ownError{1}) }, "dead 1 order 1 is odd", `%"type": "idemq_test.ownError"%`},
		"snooze": {func(context.Context, pgx.Tx, *idemq.Job[any]) (any, error) {
			return nil, idemq.Snooze(time.Hour, "tired")
		}, "pending 0 ", ""},
		"hold": {func(context.Context, pgx.Tx, *idemq.Job[any]) (any, error) {
			return nil, idemq.HoldBack(time.Second, "")
		}, "pending 0 ", ""},
		"result": {func(context.Context, pgx.Tx, *idemq.Job[any]) (any, error) { return make(chan int), nil }, "retrying 1 the result cannot be encoded as JSON: json: unsupported type: chan int", "%"},
		"nul":    {func(context.Context, pgx.Tx, *idemq.Job[any]) (any, error) { return nil, errors.New("a\x00b\xff") }, "retrying 1 ab�", "%"},
		"ignored": {func(ctx context.Context, tx pgx.Tx, _ *idemq.Job[any]) (any, error) {
			_ = divide(ctx, tx)
			return nil, nil
		}, "retrying 1 the handler has ignored an error, which has aborted its transaction: ERROR: division by zero (SQLSTATE 22012)", "%"},
		"rows open": {func(ctx context.Context, tx pgx.Tx, _ *idemq.Job[any]) (any, error) {
			_, err := tx.Query(ctx, "SELECT 1")
			return nil, err
		}, "retrying 1 the handler has ended while a statement was running or a result was open; close its rows", "%"},
		"commit": {func(ctx context.Context, tx pgx.Tx, _ *idemq.Job[any]) (any, error) { return nil, tx.Commit(ctx) }, "retrying 1 the worker ends this transaction: it is committed with the job, or rolled back if the handler returns an error; use Begin for a savepoint", "%"},
		"commit sql": {func(ctx context.Context, tx pgx.Tx, _ *idemq.Job[any]) (any, error) {
			_, err := tx.Exec(ctx, " /* x */ commit")
			return nil, err
		}, "retrying 1 COMMIT is not allowed in a handler: the worker ends this transaction: it is committed with the job, or rolled back if the handler returns an error; use Begin for a savepoint", "%"},
		"two statements": {func(ctx context.Context, tx pgx.Tx, j *idemq.Job[any]) (any, error) {
			return nil, tx.Conn().PgConn().Exec(ctx, "SELECT 1; COMMIT; BEGIN").Close()
		}, "retrying 1 the handler has ended the transaction in which its job is committed; remove that statement, or use HandleOutside", "%"},
		"rollback by conn": {func(ctx context.Context, tx pgx.Tx, j *idemq.Job[any]) (any, error) {
			return nil, tx.Conn().PgConn().Exec(ctx, "ROLLBACK").Close()
		}, "retrying 1 the handler has ended the transaction in which its job is committed; remove that statement, or use HandleOutside", "%"},
		"close": {func(ctx context.Context, tx pgx.Tx, j *idemq.Job[any]) (any, error) {
			if err := tx.Conn().Close(ctx); err == nil {
				return nil, errors.New("Close has returned nil")
			}
			return nil, nil
		}, "retrying 1 the handler has closed its connection, which belongs to the worker", "%"},
		"own end": {func(ctx context.Context, tx pgx.Tx, j *idemq.Job[any]) (any, error) {
			_, err := tx.Exec(ctx, "SELECT idemq.commit($1, $2)", j.ID, j.Token)
			return nil, err
		}, "retrying 1 the handler has ended its own job; let the worker end it, or use HandleOutside: job % has already been committed with this token%", "%"},
	} {
		id := f.enqueue(name)
		f.drain(c.handler, nil)
		if got := value[string](f, "SELECT status || ' ' || attempt || ' ' || coalesce(last_error, '') FROM idemq.jobs WHERE id = $1", id); !value[bool](f, "SELECT $1::text LIKE replace($2, '\\', '\\\\')", got, c.want) {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
		if got := value[string](f, "SELECT coalesce(max(details::text), '') FROM idemq.attempts WHERE job_id = $1", id); !value[bool](f, "SELECT $1::text LIKE $2", got, c.details) {
			t.Errorf("%s: details: got %s, want %s", name, got, c.details)
		}
		f.exec("SELECT idemq.cancel($1), idemq.resume($2)", id, f.queue)
	}
	if n := value[int](f, "SELECT count(*) FROM effects WHERE queue = $1", f.queue); n != 0 {
		t.Errorf("%d effects", n)
	}
}

func TestPayloads(t *testing.T) {
	f := setUp(t, "retry_base => '1 h'")
	deep := strings.Repeat("[", 1500) + strings.Repeat("]", 1500)
	all := []string{`null`, `""`, `9007199254740993`, `1e400`, `1e-400`, `"😀"`, deep, "1" + strings.Repeat("0", 4999), `{"a": [1.10, "<&>"]}`}
	for _, payload := range all {
		f.exec("SELECT idemq.enqueue($1, $2::text::jsonb)", f.queue, payload)
	}
	var mu sync.Mutex
	f.drain(func(ctx context.Context, tx pgx.Tx, j *idemq.Job[any]) (any, error) {
		mu.Lock()
		defer mu.Unlock()
		_, err := tx.Exec(ctx, "SELECT 1")
		return j.Payload, err
	}, &idemq.HandlerOptions{Concurrency: 3})
	if n := value[int](f, "SELECT count(*) FROM idemq.jobs WHERE queue_id = idemq.queue_id($1) AND status = 'completed' AND coalesce(result, 'null') = payload", f.queue); n != len(all) {
		t.Errorf("%d of %d arrive equal", n, len(all))
	}
	if _, err := (idemq.Queue[string, none]{Name: f.queue}).Enqueue(context.Background(), f.pool, "a\x00b", nil); err == nil {
		t.Error("NUL was accepted")
	}
	id := f.enqueue("text")
	w := f.worker(idemq.WorkerOptions{})
	idemq.Handle(w, idemq.Queue[int, none]{Name: f.queue}, func(ctx context.Context, tx pgx.Tx, j *idemq.Job[int]) (none, error) { return none{}, nil }, nil)
	if _, err := w.Drain(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got := value[string](f, "SELECT last_error FROM idemq.jobs WHERE id = $1", id); !strings.HasPrefix(got, "the payload cannot be decoded: ") {
		t.Error(got)
	}
}

func TestTransaction(t *testing.T) {
	f := setUp(t, "retry_base => '1 h'")
	f.enqueue(1)
	var late pgx.Tx
	outcomes := f.drain(func(ctx context.Context, tx pgx.Tx, j *idemq.Job[any]) (any, error) {
		late = tx
		defer func() { _ = tx.Rollback(ctx) }() // as many programs do
		err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
			if err := effect(ctx, tx, j.JobHeader); err != nil {
				return err
			}
			return errors.New("undo")
		})
		if err == nil || err.Error() != "undo" {
			return nil, fmt.Errorf("BeginFunc: %v", err)
		}
		if err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { return effect(ctx, tx, j.JobHeader) }); err != nil {
			return nil, err
		}
		savepoint, err := tx.Begin(ctx)
		if err != nil {
			return nil, err
		}
		if _, err := savepoint.Exec(ctx, "SELECT 1/0"); err == nil {
			return nil, errors.New("no error")
		}
		if err := savepoint.Rollback(ctx); err != nil {
			return nil, err
		}
		if _, err := savepoint.Exec(ctx, "SELECT 1"); !errors.Is(err, pgx.ErrTxClosed) {
			return nil, fmt.Errorf("a closed savepoint: %v", err)
		}
		var b pgx.Batch
		b.Queue("SELECT 1")
		b.Queue("INSERT INTO effects VALUES ($1, $2, 0)", j.Queue, j.ID)
		if err := tx.SendBatch(ctx, &b).Close(); err != nil {
			return nil, err
		}
		if n, err := tx.CopyFrom(ctx, pgx.Identifier{"effects"}, []string{"queue", "job"}, pgx.CopyFromRows([][]any{{j.Queue, j.ID}})); n != 1 || err != nil {
			return nil, fmt.Errorf("CopyFrom: %d %w", n, err)
		}
		objects := tx.LargeObjects()
		id, err := objects.Create(ctx, 0)
		if err == nil {
			err = objects.Unlink(ctx, id)
		}
		if err != nil {
			return nil, err
		}
		rows, _ := tx.Query(ctx, "SELECT * FROM generate_series(1, 3)")
		numbers, err := pgx.CollectRows(rows, pgx.RowTo[int])
		if !slices.Equal(numbers, []int{1, 2, 3}) {
			return nil, fmt.Errorf("%v %w", numbers, err)
		}
		// A statement with a limit of its own can be undone.
		return nil, pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
			err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
				limited, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
				defer cancel()
				_, err := tx.Exec(limited, "SELECT pg_sleep(60)")
				return err
			})
			if !errors.Is(err, context.DeadlineExceeded) && !strings.Contains(fmt.Sprint(err), "57014") {
				return fmt.Errorf("a limited statement: %w", err)
			}
			_, err = tx.Exec(ctx, "SELECT 1")
			return err
		})
	}, nil)
	f.outcomes(outcomes, idemq.Outcomes{idemq.OutcomeCommitted: 1})
	if n := value[int](f, "SELECT count(*) FROM effects WHERE queue = $1", f.queue); n != 3 {
		t.Errorf("%d effects", n)
	}
	ctx := context.Background()
	_, errExec := late.Exec(ctx, "SELECT 1")
	rows, errQuery := late.Query(ctx, "SELECT 1")
	_, errPrepare := late.Prepare(ctx, "x", "SELECT 1")
	_, errCopy := late.CopyFrom(ctx, pgx.Identifier{"effects"}, nil, nil)
	_, errBegin := late.Begin(ctx)
	for n, err := range []error{errExec, errQuery, rows.Err(), late.QueryRow(ctx, "SELECT 1").Scan(), errPrepare, errCopy, errBegin, late.SendBatch(ctx, new(pgx.Batch)).Close(), late.Commit(ctx), late.Rollback(ctx)} {
		if err == nil {
			t.Errorf("method %d of a transaction whose handler has ended returns nil", n)
		}
	}
}

func TestSerializationFailureRunsTheHandlerAgain(t *testing.T) {
	f := setUp(t, "retry_base => '1 h'")
	good, bad := f.enqueue("good"), f.enqueue("bad")
	var calls atomic.Int64
	outcomes := f.drain(func(ctx context.Context, tx pgx.Tx, j *idemq.Job[any]) (any, error) {
		if err := effect(ctx, tx, j.JobHeader); err != nil {
			return nil, err
		}
		if n := calls.Add(1); j.ID == bad || n < 4 {
			_, err := tx.Exec(ctx, "DO $$ BEGIN RAISE serialization_failure; END $$")
			return nil, fmt.Errorf("hidden: %v", err)
		}
		return nil, nil
	}, nil)
	f.outcomes(outcomes, idemq.Outcomes{idemq.OutcomeCommitted: 1, idemq.OutcomeRetrying: 1})
	if n := value[int](f, "SELECT count(*) FROM effects WHERE queue = $1 AND job = $2", f.queue, good); n != 1 || calls.Load() != 8 {
		t.Errorf("%d effects, %d calls", n, calls.Load())
	}
	if n := value[int](f, "SELECT attempt FROM idemq.jobs WHERE id = $1", bad); n != 1 {
		t.Errorf("%d attempts", n)
	}
}

func TestBatch(t *testing.T) {
	f := setUp(t, "retry_base => '1 h'")
	for n := range 50 {
		f.enqueue(n)
	}
	xids := map[string]int{}
	var mu sync.Mutex
	outcomes := f.drain(func(ctx context.Context, tx pgx.Tx, j *idemq.Job[any]) (any, error) {
		if err := effect(ctx, tx, j.JobHeader); err != nil {
			return nil, err
		}
		if fmt.Sprint(j.Payload) == "33" {
			return nil, errors.New("33")
		}
		var xid string
		err := tx.QueryRow(ctx, "SELECT pg_current_xact_id()::text").Scan(&xid)
		mu.Lock()
		defer mu.Unlock()
		xids[xid]++
		return nil, err
	}, &idemq.HandlerOptions{Batch: 10})
	f.outcomes(outcomes, idemq.Outcomes{idemq.OutcomeCommitted: 49, idemq.OutcomeRetrying: 1})
	if n := value[int](f, "SELECT count(DISTINCT job) FROM effects WHERE queue = $1", f.queue); n != 49 || value[int](f, "SELECT count(*) FROM effects WHERE queue = $1", f.queue) != 49 {
		t.Errorf("%d effects", n)
	}
	if len(xids) > 25 {
		t.Errorf("%d transactions", len(xids))
	}
}

func TestStepInABatchRunsAlone(t *testing.T) {
	f := setUp(t, "retry_base => '1 h'")
	for n := range 10 {
		f.enqueue(n)
	}
	var calls atomic.Int64
	outcomes := f.drain(func(ctx context.Context, tx pgx.Tx, j *idemq.Job[any]) (any, error) {
		_, err := idemq.Step(ctx, j, "s", func(context.Context, idemq.StepCall) (int, error) { calls.Add(1); return 1, nil }, nil)
		if err != nil {
			return nil, nil // whatever the handler does then
		}
		return nil, effect(ctx, tx, j.JobHeader)
	}, &idemq.HandlerOptions{Batch: 10})
	f.outcomes(outcomes, idemq.Outcomes{idemq.OutcomeCommitted: 10})
	if n := value[int](f, "SELECT count(*) FROM effects WHERE queue = $1", f.queue); n != 10 || calls.Load() != 10 {
		t.Errorf("%d effects, %d calls", n, calls.Load())
	}
	if !strings.Contains(f.log.String(), "one at a time: Job.Step was called") {
		t.Error(f.log)
	}
}

func TestKindsAndQueues(t *testing.T) {
	f := setUp(t, "retry_base => '1 h'")
	other := setUp(t, "")
	ctx := context.Background()
	add := func(f *fixture, kind string) int64 {
		added, err := idemq.Queue[any, any]{Name: f.queue, Kind: kind}.Enqueue(ctx, f.pool, kind, nil)
		if err != nil {
			t.Fatal(err)
		}
		return added.ID
	}
	a, b, unknown, plain, any1, any2 := add(f, "a"), add(f, "b"), add(f, "c"), add(f, ""), add(other, "x"), add(other, "")
	w := f.worker(idemq.WorkerOptions{})
	handler := func(name string) handlerFunc {
		return func(context.Context, pgx.Tx, *idemq.Job[any]) (any, error) { return name, nil }
	}
	idemq.Handle(w, idemq.Queue[any, any]{Name: f.queue, Kind: "a"}, handler("a"), &idemq.HandlerOptions{Concurrency: 2})
	idemq.Handle(w, idemq.Queue[any, any]{Name: f.queue, Kind: "b"}, handler("b"), nil)
	idemq.Handle(w, idemq.Queue[any, any]{Name: f.queue}, handler("plain"), nil)
	idemq.HandleOutside(w, idemq.Queue[any, any]{Name: other.queue}, func(context.Context, *idemq.Job[any]) (any, error) { return "other", nil }, nil)
	outcomes, err := w.Drain(ctx)
	if err != nil {
		t.Fatal(err)
	}
	f.outcomes(outcomes, idemq.Outcomes{idemq.OutcomeCommitted: 5, idemq.OutcomeReleased: 1})
	for id, want := range map[int64]string{a: "completed \"a\"", b: "completed \"b\"", plain: "completed \"plain\"", any1: "completed \"other\"", any2: "completed \"other\"", unknown: "pending "} {
		if got := value[string](f, "SELECT status || ' ' || coalesce(result::text, '') FROM idemq.jobs WHERE id = $1", id); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if !strings.Contains(f.log.String(), "no handler for this kind") {
		t.Error(f.log)
	}
}

// A handler that uses its transaction at once has the next job locked with its claim, also one of a kind without a handler.
func TestUnknownKindIsNotLocked(t *testing.T) {
	f := setUp(t, "")
	ctx := context.Background()
	for n := 0; n < 20; n++ {
		for _, kind := range []string{"a", "b"} {
			if _, err := (idemq.Queue[any, any]{Name: f.queue, Kind: kind}).Enqueue(ctx, f.pool, n, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	w := f.worker(idemq.WorkerOptions{})
	idemq.Handle(w, idemq.Queue[any, any]{Name: f.queue, Kind: "a"}, func(ctx context.Context, tx pgx.Tx, _ *idemq.Job[any]) (any, error) {
		_, err := tx.Exec(ctx, "SELECT 1")
		return nil, err
	}, nil)
	outcomes, err := w.Drain(ctx)
	if err != nil {
		t.Fatal(err)
	}
	f.outcomes(outcomes, idemq.Outcomes{idemq.OutcomeCommitted: 20, idemq.OutcomeReleased: 20})
}

func TestMistakes(t *testing.T) {
	f := setUp(t, "")
	h := func(context.Context, pgx.Tx, *idemq.Job[any]) (any, error) { return nil, nil }
	run := func(add func(w *idemq.Worker)) error {
		w := f.worker(idemq.WorkerOptions{})
		add(w)
		_, err := w.Run(context.Background())
		return err
	}
	q := idemq.Queue[any, any]{Name: f.queue}
	for name, add := range map[string]func(w *idemq.Worker){
		"has no handlers":                func(w *idemq.Worker) {},
		"two handlers for kind":          func(w *idemq.Worker) { idemq.Handle(w, q, h, nil); idemq.Handle(w, q, h, nil) },
		"the handler is nil":             func(w *idemq.Worker) { idemq.Handle[any, any](w, q, nil, nil) },
		"the name of the queue is empty": func(w *idemq.Worker) { idemq.Handle(w, idemq.Queue[any, any]{}, h, nil) },
		"negative":                       func(w *idemq.Worker) { idemq.Handle(w, q, h, &idemq.HandlerOptions{Concurrency: -1}) },
		"either Handle or HandleOutside": func(w *idemq.Worker) {
			idemq.Handle(w, q, h, nil)
			idemq.HandleOutside(w, idemq.Queue[any, any]{Name: f.queue, Kind: "x"}, func(context.Context, *idemq.Job[any]) (any, error) { return nil, nil }, nil)
		},
		"different options": func(w *idemq.Worker) {
			idemq.Handle(w, q, h, &idemq.HandlerOptions{Concurrency: 1})
			idemq.Handle(w, idemq.Queue[any, any]{Name: f.queue, Kind: "x"}, h, &idemq.HandlerOptions{Concurrency: 2})
		},
	} {
		if err := run(add); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := run(func(w *idemq.Worker) { idemq.Handle(w, idemq.Queue[any, any]{Name: "missing"}, h, nil) }); !errors.Is(err, idemq.ErrNoSuchQueue) {
		t.Error(err)
	}
	w := f.worker(idemq.WorkerOptions{})
	idemq.Handle(w, q, h, nil)
	if _, err := w.Drain(context.Background()); err != nil {
		t.Error(err)
	}
	if _, err := w.Drain(context.Background()); err == nil {
		t.Error("a worker has run twice")
	}
}
