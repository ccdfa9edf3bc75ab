package otelidemq_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	oteltrace "go.opentelemetry.io/otel/trace"

	"idemq.example/idemq"
	"idemq.example/idemq/otelidemq"
)

func TestOneTrace(t *testing.T) {
	dsn := os.Getenv("IDEMQ_TEST")
	if dsn == "" {
		t.Skip("LEFT OUT: IDEMQ_TEST is not set")
	}
	ctx := context.Background()
	spans, reader := tracetest.NewSpanRecorder(), metric.NewManualReader()
	otel.SetTracerProvider(trace.NewTracerProvider(trace.WithSpanProcessor(spans)))
	otel.SetMeterProvider(metric.NewMeterProvider(metric.WithReader(reader)))
	otel.SetTextMapPropagator(propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}))
	tracing, err := otelidemq.New()
	if err != nil {
		t.Fatal(err)
	}
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	q := idemq.Queue[string, any]{Name: fmt.Sprintf("otel_%d", os.Getpid())}
	if _, err := idemq.EnsureQueue(ctx, conn, q.Name, nil); err != nil {
		t.Fatal(err)
	}

	request, root := otel.Tracer("test").Start(ctx, "request")
	one, err := otelidemq.Enqueue(request, tracing, conn, q, "good", &idemq.EnqueueOptions{Headers: map[string]any{"own": "x", "n": 1}})
	if err != nil {
		t.Fatal(err)
	}
	root.End()
	given := "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	if _, err := otelidemq.EnqueueMany(ctx, tracing, conn, q, []idemq.Item[string]{
		{Payload: "bad", Options: &idemq.EnqueueOptions{Headers: map[string]any{"traceparent": given}}}, {Payload: "snooze"}, {Payload: "panic"},
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := otelidemq.Enqueue(ctx, tracing, conn, idemq.Queue[string, any]{Name: "missing"}, "", nil); !errors.Is(err, idemq.ErrNoSuchQueue) {
		t.Error(err)
	}

	w := idemq.NewWorker(config, &idemq.WorkerOptions{Hooks: idemq.Hooks{Around: tracing.Around}})
	idemq.HandleOutside(w, q, func(ctx context.Context, j *idemq.Job[string]) (any, error) {
		if j.Payload == "good" && (string(j.Headers["own"]) != `"x"` || string(j.Headers["n"]) != "1" || !oteltrace.SpanContextFromContext(ctx).IsValid()) {
			return nil, fmt.Errorf("headers: %s", j.Headers)
		}
		switch j.Payload {
		case "bad":
			return nil, idemq.RetryLater(time.Hour, errors.New("bad"))
		case "snooze":
			return nil, idemq.Snooze(time.Hour, "tired")
		case "panic":
			panic("oh")
		}
		return nil, nil
	}, nil)
	if _, err := w.Drain(ctx); err != nil {
		t.Fatal(err)
	}

	seen := map[string]string{}
	for _, s := range spans.Ended() {
		of := ""
		for _, a := range s.Attributes() {
			if a.Key == "messaging.message.id" && a.Value.AsString() == fmt.Sprint(one.ID) {
				of = " good"
			}
			if a.Key == "error.type" {
				of += " " + a.Value.AsString()
			}
		}
		own := "no parent"
		switch {
		case s.Parent().TraceID() == root.SpanContext().TraceID():
			own = "in the request"
		case s.Parent().TraceID().String() == given[3:35]:
			own = "in the given trace"
		case s.Parent().IsValid():
			own = "in a trace"
		}
		seen[strings.ReplaceAll(s.Name(), q.Name, "QUEUE")+of] += fmt.Sprintf("%s %s %d links; ", own, s.Status().Code, len(s.Links()))
	}
	for name, want := range map[string]string{
		"request":                           "no parent Unset 0 links; ",
		"send QUEUE":                        "in the request Unset 0 links; no parent Unset 0 links; ",
		"send missing IQ005":                "no parent Error 0 links; ",
		"process QUEUE good":                "in the request Unset 1 links; ",
		"process QUEUE *idemq.verdict":      "in the given trace Error 1 links; ",
		"process QUEUE":                     "in a trace Unset 1 links; ",
		"process QUEUE *errors.errorString": "in a trace Error 1 links; ",
	} {
		if seen[name] != want {
			t.Errorf("%s: got %q, want %q", name, seen[name], want)
		}
		delete(seen, name)
	}
	if len(seen) > 0 {
		t.Errorf("other spans: %v", seen)
	}

	var all metricdata.ResourceMetrics
	if err := reader.Collect(ctx, &all); err != nil {
		t.Fatal(err)
	}
	counts := map[string]int64{}
	for _, m := range all.ScopeMetrics[0].Metrics {
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			for _, p := range data.DataPoints {
				counts[m.Name] += p.Value
			}
		case metricdata.Histogram[float64]:
			for _, p := range data.DataPoints {
				counts[m.Name] += int64(p.Count)
			}
		}
	}
	if got := fmt.Sprint(counts); got != "map[messaging.client.consumed.messages:4 messaging.client.operation.duration:3 messaging.client.sent.messages:5 messaging.process.duration:4]" {
		t.Error(got)
	}
}
