// Command adapter is the adapter of the Go client: see ../../protocol.md.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"idemq.example/idemq"
)

// jobOptions are the options of enqueue.
type jobOptions struct {
	Key             string         `json:"key"`
	GroupKey        string         `json:"group_key"`
	Kind            string         `json:"kind"`
	OnDuplicate     string         `json:"on_duplicate"`
	OnParentFailure string         `json:"on_parent_failure"`
	Delay           float64        `json:"delay"`
	KeyTTL          float64        `json:"key_ttl"`
	ExpiresIn       float64        `json:"expires_in"`
	MaxWait         float64        `json:"max_wait"`
	RunAt           time.Time      `json:"run_at"`
	Priority        *int           `json:"priority"`
	MaxAttempts     int            `json:"max_attempts"`
	Headers         map[string]any `json:"headers"`
	DependsOn       []json.Number  `json:"depends_on"`
	NoWait          bool           `json:"nowait"`
}

type command struct {
	ID            int64           `json:"id"`
	Do            string          `json:"do"`
	Token         string          `json:"token"`
	Queue         string          `json:"queue"`
	Name          string          `json:"name"`
	SQL           string          `json:"sql"`
	Job           json.Number     `json:"job"`
	Payload       json.RawMessage `json:"payload"`
	Value         json.RawMessage `json:"value"`
	Data          json.RawMessage `json:"data"`
	Request       json.RawMessage `json:"request"`
	Jobs          json.RawMessage `json:"jobs"`
	Options       json.RawMessage `json:"options"`
	Mode          string          `json:"mode"`
	Error         string          `json:"error"`
	Text          string          `json:"text"`
	Scope         string          `json:"scope"`
	Delay         float64         `json:"delay"`
	Timeout       float64         `json:"timeout"`
	CallTimeout   float64         `json:"call_timeout"`
	Unencodable   bool            `json:"unencodable"`
	Echo          bool            `json:"echo"`
	Catch         bool            `json:"catch"`
	Ask           bool            `json:"ask"`
	InTransaction bool            `json:"in_transaction"`
}

type members map[string]any

var (
	writing     sync.Mutex
	handling    sync.Mutex
	inboxes     = map[string]chan command{}
	unsupported = errors.New("unsupported")
	queue       = func(c command) idemq.Queue[json.RawMessage, json.RawMessage] {
		return idemq.Queue[json.RawMessage, json.RawMessage]{Name: c.Queue}
	}
)

func emit(event string, m members) {
	m["event"] = event
	line, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	writing.Lock()
	defer writing.Unlock()
	os.Stdout.Write(append(line, '\n'))
}

func ended(c command, m members) {
	m["command"] = c.ID
	emit("ended", m)
}

