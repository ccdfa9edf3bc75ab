package idemq_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"idemq.example/idemq"
)

type order struct {
	Order int `json:"order"`
}

type receipt struct {
	Sent bool `json:"sent"`
}

func TestEffectAndJobCommitTogether(t *testing.T) {
	f := setUp(t, "")
	q := idemq.Queue[order, receipt]{Name: f.queue}
	ctx := context.Background()
	added, err := q.Enqueue(ctx, f.pool, order{42}, &idemq.EnqueueOptions{Key: "k"})
	if err != nil || added.Outcome != idemq.OutcomeAccepted || added.Status != idemq.StatusPending {
		t.Fatalf("%+v %v", added, err)
	}
	w := f.worker(idemq.WorkerOptions{})
	idemq.Handle(w, q, func(ctx context.Context, tx pgx.Tx, j *idemq.Job[order]) (receipt, error) {
		return receipt{true}, effect(ctx, tx, j.JobHeader)
	}, nil)
	stop := f.running(w)
	f.until("SELECT status = 'completed' FROM idemq.jobs WHERE id = $1", added.ID)
	for n := range 20 {
		f.enqueue(order{n})
	}
	f.until("SELECT count(*) = 21 FROM effects WHERE queue = $1", f.queue)
	outcomes, err := stop()
	if err != nil {
		t.Fatal(err)
	}
	f.outcomes(outcomes, idemq.Outcomes{idemq.OutcomeCommitted: 21})
	again, err := q.Enqueue(ctx, f.pool, order{42}, &idemq.EnqueueOptions{Key: "k"})
	if err != nil || again.ID != added.ID || again.Outcome != idemq.OutcomeDuplicate || again.Result == nil || !again.Result.Sent {
		t.Fatalf("%+v %v", again, err)
	}
}

func TestOutside(t *testing.T) {
	f := setUp(t, "")
	q := idemq.Queue[order, struct{}]{Name: f.queue}
	for n := range 100 {
		f.enqueue(order{n})
	}
	w := f.worker(idemq.WorkerOptions{})
	idemq.HandleOutside(w, q, func(ctx context.Context, j *idemq.Job[order]) (struct{}, error) {
		return struct{}{}, effect(ctx, f.pool, j.JobHeader)
	}, &idemq.HandlerOptions{Concurrency: 10})
	outcomes, err := w.Drain(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	f.outcomes(outcomes, idemq.Outcomes{idemq.OutcomeCommitted: 100})
}
