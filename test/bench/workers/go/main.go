// bench work|prepare JSON: a process of bench-workers, as node.mjs and python.py are.  Its sides are idemq and river.
//
// work says "warm" when so many handlers have begun, and "end" when all have.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"idemq.example/idemq"
)

const insert = "INSERT INTO bench.effects (job) VALUES ($1)"

// spec is what main.py says of a side.
type spec struct {
	Side        string `json:"side"`
	Socket      string `json:"socket"`
	Concurrency int    `json:"concurrency"`
	Batch       int    `json:"batch"`
	Outside     string `json:"outside"`
	Insert      bool   `json:"insert"`
	Shortest    bool   `json:"shortest"`
	Jobs        int64  `json:"jobs"`
	Warm        int64  `json:"warm"`

	begun atomic.Int64
}

// begins counts a handler that begins.
func (s *spec) begins() {
	switch s.begun.Add(1) {
	case s.Warm:
		fmt.Println("warm")
	case s.Jobs:
		fmt.Println("end")
	}
}

func (s *spec) connection() string {
	return fmt.Sprintf("host=%s user=postgres dbname=postgres sslmode=disable", s.Socket)
}

func (s *spec) idemq(ctx context.Context) error {
	config, err := pgx.ParseConfig(s.connection())
	if err != nil {
		return err
	}
	queue := idemq.Queue[json.RawMessage, any]{Name: "bench"}
	w := idemq.NewWorker(config, nil)
	o := &idemq.HandlerOptions{Concurrency: s.Concurrency}
	if s.Batch > 1 {
		o.Batch = s.Batch
	}
	if s.Outside != "" {
		idemq.HandleOutside(w, queue, func(context.Context, *idemq.Job[json.RawMessage]) (any, error) {
			s.begins()
			return nil, nil
		}, o)
	} else {
		idemq.Handle(w, queue, func(ctx context.Context, tx pgx.Tx, j *idemq.Job[json.RawMessage]) (any, error) {
			s.begins()
			if !s.Insert {
				return nil, nil
			}
			_, err := tx.Exec(ctx, insert, j.ID)
			return nil, err
		}, o)
	}
	_, err = w.Run(ctx)
	return err
}

// Args is the payload that all sides have.
type Args map[string]any

// Kind is the name under which River finds the worker.
func (Args) Kind() string { return "bench" }

// worker is River's: inside, its handler commits its effect and the completion of the job in one transaction.
type worker struct {
	river.WorkerDefaults[Args]
	*spec
	pool *pgxpool.Pool
}

func (w *worker) Work(ctx context.Context, job *river.Job[Args]) error {
	w.begins()
	if w.Outside != "" {
		return nil
	}
	return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		if w.Insert {
			if _, err := tx.Exec(ctx, insert, job.ID); err != nil {
				return err
			}
		}
		_, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job)
		return err
	})
}

func (s *spec) pool(ctx context.Context) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(s.connection())
	if err != nil {
		return nil, err
	}
	// A connection for each handler, as the workers of idemq have, and some for River itself.
	config.MaxConns = int32(s.Concurrency + 10)
	return pgxpool.NewWithConfig(ctx, config)
}

func (s *spec) river(ctx context.Context) error {
	pool, err := s.pool(ctx)
	if err != nil {
		return err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &worker{spec: s, pool: pool})
	config := &river.Config{
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: s.Concurrency}},
		Workers: workers,
		Logger:  slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	if s.Shortest {
		config.FetchCooldown = river.FetchCooldownMin
		config.FetchPollInterval = river.FetchPollIntervalMin
	}
	client, err := river.NewClient(riverpgxv5.New(pool), config)
	if err != nil {
		return err
	}
	if err := client.Start(ctx); err != nil {
		return err
	}
	<-client.Stopped()
	return nil
}

// prepare makes River's tables, empties them, and inserts the jobs.
func (s *spec) prepare(ctx context.Context) error {
	pool, err := s.pool(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	driver := riverpgxv5.New(pool)
	migrator, err := rivermigrate.New(driver, nil)
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, "TRUNCATE river_job"); err != nil {
		return err
	}
	var payload Args
	if err := json.Unmarshal([]byte(os.Getenv("BENCH_PAYLOAD")), &payload); err != nil {
		return err
	}
	client, err := river.NewClient(driver, &river.Config{})
	if err != nil {
		return err
	}
	many := make([]river.InsertManyParams, min(s.Jobs, 10_000))
	for i := range many {
		many[i].Args = payload
	}
	for left := s.Jobs; left > 0; left -= int64(len(many)) {
		if _, err := client.InsertManyFast(ctx, many[:min(left, int64(len(many)))]); err != nil {
			return err
		}
	}
	_, err = pool.Exec(ctx, "VACUUM ANALYZE river_job")
	return err
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()

	s := &spec{}
	if err := json.Unmarshal([]byte(os.Args[2]), s); err != nil {
		return err
	}
	switch {
	case os.Args[1] == "prepare":
		return s.prepare(ctx)
	case s.Side == "river":
		return s.river(ctx)
	default:
		return s.idemq(ctx)
	}
}

func main() {
	started := time.Now()
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "after %s: %v\n", time.Since(started), err)
		os.Exit(1)
	}
}
