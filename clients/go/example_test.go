package idemq_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"idemq.example/idemq"
)

// MailArgs is the payload of a mail, and Receipt its result.
type MailArgs struct {
	Order int `json:"order"`
}

// Receipt is the result of a mail.
type Receipt struct {
	Sent bool `json:"sent"`
}

var (
	Mail  = idemq.Queue[MailArgs, Receipt]{Name: "mail"}
	quiet = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
)

// connect returns a pool, and the worker's configuration, for a database with the queue mail.
func connect(ctx context.Context) (*pgxpool.Pool, *pgx.ConnConfig) {
	config, err := pgx.ParseConfig(os.Getenv("IDEMQ_TEST"))
	if err != nil {
		panic(err)
	}
	pool, err := pgxpool.New(ctx, os.Getenv("IDEMQ_TEST"))
	if err != nil {
		panic(err)
	}
	if _, err := idemq.EnsureQueue(ctx, pool, "mail", nil); err != nil {
		panic(err)
	}
	if _, err := pool.Exec(ctx, "CREATE TABLE IF NOT EXISTS confirmations (order_id int, sent_at timestamptz DEFAULT now())"); err != nil {
		panic(err)
	}
	return pool, config
}

// The order and the job are committed together.
func ExampleQueue_Enqueue() {
	ctx := context.Background()
	pool, _ := connect(ctx)
	defer pool.Close()

	var mail idemq.Enqueued[Receipt]
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) (err error) {
		if _, err = tx.Exec(ctx, "CREATE TABLE IF NOT EXISTS orders (id int)"); err != nil {
			return err
		}
		mail, err = Mail.Enqueue(ctx, tx, MailArgs{Order: 42}, &idemq.EnqueueOptions{Delay: time.Hour})
		return err
	})
	fmt.Println(mail.Outcome, mail.Status, err)
	// Output: accepted pending <nil>
}

// A worker runs until the process is told to stop.  Then its handlers get time to end.
func ExampleWorker_Run() {
	// Stops at SIGTERM and SIGINT; for this example, also after a second.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	pool, config := connect(ctx)
	defer pool.Close()

	w := idemq.NewWorker(config, &idemq.WorkerOptions{Grace: 20 * time.Second, Logger: quiet})
	idemq.Handle(w, Mail, func(ctx context.Context, tx pgx.Tx, j *idemq.Job[MailArgs]) (Receipt, error) {
		_, err := tx.Exec(ctx, "INSERT INTO confirmations (order_id) VALUES ($1)", j.Payload.Order) // committed with the job
		return Receipt{Sent: true}, err
	}, &idemq.HandlerOptions{Concurrency: 4})
	_, err := w.Run(ctx)
	fmt.Println(err)
	// Output: <nil>
}

// A step stores the provider's answer, so that no later attempt charges again.  Afterwards, the rows and the completion of the job are
// committed together.
func ExampleStep() {
	ctx := context.Background()
	pool, config := connect(ctx)
	defer pool.Close()

	type charge struct{ Amount int }
	type paid struct{ ID string }
	charges := idemq.Queue[charge, string]{Name: "charges"}
	if _, err := idemq.EnsureQueue(ctx, pool, "charges", nil); err != nil {
		fmt.Println(err)
	}
	added, err := charges.Enqueue(ctx, pool, charge{Amount: 12}, nil)
	if err != nil {
		fmt.Println(err)
	}

	w := idemq.NewWorker(config, &idemq.WorkerOptions{Logger: quiet})
	idemq.Handle(w, charges, func(ctx context.Context, tx pgx.Tx, j *idemq.Job[charge]) (string, error) {
		answer, err := idemq.Step(ctx, j, "charge", func(ctx context.Context, call idemq.StepCall) (paid, error) {
			// Send call.Request to the provider, with call.Key as the idempotency key.  ctx ends after CallTimeout.
			return paid{ID: "ch_1"}, nil
		}, &idemq.StepOptions[paid]{Request: j.Payload, CallTimeout: 10 * time.Second})
		if err != nil {
			return "", err
		}
		_, err = tx.Exec(ctx, "INSERT INTO confirmations (order_id) VALUES (1)")
		return answer.ID, err
	}, nil)
	if _, err := w.Drain(ctx); err != nil {
		fmt.Println(err)
	}
	results, err := idemq.WaitResults[string](ctx, pool, []int64{added.ID}, time.Second)
	fmt.Println(results[0].Status, *results[0].Result, err)
	// Output: completed ch_1 <nil>
}

