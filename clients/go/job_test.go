package idemq_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"idemq.example/idemq"
)

// begun starts a worker with this handler, and waits until it has begun the job.
func (f *fixture) begun(o idemq.WorkerOptions, h func(ctx context.Context, tx pgx.Tx, j *idemq.Job[any]) error, ho *idemq.HandlerOptions) (id int64, stop func() (idemq.Outcomes, error)) {
	w := f.worker(o)
	began := make(chan struct{}, 100)
	idemq.Handle(w, idemq.Queue[any, any]{Name: f.queue}, func(ctx context.Context, tx pgx.Tx, j *idemq.Job[any]) (any, error) {
		began <- struct{}{}
		return nil, h(ctx, tx, j)
	}, ho)
	id = f.enqueue("x")
	stop = f.running(w)
	<-began
	return id, stop
}

func causeOf(causes chan<- error) func(ctx context.Context, tx pgx.Tx, j *idemq.Job[any]) error {
	return func(ctx context.Context, tx pgx.Tx, j *idemq.Job[any]) error {
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return ctx.Err()
	}
}

func TestCancel(t *testing.T) {
	for _, how := range []string{"before the transaction", "in a statement", "full"} {
		f := setUp(t, "lease => '10 min'") // so that no heartbeat finds it
		causes := make(chan error, 1)
		id, stop := f.begun(idemq.WorkerOptions{}, func(ctx context.Context, tx pgx.Tx, j *idemq.Job[any]) error {
			if how == "in a statement" {
				_, err := tx.Exec(ctx, "SELECT 1")
				if err == nil {
					_, err = tx.Exec(ctx, "SELECT pg_sleep(60)")
				}
				causes <- context.Cause(ctx)
				return err
			}
			return causeOf(causes)(ctx, tx, j)
		}, &idemq.HandlerOptions{Concurrency: map[bool]int{true: 1, false: 2}[how == "full"]})
		if how == "in a statement" {
			f.until("SELECT count(*) > 0 FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(60)' AND datname = current_database() AND application_name = 'idemq ' || $1", f.queue)
			go func() { _, _ = f.pool.Exec(context.Background(), "SELECT idemq.cancel($1)", id) }()
		} else if outcome, err := idemq.Cancel(context.Background(), f.pool, id); err != nil || outcome != idemq.OutcomeCancelled {
			t.Fatal(outcome, err)
		}
		if cause := <-causes; !errors.Is(cause, idemq.ErrCancelled) {
			t.Errorf("%s: %v", how, cause)
		}
		f.until("SELECT status = 'cancelled' FROM idemq.jobs WHERE id = $1", id)
		outcomes, err := stop()
		if err != nil || outcomes[idemq.OutcomeCommitted] != 0 {
			t.Error(how, outcomes, err)
		}
	}
}

func TestLeaseIsLost(t *testing.T) {
	f := setUp(t, "retry_base => '1 ms', max_attempts => 3")
	causes := make(chan error, 10)
	var calls atomic.Int64
	id, stop := f.begun(idemq.WorkerOptions{}, func(ctx context.Context, tx pgx.Tx, j *idemq.Job[any]) error {
		if calls.Add(1) > 1 {
			return effect(ctx, tx, j.JobHeader)
		}
		<-ctx.Done()
		causes <- context.Cause(ctx)
		// Whatever it does now, it cannot commit.
		if err := effect(context.WithoutCancel(ctx), tx, j.JobHeader); err == nil {
			causes <- errors.New("the transaction could be used")
		}
		return nil
	}, nil)
	f.exec("SELECT idemq.revoke_lease($1)", id)
	if cause := <-causes; !errors.Is(cause, idemq.ErrLeaseLost) {
		t.Error(cause)
	}
	f.done(1)
	outcomes, err := stop()
	if err != nil || outcomes[idemq.OutcomeCommitted] != 1 || outcomes[idemq.OutcomeStale]+outcomes[idemq.OutcomeReleased] != 1 || len(causes) > 0 {
		t.Error(outcomes, err, len(causes))
	}
	f.accounts(1)
}

