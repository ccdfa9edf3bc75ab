package idemq_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"idemq.example/idemq"
)

// accounts checks that each of n jobs is completed and has had its effect once.
func (f *fixture) accounts(n int) {
	f.Helper()
	if got := value[int](f, "SELECT count(*) FROM idemq.jobs WHERE queue_id = idemq.queue_id($1) AND status = 'completed'", f.queue); got != n {
		f.Errorf("%d of %d jobs are completed\n%s", got, n, tail(f.log.String()))
	}
	if total, jobs := value[int](f, "SELECT count(*) FROM effects WHERE queue = $1", f.queue), value[int](f, "SELECT count(DISTINCT job) FROM effects WHERE queue = $1", f.queue); total != n || jobs != n {
		f.Errorf("%d effects of %d jobs instead of %d\n%s", total, jobs, n, tail(f.log.String()))
	}
	if got := value[string](f, "SELECT coalesce(string_agg(c::text, '; '), '') FROM idemq.check() AS c WHERE c::text NOT LIKE '%steps.unknown%'"); got != "" {
		f.Error(got)
	}
}

func tail(text string) string { return text[max(0, len(text)-8000):] }

func (f *fixture) enqueueMany(n int) {
	f.Helper()
	f.exec("SELECT count(*) FROM idemq.enqueue_many($1, (SELECT array_agg(to_jsonb(n)) FROM generate_series(1, $2::int) AS n))", f.queue, n)
}

func (f *fixture) done(n int) {
	f.until("SELECT count(*) = $2 FROM idemq.jobs WHERE queue_id = idemq.queue_id($1) AND status IN ('completed', 'dead')", f.queue, n)
}

// terminate ends sessions of the workers at random, this many times.
func (f *fixture) terminate(times int) {
	for killed, end := 0, time.Now().Add(patience); killed < times; {
		if time.Now().After(end) {
			f.Fatal("there are no sessions to terminate")
		}
		time.Sleep(time.Duration(rand.Int63n(int64(80 * time.Millisecond))))
		killed += value[int](f, "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'idemq ' || $1 AND query <> '' AND query NOT LIKE 'SELECT who.pid%' ORDER BY random() LIMIT 1) AS s", f.queue)
	}
}

func TestSessionsAreTerminated(t *testing.T) {
	for name, c := range map[string]struct {
		inside bool
		o      idemq.HandlerOptions
	}{
		"one at a time": {true, idemq.HandlerOptions{}},
		"ten at a time": {true, idemq.HandlerOptions{Concurrency: 10}},
		"batches":       {true, idemq.HandlerOptions{Concurrency: 3, Batch: 10}},
		"outside":       {false, idemq.HandlerOptions{Concurrency: 10}},
	} {
		t.Run(name, func(t *testing.T) {
			f := setUp(t, "lease => '2 s', retry_base => '10 ms', max_attempts => 1000")
			const jobs = 500
			f.enqueueMany(jobs)
			w := f.worker(idemq.WorkerOptions{})
			q := idemq.Queue[any, any]{Name: f.queue}
			if c.inside {
				idemq.Handle(w, q, func(ctx context.Context, tx pgx.Tx, j *idemq.Job[any]) (any, error) {
					time.Sleep(time.Duration(rand.Int63n(int64(2 * time.Millisecond))))
					err := effect(ctx, tx, j.JobHeader)
					time.Sleep(time.Duration(rand.Int63n(int64(2 * time.Millisecond))))
					return nil, err
				}, &c.o)
			} else {
				idemq.HandleOutside(w, q, func(ctx context.Context, j *idemq.Job[any]) (any, error) {
					// The effect happens once if it is itself idempotent.
					_, err := f.pool.Exec(ctx, "INSERT INTO effects SELECT $1, $2::bigint, 0 WHERE NOT EXISTS (SELECT FROM effects WHERE queue = $1 AND job = $2)", j.Queue, j.ID)
					return nil, err
				}, &c.o)
			}
			run := f.running(w)
			f.terminate(15)
			if n := value[int](f, "SELECT count(*) FROM idemq.jobs WHERE queue_id = idemq.queue_id($1) AND status = 'completed'", f.queue); n == jobs {
				t.Log("the last sessions were terminated after the last job")
			}
			f.done(jobs)
			outcomes, err := run()
			if err != nil {
				t.Error(err)
			}
			f.accounts(jobs)
			t.Log(outcomes)
		})
	}
}