// answer ends a command.
func answer(c command, value any, err error) {
	var ours *idemq.Error
	var servers *pgconn.PgError
	switch {
	case err == nil:
		ended(c, members{"value": value})
	case errors.Is(err, unsupported):
		ended(c, members{"unsupported": true})
	case errors.As(err, &ours):
		ended(c, members{"error": members{"sqlstate": ours.SQLState, "text": err.Error()}})
	case errors.As(err, &servers):
		ended(c, members{"error": members{"sqlstate": servers.Code, "text": err.Error()}})
	default:
		ended(c, members{"error": members{"sqlstate": nil, "text": err.Error()}})
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// raw is JSON, or null if there is none.
func raw(m json.RawMessage) json.RawMessage {
	if m == nil {
		return json.RawMessage("null")
	}
	return m
}

// The producer.

func (o jobOptions) options() (*idemq.EnqueueOptions, error) {
	var parents []int64
	for _, each := range o.DependsOn {
		id, err := each.Int64()
		if err != nil {
			return nil, err
		}
		parents = append(parents, id)
	}
	return &idemq.EnqueueOptions{Key: o.Key, GroupKey: o.GroupKey, Kind: o.Kind, OnDuplicate: idemq.OnDuplicate(o.OnDuplicate),
		OnParentFailure: idemq.ParentFailure(o.OnParentFailure), Delay: seconds(o.Delay), KeyTTL: seconds(o.KeyTTL), ExpiresIn: seconds(o.ExpiresIn),
		MaxWait: seconds(o.MaxWait), RunAt: o.RunAt, Priority: o.Priority, MaxAttempts: o.MaxAttempts, Headers: o.Headers, DependsOn: parents,
		NoWait: o.NoWait}, nil
}

func parsedOptions(m json.RawMessage) (*idemq.EnqueueOptions, error) {
	var o jobOptions
	if m != nil {
		if err := json.Unmarshal(m, &o); err != nil {
			return nil, err
		}
	}
	return o.options()
}

func enqueued(e idemq.Enqueued[json.RawMessage]) members {
	m := members{"id": nil, "outcome": e.Outcome, "status": nil, "result": nil}
	if e.ID != 0 {
		m["id"], m["status"] = strconv.FormatInt(e.ID, 10), e.Status
	}
	if e.Result != nil {
		m["result"] = *e.Result
	}
	return m
}

func produce(ctx context.Context, conn *pgx.Conn, c command) (any, error) {
	id, _ := c.Job.Int64()
	switch c.Do {
	case "sql":
		_, err := conn.Exec(ctx, c.SQL)
		return nil, err
	case "enqueue":
		o, err := parsedOptions(c.Options)
		if err != nil {
			return nil, err
		}
		e, err := queue(c).Enqueue(ctx, conn, raw(c.Payload), o)
		if err != nil {
			return nil, err
		}
		return enqueued(e), nil
	case "enqueue_many":
		var jobs []struct {
			Payload json.RawMessage `json:"payload"`
			Options json.RawMessage `json:"options"`
		}
		if err := json.Unmarshal(c.Jobs, &jobs); err != nil {
			return nil, err
		}
		items := make([]idemq.Item[json.RawMessage], len(jobs))
		for n, job := range jobs {
			o, err := parsedOptions(job.Options)
			if err != nil {
				return nil, err
			}
			items[n] = idemq.Item[json.RawMessage]{Payload: raw(job.Payload), Options: o}
		}
		all, err := queue(c).EnqueueMany(ctx, conn, items)
		if err != nil {
			return nil, err
		}
		values := make([]members, len(all))
		for n, e := range all {
			values[n] = enqueued(e)
		}
		return values, nil
	case "cancel":
		return idemq.Cancel(ctx, conn, id)
	case "retry":
		return idemq.Retry(ctx, conn, id)
	case "send_event":
		sent, err := idemq.SendEvent(ctx, conn, c.Queue, c.Name, raw(c.Payload))
		return sent.Outcome, err
	case "graph":
		var jobs map[string]struct {
			Queue     string          `json:"queue"`
			Payload   json.RawMessage `json:"payload"`
			DependsOn []string        `json:"depends_on"`
		}
		if err := json.Unmarshal(c.Jobs, &jobs); err != nil {
			return nil, err
		}
		var graph []idemq.GraphJob
		for name, job := range jobs {
			graph = append(graph, idemq.GraphJob{Name: name, Queue: job.Queue, Payload: raw(job.Payload), After: job.DependsOn})
		}
		placed, err := idemq.EnqueueGraph(ctx, conn, graph)
		ids := members{}
		for name, each := range placed {
			ids[name] = strconv.FormatInt(each.ID, 10)
		}
		return ids, err
	}
	return nil, unsupported
}

// The worker.

type job = idemq.Job[json.RawMessage]

func errorOf(c command) (err error, known bool) {
	cause := fmt.Errorf("%s: %w", c.Text, errors.New("cause of "+c.Text))
	switch c.Error {
	case "plain":
		return cause, true
	case "retry_later":
		return idemq.RetryLater(seconds(c.Delay), cause), true
	case "snooze":
		return idemq.Snooze(seconds(c.Delay), c.Text), true
	case "dead":
		return idemq.Dead(cause), true
	case "refused":
		return idemq.Refused(cause), true
	case "hold_back":
		return idemq.HoldBack(seconds(c.Delay), idemq.Scope(c.Scope)), true
	}
	return nil, false
}

func stepFunction(j *job, step command, inbox chan command, ask bool) func(context.Context, idemq.StepCall) (json.RawMessage, error) {
	return func(_ context.Context, call idemq.StepCall) (json.RawMessage, error) {
		emit("started", members{"token": strconv.FormatInt(j.Token, 10), "step": step.Name, "ask": ask, "key": call.Key, "request": raw(call.Request)})
		for c := range inbox {
			switch c.Do {
			case "answer":
				ended(c, members{})
				return c.Value, nil
			case "raise":
				if err, known := errorOf(c); known {
					ended(c, members{})
					return nil, err
				}
			}
			ended(c, members{"unsupported": true})
		}
		return nil, errors.New("no command")
	}
}

// execute carries out one command of a handler, and returns its value.
func execute(ctx context.Context, tx pgx.Tx, j *job, c command, inbox chan command) (any, error) {
	token := strconv.FormatInt(j.Token, 10)
	switch c.Do {
	case "effect":
		if tx == nil {
			emit("effect", members{"token": token, "name": c.Name})
			return nil, nil
		}
		_, err := tx.Exec(ctx, "INSERT INTO conformance.effects (job, token, name) VALUES ($1, $2, $3)", j.ID, j.Token, c.Name)
		return nil, err
	case "query":
		_, err := tx.Exec(ctx, c.SQL)
		return nil, err
	case "checkpoint":
		if c.InTransaction {
			return nil, j.CheckpointTx(ctx, tx, c.Data)
		}
		return nil, j.Checkpoint(ctx, c.Data)
	case "await_event":
		var payload json.RawMessage
		arrived, err := j.AwaitEvent(ctx, c.Name, seconds(c.Timeout), &payload)
		return members{"arrived": arrived, "payload": raw(payload)}, err
	case "parents":
		parents, err := j.Parents(ctx)
		values := []members{}
		for _, p := range parents {
			values = append(values, members{"id": strconv.FormatInt(p.ID, 10), "status": p.Status, "result": raw(p.Result)})
		}
		return values, err
	case "step":
		o := &idemq.StepOptions[json.RawMessage]{Request: raw(c.Request), CallTimeout: seconds(c.CallTimeout)}
		if c.Ask {
			asked := stepFunction(j, c, inbox, true)
			o.Ask = func(ctx context.Context, call idemq.StepCall) (json.RawMessage, bool, error) {
				value, err := asked(ctx, call)
				return value, value != nil && string(value) != "null", err
			}
		}
		value, err := idemq.Step(ctx, j, c.Name, stepFunction(j, c, inbox, false), o)
		return raw(value), err
	}
	return nil, unsupported
}

func obey(ctx context.Context, tx pgx.Tx, j *job, inbox chan command) (json.RawMessage, error) {
	done := ctx.Done()
	for {
		var c command
		select {
		case <-done:
			done = nil
			emit("ended", members{"token": strconv.FormatInt(j.Token, 10), "told": true})
			continue
		case c = <-inbox:
		}
		switch c.Do {
		case "return":
			ended(c, members{})
			if c.Unencodable {
				return json.RawMessage("{"), nil
			}
			if c.Echo {
				return j.Payload, nil
			}
			return raw(c.Value), nil
		case "raise":
			if c.Error == "panic" {
				ended(c, members{})
				panic(c.Text)
			}
			if err, known := errorOf(c); known {
				ended(c, members{})
				return nil, err
			}
			ended(c, members{"unsupported": true})
		default:
			value, err := execute(ctx, tx, j, c, inbox)
			answer(c, value, err)
			if err != nil && !c.Catch && !errors.Is(err, unsupported) {
				return nil, err
			}
		}
	}
}

func handle(ctx context.Context, tx pgx.Tx, j *job) (json.RawMessage, error) {
	token := strconv.FormatInt(j.Token, 10)
	inbox := make(chan command, 100)
	handling.Lock()
	inboxes[token] = inbox
	handling.Unlock()
	defer func() {
		handling.Lock()
		defer handling.Unlock()
		if inboxes[token] == inbox {
			delete(inboxes, token)
		}
		emit("ended", members{"token": token})
		for len(inbox) > 0 {
			ended(<-inbox, members{"error": members{"gone": true}})
		}
	}()
	var state json.RawMessage
	if _, err := j.State(&state); err != nil {
		return nil, err
	}
	none := func(s string) any {
		if s == "" {
			return nil
		}
		return s
	}
	emit("started", members{"token": token, "job": strconv.FormatInt(j.ID, 10), "queue": j.Queue, "kind": none(j.Kind), "key": none(j.Key),
		"group": none(j.GroupKey), "attempt": j.Attempt, "max_attempts": j.MaxAttempts, "headers": j.Headers, "payload": raw(j.Payload),
		"checkpoint": raw(state)})
	return obey(ctx, tx, j, inbox)
}

func hook(name string) { emit("effect", members{"token": nil, "name": name}) }

var hooks = idemq.Hooks{
	Around: func(ctx context.Context, j *idemq.JobHeader, next func(context.Context) error) error {
		hook(fmt.Sprintf("around %d", j.ID))
		return next(ctx)
	},
	Failed: func(_ context.Context, j *idemq.JobHeader, f idemq.Failure) {
		hook(fmt.Sprintf("failed %d %s %t", j.ID, f.Outcome, f.WillRetry))
	},
}

func work(c command) (any, error) {
	var o struct {
		Concurrency int      `json:"concurrency"`
		Batch       int      `json:"batch"`
		Grace       float64  `json:"grace"`
		Timeout     float64  `json:"timeout"`
		Lease       float64  `json:"lease"`
		UnknownKind float64  `json:"unknown_kind"`
		Kinds       []string `json:"kinds"`
		WaitDSN     string   `json:"wait_dsn"`
		Hooks       bool     `json:"hooks"`
	}
	if c.Options != nil {
		if err := json.Unmarshal(c.Options, &o); err != nil {
			return nil, err
		}
	}
	if o.UnknownKind != 0 {
		return nil, unsupported
	}
	config, err := pgx.ParseConfig(os.Getenv("IDEMQ_DSN"))
	if err != nil {
		return nil, err
	}
	options := idemq.WorkerOptions{Grace: seconds(o.Grace)}
	if o.WaitDSN != "" {
		if options.WaitConn, err = pgx.ParseConfig(o.WaitDSN); err != nil {
			return nil, err
		}
	}
	if o.Hooks {
		options.Hooks = hooks
	}
	w := idemq.NewWorker(config, &options)
	handler := &idemq.HandlerOptions{Concurrency: o.Concurrency, Batch: o.Batch, Lease: seconds(o.Lease), Timeout: seconds(o.Timeout)}
	kinds := o.Kinds
	if kinds == nil {
		kinds = []string{""}
	}
	for _, kind := range kinds {
		q := queue(c)
		q.Kind = kind
		if c.Mode == "run" {
			idemq.Handle(w, q, func(ctx context.Context, tx pgx.Tx, j *job) (json.RawMessage, error) { return handle(ctx, tx, j) }, handler)
		} else {
			idemq.HandleOutside(w, q, func(ctx context.Context, j *job) (json.RawMessage, error) { return handle(ctx, nil, j) }, handler)
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	// Run begins and ends where the program says, so there are no hooks for that.
	if o.Hooks {
		hook("started")
		defer hook("stopped")
	}
	return w.Run(ctx)
}

func main() {
	ctx := context.Background()
	var conn *pgx.Conn
	lines := bufio.NewReader(os.Stdin)
	working := false
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			os.Exit(0)
		}
		var c command
		if err := json.Unmarshal(line, &c); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		switch {
		case c.Token != "":
			handling.Lock()
			inbox, found := inboxes[c.Token]
			if found {
				inbox <- c
			} else {
				ended(c, members{"error": members{"gone": true}})
			}
			handling.Unlock()
		case c.Do == "work" && !working:
			working = true
			go func() {
				outcomes, err := work(c)
				answer(c, outcomes, err)
				os.Exit(0)
			}()
		default:
			if conn == nil {
				// pgx sends UTF-8, whatever the role's client_encoding is.
				config, err := pgx.ParseConfig(os.Getenv("IDEMQ_DSN"))
				if err == nil {
					config.RuntimeParams["client_encoding"] = "UTF8"
					conn, err = pgx.ConnectConfig(ctx, config)
				}
				if err != nil {
					answer(c, nil, err)
					continue
				}
			}
			value, err := produce(ctx, conn, c)
			answer(c, value, err)
		}
	}
}