func TestTimeout(t *testing.T) {
	for name, c := range map[string]struct{ settings, text string }{
		"queue":   {"job_timeout => '15 s', retry_base => '1 h'", "stopped after 12.5s (job_timeout)"},
		"handler": {"retry_base => '1 h'", "stopped after 300ms (Timeout)"},
	} {
		f := setUp(t, c.settings)
		o := &idemq.HandlerOptions{}
		if name == "handler" {
			o.Timeout = 300 * time.Millisecond
		}
		causes := make(chan error, 1)
		id, stop := f.begun(idemq.WorkerOptions{}, func(ctx context.Context, tx pgx.Tx, j *idemq.Job[any]) error {
			if deadline, ok := ctx.Deadline(); !ok || deadline != j.Deadline {
				t.Error(deadline, j.Deadline)
			}
			_, err := tx.Exec(ctx, "SELECT pg_sleep(60)")
			causes <- context.Cause(ctx)
			return err
		}, o)
		if cause := <-causes; !errors.Is(cause, idemq.ErrTimeout) {
			t.Errorf("%s: %v", name, cause)
		}
		f.until("SELECT status = 'retrying' FROM idemq.jobs WHERE id = $1", id)
		if got := value[string](f, "SELECT last_error FROM idemq.jobs WHERE id = $1", id); got != c.text {
			t.Errorf("%s: %s", name, got)
		}
		outcomes, err := stop()
		if err != nil || outcomes[idemq.OutcomeRetrying] != 1 {
			t.Error(outcomes, err)
		}
	}
}

func TestDrainWithGrace(t *testing.T) {
	// A handler that ends within the grace period is committed.
	f := setUp(t, "")
	release := make(chan struct{})
	_, stop := f.begun(idemq.WorkerOptions{}, func(ctx context.Context, tx pgx.Tx, j *idemq.Job[any]) error {
		<-release
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return effect(ctx, tx, j.JobHeader)
	}, nil)
	f.enqueue("not begun")
	time.AfterFunc(300*time.Millisecond, func() { close(release) })
	outcomes, err := stop()
	if err != nil || outcomes[idemq.OutcomeCommitted] != 1 {
		t.Error(outcomes, err)
	}
	if n := value[int](f, "SELECT count(*) FROM idemq.jobs WHERE queue_id = idemq.queue_id($1) AND status = 'pending' AND attempt = 0", f.queue); n != 1 {
		t.Errorf("%d jobs are pending", n)
	}

	// A handler that does not is told, and its job is given back uncounted.
	f = setUp(t, "")
	causes := make(chan error, 1)
	id, stop := f.begun(idemq.WorkerOptions{Grace: 100 * time.Millisecond}, causeOf(causes), nil)
	outcomes, err = stop()
	if err != nil || outcomes[idemq.OutcomeReleased] != 1 || !errors.Is(<-causes, idemq.ErrDraining) {
		t.Error(outcomes, err)
	}
	if got := value[string](f, "SELECT status || ' ' || attempt FROM idemq.jobs WHERE id = $1", id); got != "pending 0" {
		t.Error(got)
	}

	// A handler that ignores its context is abandoned, and named in the log.
	f = setUp(t, "")
	hang := make(chan struct{})
	var late error
	ended := make(chan struct{})
	id, stop = f.begun(idemq.WorkerOptions{Grace: -1}, func(ctx context.Context, tx pgx.Tx, j *idemq.Job[any]) error {
		defer close(ended)
		_, _ = tx.Exec(context.Background(), "SELECT 1")
		<-hang
		_, late = tx.Exec(context.Background(), "INSERT INTO effects VALUES ('late')")
		return nil
	}, nil)
	begun := time.Now()
	outcomes, err = stop()
	if err != nil || outcomes[idemq.OutcomeReleased] != 1 || time.Since(begun) > 30*time.Second {
		t.Error(outcomes, err, time.Since(begun))
	}
	if !strings.Contains(f.log.String(), "a handler is still running") {
		t.Error(f.log)
	}
	close(hang)
	<-ended
	if late == nil || f.status(id) != "pending" {
		t.Error(late, f.status(id))
	}
}

