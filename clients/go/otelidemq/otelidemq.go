// Package otelidemq creates OpenTelemetry spans and metrics for package idemq, so that a trace follows a job from the request that enqueues
// it to its handler.
//
// A producer calls [Enqueue] or [EnqueueMany] of a [Tracing] value in place of the methods of the queue.  A worker gets [Tracing.Around] as
// its hook:
//
//	tracing, err := otelidemq.New()
//	w := idemq.NewWorker(config, &idemq.WorkerOptions{Hooks: idemq.Hooks{Around: tracing.Around}})
//
// The names follow version 1.30.0 of OpenTelemetry's conventions for messaging.
package otelidemq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"idemq.example/idemq"
)

const scope = "idemq.example/idemq/otelidemq"

// Tracing creates spans and metrics with the global providers and the global propagator of package otel.
type Tracing struct {
	tracer                     trace.Tracer
	calls, processed           metric.Float64Histogram
	sentMessages, consumedJobs metric.Int64Counter
}

// New returns a Tracing.  Set the global providers before.
func New() (*Tracing, error) {
	meter := otel.Meter(scope)
	calls, err1 := meter.Float64Histogram("messaging.client.operation.duration", metric.WithUnit("s"), metric.WithDescription("requests that add jobs"))
	processed, err2 := meter.Float64Histogram("messaging.process.duration", metric.WithUnit("s"), metric.WithDescription("handlers"))
	sent, err3 := meter.Int64Counter("messaging.client.sent.messages", metric.WithDescription("jobs in calls that add jobs, including duplicates"))
	consumed, err4 := meter.Int64Counter("messaging.client.consumed.messages", metric.WithDescription("attempts that began"))
	return &Tracing{otel.Tracer(scope), calls, processed, sent, consumed}, errors.Join(err1, err2, err3, err4)
}

// headers is a carrier of the trace context in the headers of a job to be enqueued.
type headers map[string]any

func (h headers) Get(key string) string { text, _ := h[key].(string); return text }

func (h headers) Set(key, value string) { h[key] = value }

func (h headers) Keys() []string {
	keys := make([]string, 0, len(h))
	for key := range h {
		keys = append(keys, key)
	}
	return keys
}

// received returns the headers of a job that are texts.
func received(job map[string]json.RawMessage) propagation.MapCarrier {
	carrier := propagation.MapCarrier{}
	for key, value := range job {
		var text string
		if json.Unmarshal(value, &text) == nil {
			carrier[key] = text
		}
	}
	return carrier
}

func attributes(operation, kind, queue string) []attribute.KeyValue {
	return []attribute.KeyValue{
		attribute.String("messaging.system", "idemq"), attribute.String("messaging.operation.name", operation),
		attribute.String("messaging.operation.type", kind), attribute.String("messaging.destination.name", queue),
	}
}

// end ends a span, with the error of what it covers.
func end(span trace.Span, err error) []attribute.KeyValue {
	defer span.End()
	if err == nil {
		return nil
	}
	name := fmt.Sprintf("%T", err)
	if of := (*idemq.Error)(nil); errors.As(err, &of) {
		name = of.SQLState
	}
	failed := attribute.String("error.type", name)
	span.SetAttributes(failed)
	span.SetStatus(codes.Error, err.Error())
	return []attribute.KeyValue{failed}
}

// Around is a hook of a worker.  It creates the span "process QUEUE", a child of the span that has sent the job.
func (t *Tracing) Around(ctx context.Context, j *idemq.JobHeader, next func(context.Context) error) error {
	ctx = otel.GetTextMapPropagator().Extract(ctx, received(j.Headers))
	own := attributes("process", "process", j.Queue)
	ctx, span := t.tracer.Start(ctx, "process "+j.Queue, trace.WithSpanKind(trace.SpanKindConsumer), trace.WithLinks(trace.LinkFromContext(ctx)),
		trace.WithAttributes(own...), trace.WithAttributes(attribute.String("messaging.message.id", strconv.FormatInt(j.ID, 10)),
			attribute.Int("messaging.idemq.message.attempt", j.Attempt)))
	began := time.Now()
	t.consumedJobs.Add(ctx, 1, metric.WithAttributes(own...))
	ended := false
	var err error
	defer func() {
		if !ended { // a panic or runtime.Goexit, which the worker handles
			err = errors.New("the handler has panicked")
		}
		failure := err
		if idemq.IsUncounted(err) {
			failure = nil
		}
		own = append(own, end(span, failure)...)
		t.processed.Record(ctx, time.Since(began).Seconds(), metric.WithAttributes(own...))
	}()
	err = next(ctx)
	ended = true
	return err
}

// Enqueue is like [idemq.Queue.Enqueue], in a span "send QUEUE", whose context is stored in the job's headers.
func Enqueue[P, R any](ctx context.Context, t *Tracing, db idemq.DB, q idemq.Queue[P, R], payload P, o *idemq.EnqueueOptions) (added idemq.Enqueued[R], err error) {
	err = t.send(ctx, q.Name, 1, func(ctx context.Context) error {
		added, err = q.Enqueue(ctx, db, payload, with(ctx, o))
		return err
	})
	return added, err
}

// EnqueueMany is like [idemq.Queue.EnqueueMany], in a span "send QUEUE".
func EnqueueMany[P, R any](ctx context.Context, t *Tracing, db idemq.DB, q idemq.Queue[P, R], items []idemq.Item[P]) (added []idemq.Enqueued[R], err error) {
	err = t.send(ctx, q.Name, len(items), func(ctx context.Context) error {
		traced := make([]idemq.Item[P], len(items))
		for n, item := range items {
			traced[n] = idemq.Item[P]{Payload: item.Payload, Options: with(ctx, item.Options)}
		}
		added, err = q.EnqueueMany(ctx, db, traced)
		return err
	})
	return added, err
}

// with returns options with the context in the headers, unless the caller has passed one.
func with(ctx context.Context, o *idemq.EnqueueOptions) *idemq.EnqueueOptions {
	var own idemq.EnqueueOptions
	if o != nil {
		own = *o
	}
	if _, given := own.Headers["traceparent"]; given {
		return &own
	}
	carrier := headers{}
	otel.GetTextMapPropagator().Inject(ctx, carrier)
	maps.Copy(carrier, own.Headers)
	if len(carrier) > 0 {
		own.Headers = carrier
	}
	return &own
}

func (t *Tracing) send(ctx context.Context, queue string, jobs int, call func(context.Context) error) error {
	own := attributes("send", "send", queue)
	ctx, span := t.tracer.Start(ctx, "send "+queue, trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(own...))
	if jobs != 1 {
		span.SetAttributes(attribute.Int("messaging.batch.message_count", jobs))
	}
	began := time.Now()
	err := call(ctx)
	own = append(own, end(span, err)...)
	t.calls.Record(ctx, time.Since(began).Seconds(), metric.WithAttributes(own...))
	t.sentMessages.Add(ctx, int64(jobs), metric.WithAttributes(own...))
	return err
}
