package idemq_test

import (
	"context"
	"errors"
	"math/rand"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"idemq.example/idemq"
)

// mischief is a handler that fails in every way, but has its effect once.
func mischief(ctx context.Context, tx pgx.Tx, j *idemq.Job[any]) (any, error) {
	if rand.Intn(4) == 0 {
		if _, err := idemq.Step(ctx, j, "s", func(context.Context, idemq.StepCall) (int, error) {
			if rand.Intn(3) == 0 {
				return 0, idemq.Refused(errors.New("refused"))
			}
			return 1, nil
		}, &idemq.StepOptions[int]{CallTimeout: 10 * time.Millisecond}); err != nil {
			return nil, err
		}
	}
	if rand.Intn(8) == 0 {
		if err := j.Checkpoint(ctx, 1); err != nil {
			return nil, err
		}
	}
	if rand.Intn(8) == 0 {
		return 1, nil // without a transaction, and so without its effect; see below
	}
	if err := effect(ctx, tx, j.JobHeader); err != nil {
		return nil, err
	}
	switch rand.Intn(40) {
	case 0:
		panic("oh")
	case 1:
		runtime.Goexit()
	case 2:
		return nil, idemq.Snooze(0, "tired")
	case 3:
		return nil, idemq.RetryLater(0, errors.New("later"))
	case 4:
		_, err := tx.Exec(ctx, "SELECT 1/0")
		return nil, err
	case 5:
		_, err := tx.Exec(ctx, "DO $$ BEGIN RAISE serialization_failure; END $$")
		return nil, err
	case 6:
		_, _ = tx.Query(ctx, "SELECT * FROM generate_series(1, 100000)")
		return nil, nil
	case 7:
		_ = tx.Conn().Close(ctx)
		return nil, nil
	case 8:
		return make(chan int), nil
	case 9:
		limited, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		_, err := tx.Exec(limited, "SELECT pg_sleep(1)")
		return nil, err
	case 10:
		<-time.After(20 * time.Millisecond)
		return nil, ctx.Err()
	}
	return 2, nil
}

// Workers are stopped, sessions terminated, leases revoked and jobs cancelled at random, while handlers fail in every way.
func TestMischief(t *testing.T) {
	f := setUp(t, "lease => '3 s', retry_base => '1 ms', max_attempts => 1000")
	const jobs = 400
	f.enqueueMany(jobs)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	// Stops and harm come after a number of calls, so that each machine makes progress.
	var calls atomic.Int64
	ended := make(chan int, 2)
	for n := range 2 {
		go func() {
			runs := 0
			for ; ctx.Err() == nil; runs++ {
				limited, stop := context.WithCancel(ctx)
				left := new(atomic.Int64)
				left.Store(1 + rand.Int63n(100))
				w := f.worker(idemq.WorkerOptions{Grace: time.Duration(1+rand.Intn(100)) * time.Millisecond})
				idemq.Handle(w, idemq.Queue[any, any]{Name: f.queue}, func(ctx context.Context, tx pgx.Tx, j *idemq.Job[any]) (any, error) {
					calls.Add(1)
					if left.Add(-1) == 0 {
						stop()
					}
					return mischief(ctx, tx, j)
				}, &idemq.HandlerOptions{Concurrency: 1 + 4*n, Batch: 1 + 2*n})
				if _, err := w.Run(limited); err != nil {
					t.Error(err)
				}
				stop()
			}
			ended <- runs
		}()
	}
	var harm atomic.Int64
	harmed := make(chan struct{})
	go func() {
		defer close(harmed)
		for n := 0; ctx.Err() == nil; n++ {
			for next := calls.Load() + rand.Int63n(12); calls.Load() < next && ctx.Err() == nil; {
				time.Sleep(time.Millisecond)
			}
			sql := []string{
				"SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'idemq ' || $1 AND query <> '' AND query NOT LIKE 'SELECT who.pid%' ORDER BY random() LIMIT 1) AS s",
				"SELECT count(idemq.revoke_lease(job_id)) FROM (SELECT job_id FROM idemq.running_jobs WHERE queue = $1 ORDER BY random() LIMIT 1) AS s",
				"SELECT count(idemq.cancel(job_id)) FROM (SELECT job_id FROM idemq.running_jobs WHERE queue = $1 ORDER BY random() LIMIT 1) AS s",
			}[[]int{0, 0, 0, 1, 1, 1, 1, 2}[n%8]]
			var done int64
			_ = f.pool.QueryRow(context.Background(), sql, f.queue).Scan(&done)
			harm.Add(done)
		}
	}()
	f.until("SELECT count(*) = $2 FROM idemq.jobs WHERE queue_id = idemq.queue_id($1) AND finished_at IS NOT NULL", f.queue, jobs)
	cancel()
	<-harmed
	runs := <-ended + <-ended
	t.Log(runs, harm.Load(), value[string](f, "SELECT string_agg(status || ' ' || n, ', ') FROM (SELECT status, count(*) AS n FROM idemq.jobs WHERE queue_id = idemq.queue_id($1) GROUP BY 1) AS s", f.queue))
	for what, sql := range map[string]string{
		"an effect twice":                  "SELECT count(*) FROM (SELECT job FROM effects WHERE queue = $1 GROUP BY 1 HAVING count(*) > 1) AS s",
		"an effect of an incomplete job":   "SELECT count(*) FROM effects AS e JOIN idemq.jobs AS j ON j.id = e.job WHERE e.queue = $1 AND j.status <> 'completed'",
		"an effect of another attempt":     "SELECT count(*) FROM effects AS e JOIN idemq.jobs AS j ON j.id = e.job WHERE e.queue = $1 AND j.token <> e.token",
		"a completed job without effect":   "SELECT count(*) FROM idemq.jobs AS j WHERE queue_id = idemq.queue_id($1) AND status = 'completed' AND result = '2' AND NOT EXISTS (SELECT FROM effects WHERE job = j.id)",
		"an effect that was not completed": "SELECT count(*) FROM effects AS e JOIN idemq.jobs AS j ON j.id = e.job WHERE e.queue = $1 AND j.result IS DISTINCT FROM '2' AND j.result IS NOT NULL",
	} {
		if n := value[int](f, sql, f.queue); n > 0 {
			t.Errorf("%s: %d\n%s", what, n, tail(f.log.String()))
		}
	}
	if harm.Load() < 20 {
		t.Errorf("only %d sessions, leases and jobs were harmed", harm.Load())
	}
}