func TestSteps(t *testing.T) {
	for _, inside := range []bool{true, false} {
		f := setUp(t, "retry_base => '1 ms', max_attempts => 20")
		type request struct{ Amount int }
		type answer struct{ ID string }
		var calls, asks atomic.Int64
		mode := atomic.Value{}
		charge := func(ctx context.Context, j *idemq.Job[any]) (string, error) {
			got, err := idemq.Step(ctx, j, "charge", func(ctx context.Context, c idemq.StepCall) (answer, error) {
				n := calls.Add(1)
				if c.Key == "" || string(c.Request) != `{"Amount":7}` {
					return answer{}, fmt.Errorf("%+v", c)
				}
				if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > 5*time.Second {
					return answer{}, fmt.Errorf("deadline %v", deadline)
				}
				switch mode.Load() {
				case "panic", "panic, then slow":
					panic("oh")
				case "refused":
					mode.Store("")
					return answer{}, idemq.Refused(errors.New("no money"))
				}
				return answer{fmt.Sprint("call ", n)}, nil
			}, &idemq.StepOptions[answer]{Request: request{7}, CallTimeout: 50 * time.Millisecond, Ask: func(ctx context.Context, c idemq.StepCall) (answer, bool, error) {
				asks.Add(1)
				if mode.Load() == "slow" { // until the time for the call is over
					mode.Store("asked")
					time.Sleep(100 * time.Millisecond)
					return answer{}, false, nil
				}
				return answer{"asked"}, mode.Load() == "asked" && c.Key != "" && !c.BegunAt.IsZero(), nil
			}})
			return got.ID, err
		}
		run := func() (string, error) {
			id := f.enqueue("x")
			var got string
			var first atomic.Bool
			first.Store(true)
			w := f.worker(idemq.WorkerOptions{})
			again := errors.New("again")
			body := func(ctx context.Context, j *idemq.Job[any]) (err error) {
				got, err = charge(ctx, j)
				if err == nil && first.Swap(false) {
					return again
				}
				if v := mode.Load(); (v == "panic" || v == "panic, then slow") && err != nil && strings.Contains(err.Error(), "panic") {
					mode.Store(map[any]string{"panic": "asked", "panic, then slow": "slow"}[v])
				}
				return err
			}
			q := idemq.Queue[any, any]{Name: f.queue}
			if inside {
				idemq.Handle(w, q, func(ctx context.Context, tx pgx.Tx, j *idemq.Job[any]) (any, error) {
					if err := body(ctx, j); err != nil {
						return nil, err
					}
					return nil, effect(ctx, tx, j.JobHeader)
				}, nil)
			} else {
				idemq.HandleOutside(w, q, func(ctx context.Context, j *idemq.Job[any]) (any, error) { return nil, body(ctx, j) }, nil)
			}
			stop := f.running(w)
			f.until("SELECT status IN ('completed', 'dead') FROM idemq.jobs WHERE id = $1", id)
			_, err := stop()
			return got, err
		}
		mode.Store("")
		if got, err := run(); got != "call 1" || err != nil || calls.Load() != 1 {
			t.Errorf("a stored answer: %s %v, %d calls", got, err, calls.Load())
		}
		mode.Store("panic")
		if got, err := run(); got != "asked" || err != nil || asks.Load() == 0 {
			t.Errorf("an unknown answer: %s %v", got, err)
		}
		mode.Store("panic, then slow")
		calls.Store(0)
		if got, err := run(); got != "asked" || err != nil || calls.Load() != 1 {
			t.Errorf("no call after its time: %s %v, %d calls", got, err, calls.Load())
		}
		mode.Store("refused")
		calls.Store(0)
		if got, err := run(); !strings.HasPrefix(got, "call ") || err != nil || calls.Load() < 2 {
			t.Errorf("a refused call: %s %v, %d calls", got, err, calls.Load())
		}
	}
}

