package idemq_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"

	"idemq.example/idemq"
)

// eachDB calls fn with each kind of DB, and with one whose statements are texts (as for a pooler).
func (f *fixture) eachDB(fn func(name string, db idemq.DB)) {
	f.Helper()
	ctx := context.Background()
	plain, err := sql.Open("pgx", dsn())
	if err != nil {
		f.Fatal(err)
	}
	defer func() { _ = plain.Close() }()
	fn("database/sql", idemq.SQL(plain))
	fn("pool", f.pool)
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		config := f.config()
		config.DefaultQueryExecMode = mode
		// Settings that change how values are written.
		config.RuntimeParams["DateStyle"] = "SQL, DMY"
		config.RuntimeParams["IntervalStyle"] = "iso_8601"
		config.RuntimeParams["TimeZone"] = "Asia/Kathmandu"
		conn, err := pgx.ConnectConfig(ctx, config)
		if err != nil {
			f.Fatal(err)
		}
		fn(mode.String(), conn)
		_ = conn.Close(ctx)
	}
}

func TestEnqueue(t *testing.T) {
	f := setUp(t, "retry_base => '1 h'")
	ctx := context.Background()
	q := idemq.Queue[map[string]any, any]{Name: f.queue, Kind: "k"}
	zero := 0
	at := time.Date(2031, 2, 3, 4, 5, 6, 789000, time.FixedZone("", 5*3600))
	f.eachDB(func(name string, db idemq.DB) {
		parent, err := q.Enqueue(ctx, db, map[string]any{"x": "\"\\{é"}, nil)
		if err != nil {
			t.Fatal(name, err)
		}
		o := idemq.EnqueueOptions{
			Key: name + `"{\`, GroupKey: "g", KeyTTL: time.Hour, ExpiresIn: 100 * 365 * 24 * time.Hour, RunAt: at, Priority: &zero, MaxAttempts: 3,
			Headers: map[string]any{"trace": "x"}, DependsOn: []int64{parent.ID}, OnParentFailure: idemq.ParentFailureRun,
		}
		check := func(what string, added idemq.Enqueued[any], err error) {
			if err != nil || added.Outcome != idemq.OutcomeAccepted || added.Status != idemq.StatusBlocked {
				t.Fatal(name, what, added, err)
			}
			j, err := idemq.Lookup(ctx, db, added.ID)
			if err != nil {
				t.Fatal(name, err)
			}
			got := fmt.Sprintf("%v %s %s %d %d %s %s %v %v", j.Queue == f.queue, j.Kind, j.GroupKey, j.Priority, j.MaxAttempts, j.Headers["trace"], j.Payload, time.Since(j.EnqueuedAt) < time.Minute, j.ClaimedAt.IsZero())
			// A blocked job enters its group when it is no longer blocked.
			if got != `true k  0 3 "x" {"n": 1} true true` {
				t.Error(name, what, got)
			}
			if run := value[time.Time](f, "SELECT run_at FROM idemq.jobs WHERE id = $1", added.ID); !run.Equal(at) {
				t.Error(name, what, run)
			}
		}
		added, err := q.Enqueue(ctx, db, map[string]any{"n": 1}, &o)
		check("Enqueue", added, err)
		again, err := q.Enqueue(ctx, db, map[string]any{"n": 1}, &o)
		if err != nil || again.ID != added.ID || again.Outcome != idemq.OutcomeDuplicate {
			t.Error(name, again, err)
		}
		if _, err := q.Enqueue(ctx, db, map[string]any{"n": 2}, &idemq.EnqueueOptions{Key: o.Key}); !errors.Is(err, idemq.ErrKeyReused) {
			t.Error(name, err)
		}
		_, err = q.Enqueue(ctx, db, map[string]any{"n": 2}, &idemq.EnqueueOptions{Key: o.Key, OnDuplicate: idemq.OnDuplicateError})
		var own *idemq.Error
		if !errors.Is(err, idemq.ErrDuplicateKey) || !errors.As(err, &own) || own.SQLState != "IQ004" || own.Message == "" {
			t.Error(name, err)
		}
		many := o
		many.Key = name + "many"
		all, err := q.EnqueueMany(ctx, db, []idemq.Item[map[string]any]{{Payload: map[string]any{"n": 1}, Options: &many}, {Payload: map[string]any{"n": 1}, Options: &idemq.EnqueueOptions{
			RunAt: at, GroupKey: "g", Priority: &zero, MaxAttempts: 3, Headers: o.Headers, DependsOn: o.DependsOn, OnParentFailure: o.OnParentFailure,
		}}})
		if err != nil || len(all) != 2 {
			t.Fatal(name, all, err)
		}
		check("EnqueueMany 0", all[0], nil)
		check("EnqueueMany 1", all[1], nil)
		before := value[int](f, "SELECT count(*) FROM idemq.jobs")
		if _, err := q.EnqueueMany(ctx, db, []idemq.Item[map[string]any]{{Payload: map[string]any{}}, {Payload: map[string]any{"n": math.Inf(1)}}}); err == nil || value[int](f, "SELECT count(*) FROM idemq.jobs") != before {
			t.Error(name, err)
		}
		if _, err := q.EnqueueMany(ctx, db, []idemq.Item[map[string]any]{{}, {Options: &idemq.EnqueueOptions{NoWait: true}}}); err == nil {
			t.Error("items with different NoWait were accepted")
		}
	})
	if _, err := (idemq.Queue[any, any]{Name: "missing"}).Enqueue(ctx, f.pool, 1, nil); !errors.Is(err, idemq.ErrNoSuchQueue) {
		t.Error(err)
	}
	// In the caller's transaction.
	undo := errors.New("undo")
	before := value[int](f, "SELECT count(*) FROM idemq.jobs")
	if err := pgx.BeginFunc(ctx, f.pool, func(tx pgx.Tx) error {
		_, err := q.Enqueue(ctx, tx, nil, nil)
		return errors.Join(err, undo)
	}); !errors.Is(err, undo) || value[int](f, "SELECT count(*) FROM idemq.jobs") != before {
		t.Error(err)
	}
}

func TestPlainFunctions(t *testing.T) {
	f := setUp(t, "retry_base => '1 h'")
	ctx := context.Background()
	f.eachDB(func(name string, db idemq.DB) {
		check := func(what string, ok bool, of ...any) {
			t.Helper()
			if !ok {
				t.Errorf("%s: %s: %v", name, what, of)
			}
		}
		queue := strings.NewReplacer(" ", "_", "/", "_").Replace(f.queue + "_" + name)
		lease, most, factor := 20*time.Second, 7, 1.5
		ensured, err := idemq.EnsureQueue(ctx, db, queue, &idemq.QueueSettings{Lease: &lease, MaxRunning: &most, RetryFactor: &factor})
		check("EnsureQueue", err == nil && ensured.Outcome == "created", ensured, err)
		lease = time.Minute
		ensured, err = idemq.EnsureQueue(ctx, db, queue, &idemq.QueueSettings{Lease: &lease})
		check("EnsureQueue", err == nil && ensured.Outcome == "changed" && len(ensured.Changes) == 1, ensured, err)
		q := idemq.Queue[any, any]{Name: queue}
		add := func(o *idemq.EnqueueOptions) int64 {
			added, err := q.Enqueue(ctx, db, 1, o)
			check("Enqueue", err == nil, err)
			return added.ID
		}
		next, err := idemq.Schedule(ctx, db, queue, "0 0 1 1 *", queue, map[string]int{"n": 1}, &idemq.ScheduleOptions{TimeZone: "Europe/Berlin"})
		check("Schedule", err == nil && next.UTC().Month() == time.December && next.UTC().Hour() == 23, next, err)
		dropped, err := idemq.Unschedule(ctx, db, queue)
		check("Unschedule", err == nil && dropped, err)
		dropped, err = idemq.Unschedule(ctx, db, queue)
		check("Unschedule again", err == nil && !dropped, err)
		late := add(&idemq.EnqueueOptions{Delay: time.Hour})
		outcome, err := idemq.Reschedule(ctx, db, late, idemq.RescheduleOptions{Priority: &most})
		check("Reschedule", err == nil, outcome, err)
		made, err := idemq.MakeDue(ctx, db, queue)
		check("MakeDue", err == nil && made == 1, made, err)
		outcome, err = idemq.Retry(ctx, db, late)
		check("Retry", err == nil && outcome == "current", outcome, err)
		why, err := idemq.Why(ctx, db, late)
		check("Why", err == nil && why != "", err)
		check("Pause", idemq.Pause(ctx, db, queue, &idemq.PauseOptions{Until: time.Now().Add(time.Hour)}) == nil)
		check("Resume", idemq.Resume(ctx, db, queue, "") == nil)
		check("Pause group", idemq.Pause(ctx, db, queue, &idemq.PauseOptions{GroupKey: "g"}) == nil)
		check("Resume group", idemq.Resume(ctx, db, queue, "g") == nil)
		outcome, err = idemq.Cancel(ctx, db, late)
		check("Cancel", err == nil && outcome == idemq.OutcomeCancelled, outcome, err)
		add(&idemq.EnqueueOptions{Key: "a-1"})
		cancelled, locked, err := idemq.CancelMatching(ctx, db, queue, idemq.Matching{KeyPrefix: "a-"})
		check("CancelMatching", err == nil && cancelled == 1 && locked == 0, cancelled, locked, err)
		_, err = idemq.Lookup(ctx, db, 1)
		check("Lookup", errors.Is(err, idemq.ErrNoSuchJob), err)
		_, err = idemq.GetFlow(ctx, db, 1, 0)
		check("GetFlow", errors.Is(err, idemq.ErrNoSuchJob), err)
		results, err := idemq.WaitResults[int](ctx, db, []int64{late}, time.Millisecond)
		check("WaitResults", err == nil && len(results) == 1 && results[0].Status == idemq.StatusCancelled && results[0].Result == nil, results, err)
		_, err = idemq.WaitResults[int](ctx, db, []int64{1}, time.Millisecond)
		check("WaitResults", errors.Is(err, idemq.ErrNoSuchJob), err)
		sent, err := idemq.SendEvent(ctx, db, queue, "e", nil)
		check("SendEvent", err == nil && sent.Outcome == idemq.OutcomeAccepted, sent, err)
		sent, err = idemq.SendEvent(ctx, db, queue, "e", 2)
		check("SendEvent again", err == nil && sent.Outcome == idemq.OutcomeDuplicate && !sent.SamePayload, sent, err)
		seq, err := idemq.EnqueueSequenced(ctx, db, q, "p", 5, 1, nil)
		check("EnqueueSequenced", err == nil && seq.Outcome == idemq.OutcomeAccepted, seq, err)
		seq, err = idemq.EnqueueSequenced(ctx, db, q, "p", 5, 1, nil)
		check("EnqueueSequenced again", err == nil && seq.Outcome == idemq.OutcomeDuplicate, seq, err)
		placed, err := idemq.EnqueueGraph(ctx, db, []idemq.GraphJob{
			{Name: "a", Queue: queue, Payload: 1, Options: &idemq.EnqueueOptions{Delay: time.Minute, Kind: "k"}},
			{Name: "b", Queue: queue, Payload: 2, After: []string{"a"}, Options: &idemq.EnqueueOptions{DependsOn: []int64{seq.ID}}},
		})
		check("EnqueueGraph", err == nil && placed["b"].Status == idemq.StatusBlocked, placed, err)
		flow, err := idemq.GetFlow(ctx, db, placed["b"].ID, 0)
		check("GetFlow", err == nil && flow.Jobs == 3 && flow.BegunAt.IsZero() && flow.ETA == nil && len(flow.Roots) == 2, flow, err)
		f.exec("SELECT idemq.ensure_topic('go')")
		f.exec("SELECT idemq.bind_topic('go.*', $1)", queue)
		published, err := idemq.Publish(ctx, db, "go.x", 1, "key", &idemq.MessageOptions{Priority: &most})
		check("Publish", err == nil && len(published) >= 1, published, err)
	})
}
