package idemq_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"idemq.example/idemq"
)

// The tests need a server with idemq, of which the connection string in IDEMQ_TEST names a database and a superuser.
func dsn() string { return os.Getenv("IDEMQ_TEST") }

func TestMain(m *testing.M) {
	if dsn() == "" {
		fmt.Println("LEFT OUT: IDEMQ_TEST is not set")
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// patience is how long the tests wait for what must happen, on however slow a machine.
const patience = 3 * time.Minute

var queues atomic.Int64

type fixture struct {
	testing.TB
	pool  *pgxpool.Pool
	queue string
	log   *lockedBuffer
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// setUp creates a queue, and checks at the end that no goroutine is left.
func setUp(t testing.TB, settings string) *fixture {
	t.Helper()
	goroutines := runtime.NumGoroutine()
	config, err := pgxpool.ParseConfig(dsn())
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("IDEMQ_TEST_POOLED") != "" { // a worker notices a pooler by itself
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{TB: t, pool: pool, queue: fmt.Sprintf("go_%d_%d", os.Getpid(), queues.Add(1)), log: new(lockedBuffer)}
	f.exec("SELECT idemq.create_queue($1"+strings.TrimSuffix(", "+settings, ", ")+")", f.queue)
	f.exec("CREATE TABLE IF NOT EXISTS effects (queue text, job bigint, token bigint)")
	t.Cleanup(func() {
		pool.Close()
		for end := time.Now().Add(30 * time.Second); runtime.NumGoroutine() > goroutines; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				stacks := make([]byte, 1<<20)
				t.Fatalf("goroutines are left:\n%s", stacks[:runtime.Stack(stacks, true)])
			}
		}
		if t.Failed() {
			t.Log(f.log.String())
		}
	})
	return f
}

func (f *fixture) exec(sql string, args ...any) {
	f.Helper()
	if _, err := f.pool.Exec(context.Background(), sql, args...); err != nil {
		f.Fatalf("%s: %v", sql, err)
	}
}

func value[T any](f *fixture, sql string, args ...any) (v T) {
	f.Helper()
	if err := f.pool.QueryRow(context.Background(), sql, args...).Scan(&v); err != nil {
		f.Fatalf("%s: %v", sql, err)
	}
	return v
}

// until waits until a query returns true.
func (f *fixture) until(sql string, args ...any) {
	f.Helper()
	for end := time.Now().Add(patience); !value[bool](f, sql, args...); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			f.Fatalf("not in time: %s\n%s", sql, f.log)
		}
	}
}

func (f *fixture) config() *pgx.ConnConfig {
	config, err := pgx.ParseConfig(dsn())
	if err != nil {
		f.Fatal(err)
	}
	return config
}

func (f *fixture) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(f.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func (f *fixture) worker(o idemq.WorkerOptions) *idemq.Worker {
	o.Logger = f.logger()
	return idemq.NewWorker(f.config(), &o)
}

// running runs a worker until stop is called, which returns what Run has returned.
func (f *fixture) running(w *idemq.Worker) (stop func() (idemq.Outcomes, error)) {
	ctx, cancel := context.WithCancel(context.Background())
	type result struct {
		o   idemq.Outcomes
		err error
	}
	done := make(chan result, 1)
	go func() {
		o, err := w.Run(ctx)
		done <- result{o, err}
	}()
	return func() (idemq.Outcomes, error) {
		cancel()
		select {
		case r := <-done:
			return r.o, r.err
		case <-time.After(patience):
			stacks := make([]byte, 1<<20)
			f.Fatalf("Run does not return:\n%s\n%s", f.log, stacks[:runtime.Stack(stacks, true)])
			return nil, nil
		}
	}
}

func (f *fixture) enqueue(payload any) int64 {
	f.Helper()
	added, err := idemq.Queue[any, any]{Name: f.queue}.Enqueue(context.Background(), f.pool, payload, nil)
	if err != nil {
		f.Fatal(err)
	}
	return added.ID
}

func effect(ctx context.Context, db idemq.DB, j idemq.JobHeader) error {
	var n int
	return db.QueryRow(ctx, "INSERT INTO effects VALUES ($1, $2, $3) RETURNING 1", j.Queue, j.ID, j.Token).Scan(&n)
}

func (f *fixture) status(id int64) string {
	return value[string](f, "SELECT status::text FROM idemq.jobs WHERE id = $1", id)
}

func (f *fixture) outcomes(got idemq.Outcomes, want idemq.Outcomes) {
	f.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		f.Errorf("outcomes: got %v, want %v\n%s", got, want, f.log)
	}
}