// cut is a network connection that breaks at a message of the client, before or after it has been sent.
type cut struct {
	net.Conn
	at     []byte
	before bool
	left   *atomic.Int64
	broken atomic.Bool
}

func (c *cut) Write(b []byte) (int, error) {
	if bytes.Contains(b, c.at) && c.left.Add(-1) >= 0 {
		c.broken.Store(true)
		if c.before {
			_ = c.Conn.Close()
			return 0, errors.New("cut")
		}
	}
	n, err := c.Conn.Write(b)
	if c.broken.Load() {
		time.Sleep(20 * time.Millisecond) // the server has received it
		_ = c.Conn.Close()
	}
	return n, err
}

func TestAnswerToCommitIsLost(t *testing.T) {
	for _, before := range []bool{true, false} {
		for name, o := range map[string]*idemq.HandlerOptions{"one": nil, "batch": {Batch: 5}} {
			t.Run(fmt.Sprintf("%s before=%v", name, before), func(t *testing.T) {
				for _, at := range []string{"COMMIT", "idemq.assert_current", "idemq.claim(", "INSERT INTO effects"} {
					f := setUp(t, "max_attempts => 10, retry_base => '10 ms'")
					f.enqueueMany(20)
					config := f.config()
					config.DefaultQueryExecMode = pgx.QueryExecModeExec // so that the text is in each message
					left := new(atomic.Int64)
					left.Store(3)
					dial := config.DialFunc
					config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
						conn, err := dial(ctx, network, address)
						return &cut{Conn: conn, at: []byte(at), before: before, left: left}, err
					}
					w := idemq.NewWorker(config, &idemq.WorkerOptions{Logger: f.logger()})
					idemq.Handle(w, idemq.Queue[any, any]{Name: f.queue}, func(ctx context.Context, tx pgx.Tx, j *idemq.Job[any]) (any, error) {
						return nil, effect(ctx, tx, j.JobHeader)
					}, o)
					stop := f.running(w)
					f.until("SELECT count(*) = 20 FROM idemq.jobs WHERE queue_id = idemq.queue_id($1) AND finished_at IS NOT NULL", f.queue)
					outcomes, err := stop()
					if err != nil || left.Load() == 3 {
						t.Errorf("%s: %v, %d left", at, err, left.Load())
					}
					if at == "COMMIT" && outcomes[idemq.OutcomeCommitted] != 20 {
						t.Errorf("%s: %v", at, outcomes)
					}
					f.accounts(20)
				}
			})
		}
	}
}

// TestWorkerProcess is the program that TestKilled starts.
func TestWorkerProcess(t *testing.T) {
	queue := os.Getenv("IDEMQ_TEST_QUEUE")
	if queue == "" {
		t.Skip("for TestKilled")
	}
	config, err := pgx.ParseConfig(dsn())
	if err != nil {
		t.Fatal(err)
	}
	w := idemq.NewWorker(config, nil)
	idemq.Handle(w, idemq.Queue[any, any]{Name: queue}, func(ctx context.Context, tx pgx.Tx, j *idemq.Job[any]) (any, error) {
		err := effect(ctx, tx, j.JobHeader)
		time.Sleep(time.Duration(rand.Int63n(int64(time.Millisecond))))
		return nil, err
	}, &idemq.HandlerOptions{Concurrency: 5, Batch: 3})
	_, err = w.Run(context.Background())
	t.Fatal(err)
}