// An outside handler has no transaction.  Its context ends if the job is cancelled.
func ExampleHandleOutside() {
	ctx := context.Background()
	pool, config := connect(ctx)
	defer pool.Close()

	pages := idemq.Queue[string, int]{Name: "pages"}
	if _, err := idemq.EnsureQueue(ctx, pool, "pages", nil); err != nil {
		fmt.Println(err)
	}
	if _, err := pages.Enqueue(ctx, pool, "https://example.com", nil); err != nil {
		fmt.Println(err)
	}
	w := idemq.NewWorker(config, &idemq.WorkerOptions{Logger: quiet})
	idemq.HandleOutside(w, pages, func(ctx context.Context, j *idemq.Job[string]) (int, error) {
		if j.Payload == "" {
			return 0, idemq.Dead(fmt.Errorf("no address"))
		}
		return len(j.Payload), nil
	}, &idemq.HandlerOptions{Concurrency: 10})
	outcomes, err := w.Drain(ctx)
	fmt.Println(outcomes[idemq.OutcomeCommitted] > 0, err)
	// Output: true <nil>
}

// A program that uses database/sql enqueues in its own transaction.
func ExampleSQL() {
	ctx := context.Background()
	pool, config := connect(ctx)
	defer pool.Close()
	db := stdlib.OpenDB(*config)
	defer func() { _ = db.Close() }()

	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	added, err := Mail.Enqueue(ctx, idemq.SQL(tx), MailArgs{Order: 43}, &idemq.EnqueueOptions{Delay: time.Hour})
	fmt.Println(added.Outcome, err, tx.Commit())
	// Output: accepted <nil> <nil>
}

// A job that takes long stores how far it has come.  The next attempt continues there.
func ExampleJob_Checkpoint() {
	ctx := context.Background()
	pool, config := connect(ctx)
	defer pool.Close()

	imports := idemq.Queue[int, int]{Name: "imports"}
	if _, err := idemq.EnsureQueue(ctx, pool, "imports", nil); err != nil {
		fmt.Println(err)
	}
	if _, err := imports.Enqueue(ctx, pool, 10, nil); err != nil {
		fmt.Println(err)
	}
	crash := true
	w := idemq.NewWorker(config, &idemq.WorkerOptions{Logger: quiet})
	idemq.HandleOutside(w, imports, func(ctx context.Context, j *idemq.Job[int]) (int, error) {
		var page int
		if _, err := j.State(&page); err != nil {
			return 0, err
		}
		fmt.Println("begins at page", page)
		for ; page < j.Payload; page++ {
			if page == 7 && crash {
				crash = false
				return 0, idemq.RetryLater(0, fmt.Errorf("no connection"))
			}
			if err := j.Checkpoint(ctx, page+1); err != nil {
				return 0, err
			}
		}
		return page, nil
	}, nil)
	outcomes, err := w.Drain(ctx)
	fmt.Println(outcomes, err)
	// Output:
	// begins at page 0
	// begins at page 7
	// map[committed:1 retrying:1] <nil>
}

// A job waits for an event.  Meanwhile, it needs no worker.
func ExampleJob_AwaitEvent() {
	ctx := context.Background()
	pool, config := connect(ctx)
	defer pool.Close()

	signups := idemq.Queue[string, string]{Name: "signups"}
	if _, err := idemq.EnsureQueue(ctx, pool, "signups", nil); err != nil {
		fmt.Println(err)
	}
	added, err := signups.Enqueue(ctx, pool, "ann@example.com", nil)
	if err != nil {
		fmt.Println(err)
	}
	event := fmt.Sprintf("confirmed %d", added.ID)
	for range 2 {
		w := idemq.NewWorker(config, &idemq.WorkerOptions{Logger: quiet})
		idemq.Handle(w, signups, func(ctx context.Context, tx pgx.Tx, j *idemq.Job[string]) (string, error) {
			confirmed, err := j.AwaitEvent(ctx, fmt.Sprintf("confirmed %d", j.ID), 24*time.Hour, nil)
			if err != nil || !confirmed {
				return "not confirmed", err
			}
			return "confirmed", nil
		}, nil)
		outcomes, err := w.Drain(ctx)
		fmt.Println(outcomes, err)
		if _, err := idemq.SendEvent(ctx, pool, "signups", event, nil); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// map[waiting:1] <nil>
	// map[committed:1] <nil>
}