func TestStepAfterTheTransactionHasBegun(t *testing.T) {
	f := setUp(t, "retry_base => '1 h'")
	call := func(context.Context, idemq.StepCall) (int, error) { return 1, nil }
	for want, h := range map[string]handlerFunc{
		"Step is not available after": func(ctx context.Context, tx pgx.Tx, j *idemq.Job[any]) (any, error) {
			_ = effect(ctx, tx, j.JobHeader)
			_, _ = idemq.Step(ctx, j, "s", call, nil)
			return nil, nil // whatever it does then
		},
		"Checkpoint is not available after": func(ctx context.Context, tx pgx.Tx, j *idemq.Job[any]) (any, error) {
			_ = effect(ctx, tx, j.JobHeader)
			return nil, j.Checkpoint(ctx, 1)
		},
		"the handler's transaction was used while a step was under way": func(ctx context.Context, tx pgx.Tx, j *idemq.Job[any]) (any, error) {
			_, _ = idemq.Step(ctx, j, "s", func(ctx context.Context, _ idemq.StepCall) (int, error) { return 1, effect(ctx, tx, j.JobHeader) }, nil)
			return nil, nil
		},
		"the handler has ended while a step was under way": func(ctx context.Context, tx pgx.Tx, j *idemq.Job[any]) (any, error) {
			began := make(chan struct{})
			go func() {
				_, _ = idemq.Step(ctx, j, "s", func(ctx context.Context, _ idemq.StepCall) (int, error) { close(began); <-ctx.Done(); return 1, nil }, nil)
			}()
			<-began
			return nil, nil
		},
		"CheckpointTx is not available after": func(ctx context.Context, tx pgx.Tx, j *idemq.Job[any]) (any, error) {
			_ = effect(ctx, tx, j.JobHeader)
			return nil, pgx.BeginFunc(ctx, f.pool, func(other pgx.Tx) error { return j.CheckpointTx(ctx, other, 1) })
		},
	} {
		id := f.enqueue("x")
		f.drain(h, nil)
		if got := value[string](f, "SELECT coalesce(last_error, '') FROM idemq.jobs WHERE id = $1", id); !strings.HasPrefix(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		f.exec("SELECT idemq.cancel($1)", id)
	}
	if n := value[int](f, "SELECT count(*) FROM effects WHERE queue = $1", f.queue); n != 0 {
		t.Errorf("%d effects", n)
	}
}

func TestCheckpoints(t *testing.T) {
	f := setUp(t, "retry_base => '1 ms', max_attempts => 10")
	id := f.enqueue("x")
	var seen []string
	state := func(j *idemq.Job[any]) {
		var s string
		found, err := j.State(&s)
		seen = append(seen, fmt.Sprintf("%v %q %v", found, s, err))
	}
	handler := func(ctx context.Context, tx pgx.Tx, j *idemq.Job[any]) (any, error) {
		state(j)
		switch len(seen) {
		case 1:
			if err := j.Checkpoint(ctx, "a"); err != nil {
				return nil, err
			}
			state(j)
			if err := j.CheckpointTx(ctx, tx, "undone"); err != nil {
				return nil, err
			}
			state(j)
			return nil, errors.New("again")
		case 4:
			return nil, pgx.BeginFunc(ctx, f.pool, func(other pgx.Tx) error { return errors.Join(j.CheckpointTx(ctx, other, "b"), nil) })
		}
		return nil, nil
	}
	outcomes := idemq.Outcomes{}
	for f.status(id) != "completed" { // a drain may end before the retry is due
		for outcome, n := range f.drain(handler, nil) {
			outcomes[outcome] += n
		}
	}
	f.outcomes(outcomes, idemq.Outcomes{idemq.OutcomeCommitted: 1, idemq.OutcomeRetrying: 1})
	if got := strings.Join(seen, "; "); got != `false "" <nil>; true "a" <nil>; true "undone" <nil>; true "a" <nil>` {
		t.Error(got)
	}
	if got := value[string](f, "SELECT checkpoint::text FROM idemq.jobs WHERE id = $1", id); got != `"b"` {
		t.Error(got)
	}
}

func TestEventsAndParents(t *testing.T) {
	f := setUp(t, "retry_base => '1 ms'")
	ctx := context.Background()
	q := idemq.Queue[any, any]{Name: f.queue}
	parent, _ := q.Enqueue(ctx, f.pool, "parent", nil)
	child, err := q.Enqueue(ctx, f.pool, "child", &idemq.EnqueueOptions{DependsOn: []int64{parent.ID}})
	if err != nil || child.Status != idemq.StatusBlocked {
		t.Fatal(child, err)
	}
	handler := func(ctx context.Context, tx pgx.Tx, j *idemq.Job[any]) (any, error) {
		if j.Payload == "parent" {
			return map[string]int{"n": 3}, nil
		}
		parents, err := j.Parents(ctx)
		if err != nil || len(parents) != 1 || parents[0].ID != parent.ID || string(parents[0].Result) != `{"n": 3}` || parents[0].Status != idemq.StatusCompleted {
			return nil, fmt.Errorf("%+v %w", parents, err)
		}
		var paid struct{ Amount int }
		arrived, err := j.AwaitEvent(ctx, "paid", time.Hour, &paid)
		if err != nil {
			_ = effect(ctx, tx, j.JobHeader)
			return nil, errors.New("whatever")
		}
		late, err := j.AwaitEvent(ctx, "never", time.Millisecond, nil)
		return []any{arrived, paid.Amount, late}, err
	}
	outcomes := f.drain(handler, nil)
	f.outcomes(outcomes, idemq.Outcomes{idemq.OutcomeCommitted: 1, idemq.OutcomeWaiting: 1})
	sent, err := idemq.SendEvent(ctx, f.pool, f.queue, "paid", map[string]int{"Amount": 12})
	if err != nil || sent.Outcome != idemq.OutcomeAccepted {
		t.Fatal(sent, err)
	}
	w := f.worker(idemq.WorkerOptions{})
	idemq.Handle(w, q, handler, nil)
	stop := f.running(w)
	f.done(2)
	if _, err := stop(); err != nil {
		t.Error(err)
	}
	if got := value[string](f, "SELECT result::text FROM idemq.jobs WHERE id = $1", child.ID); got != "[true, 12, false]" {
		t.Error(got)
	}
	if n := value[int](f, "SELECT count(*) FROM effects WHERE queue = $1", f.queue); n != 0 {
		t.Errorf("%d effects", n)
	}
}

func TestHooks(t *testing.T) {
	f := setUp(t, "retry_base => '1 h'")
	f.enqueue("good")
	f.enqueue("bad")
	calls := make(chan string, 100)
	w := f.worker(idemq.WorkerOptions{Hooks: idemq.Hooks{
		Around: func(ctx context.Context, j *idemq.JobHeader, next func(context.Context) error) error {
			calls <- "around"
			return next(ctx)
		},
		Failed: func(ctx context.Context, j *idemq.JobHeader, fail idemq.Failure) {
			calls <- fmt.Sprintf("failed %s %v %v", fail.Outcome, fail.WillRetry, fail.Err)
			panic("oh")
		},
	}})
	idemq.Handle(w, idemq.Queue[string, none]{Name: f.queue}, func(ctx context.Context, tx pgx.Tx, j *idemq.Job[string]) (none, error) {
		if j.Payload == "bad" {
			return none{}, errors.New("bad")
		}
		return none{}, effect(ctx, tx, j.JobHeader)
	}, nil)
	if _, err := w.Drain(context.Background()); err != nil {
		t.Fatal(err)
	}
	close(calls)
	var all []string
	for call := range calls {
		all = append(all, call)
	}
	if got := strings.Join(all, "; "); got != "around; around; failed retrying true bad" {
		t.Error(got)
	}
	if !strings.Contains(f.log.String(), "hook failed") {
		t.Error(f.log)
	}
}

func TestBreaker(t *testing.T) {
	f := setUp(t, "retry_base => '1 h', max_attempts => 2")
	f.enqueueMany(25)
	var calls, most, running atomic.Int64
	w := f.worker(idemq.WorkerOptions{})
	idemq.Handle(w, idemq.Queue[any, any]{Name: f.queue}, func(ctx context.Context, tx pgx.Tx, j *idemq.Job[any]) (any, error) {
		if calls.Add(1) > 11 {
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
		}
		if calls.Load() > 14 {
			return nil, nil
		}
		return nil, fmt.Errorf("the provider is down: %d", j.ID)
	}, &idemq.HandlerOptions{Concurrency: 5})
	stop := f.running(w)
	f.until("SELECT count(*) > 8 FROM idemq.jobs WHERE queue_id = idemq.queue_id($1) AND status = 'completed'", f.queue)
	outcomes, err := stop()
	if err != nil || outcomes[idemq.OutcomeRetrying] > 16 {
		t.Error(outcomes, err)
	}
	if log := f.log.String(); !strings.Contains(log, "ten attempts in a row have failed with the same error") || !strings.Contains(log, "runs 5 jobs at a time again") {
		t.Error(log)
	}
}