func TestKilled(t *testing.T) {
	f := setUp(t, "lease => '10 s', retry_base => '1 ms', max_attempts => 1000")
	const jobs, kills = 500, 8
	f.enqueueMany(jobs)
	start := func() *exec.Cmd {
		own := exec.Command(os.Args[0], "-test.run=^TestWorkerProcess$")
		own.Env = append(os.Environ(), "IDEMQ_TEST_QUEUE="+f.queue)
		if err := own.Start(); err != nil {
			t.Fatal(err)
		}
		return own
	}
	kill := func(own *exec.Cmd) {
		_ = own.Process.Kill()
		if err := own.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
			t.Errorf("a worker has ended: %v", err)
		}
	}
	workers := []*exec.Cmd{start(), start()}
	for n := range kills {
		f.until("SELECT count(*) > $2 FROM effects WHERE queue = $1", f.queue, n*30)
		time.Sleep(time.Duration(rand.Int63n(int64(20 * time.Millisecond))))
		kill(workers[n%2])
		workers[n%2] = start()
	}
	f.done(jobs)
	kill(workers[0])
	kill(workers[1])
	f.accounts(jobs)
}

// silent is a network connection whose packets are swallowed when told.
type silent struct {
	net.Conn
	on *atomic.Bool
}

func (s *silent) Write(b []byte) (int, error) {
	if s.on.Load() {
		return len(b), nil
	}
	return s.Conn.Write(b)
}

func TestSilentConnections(t *testing.T) {
	for _, where := range []string{"idle", "handler", "commit", "outside"} {
		t.Run(where, func(t *testing.T) {
			f := setUp(t, "lease => '3 s', retry_base => '10 ms', max_attempts => 10")
			config := f.config()
			var mu sync.Mutex
			var all []*atomic.Bool
			dial := config.DialFunc
			config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := dial(ctx, network, address)
				mu.Lock()
				defer mu.Unlock()
				own := &silent{conn, new(atomic.Bool)}
				all = append(all, own.on)
				return own, err
			}
			silence := func() {
				mu.Lock()
				defer mu.Unlock()
				for _, on := range all {
					on.Store(true)
				}
			}
			w := idemq.NewWorker(config, &idemq.WorkerOptions{Logger: f.logger()})
			q := idemq.Queue[any, any]{Name: f.queue}
			var once sync.Once
			if where == "outside" {
				idemq.HandleOutside(w, q, func(ctx context.Context, j *idemq.Job[any]) (any, error) {
					once.Do(silence)
					_, err := f.pool.Exec(ctx, "INSERT INTO effects SELECT $1, $2::bigint, 0 WHERE NOT EXISTS (SELECT FROM effects WHERE queue = $1 AND job = $2)", j.Queue, j.ID)
					return nil, err
				}, nil)
			} else {
				idemq.Handle(w, q, func(ctx context.Context, tx pgx.Tx, j *idemq.Job[any]) (any, error) {
					if where == "handler" {
						once.Do(silence)
					}
					err := effect(ctx, tx, j.JobHeader)
					if where == "commit" {
						once.Do(silence)
					}
					return nil, err
				}, nil)
			}
			stop := f.running(w)
			if where == "idle" {
				f.until("SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'idemq ' || $1 AND query LIKE 'CALL idemq.wait%' AND state = 'active'", f.queue)
				silence()
			}
			f.enqueueMany(3)
			f.done(3)
			if _, err := stop(); err != nil {
				t.Error(err)
			}
			f.accounts(3)
		})
	}
}

func TestServerIsDownAtFirst(t *testing.T) {
	f := setUp(t, "")
	config := f.config()
	dial, tries := config.DialFunc, new(atomic.Int64)
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if tries.Add(1) < 5 {
			return nil, errors.New("down")
		}
		return dial(ctx, network, address)
	}
	f.enqueueMany(1)
	w := idemq.NewWorker(config, &idemq.WorkerOptions{Logger: f.logger()})
	idemq.Handle(w, idemq.Queue[any, any]{Name: f.queue}, func(ctx context.Context, tx pgx.Tx, j *idemq.Job[any]) (any, error) {
		return nil, effect(ctx, tx, j.JobHeader)
	}, nil)
	stop := f.running(w)
	f.done(1)
	if _, err := stop(); err != nil {
		t.Error(err)
	}
	if n := strings.Count(f.log.String(), "no connection"); n != 1 {
		t.Errorf("%d lines about the connection", n)
	}
	f.accounts(1)
}
