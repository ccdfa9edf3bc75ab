package idemq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// WorkerOptions are the options of a worker.  A zero value means that an option is not given.
type WorkerOptions struct {
	// WaitConn is a direct connection, used to wait for jobs, if the worker's own connection goes through a pooler.
	WaitConn *pgx.ConnConfig
	// Name identifies the worker in the server; "go" and the process id if not given.
	Name string
	// Grace is the time that running handlers get after the context of Run has ended; 30 s if not given, none if negative.
	Grace time.Duration
	// Hooks are called around attempts.
	Hooks Hooks
	// Logger is slog.Default() if not given.
	Logger *slog.Logger
}

// HandlerOptions are the options of a handler.  A zero value means that an option is not given.  Except Timeout, they belong to the queue, so
// they must be the same, or not given, for all handlers of a queue.
type HandlerOptions struct {
	// Concurrency is the number of handlers that run at once; 1 if not given.
	Concurrency int
	// Batch is the largest number of jobs whose handlers run, one after the other, in one transaction.
	Batch int
	// Lease is the time for which a claim or a heartbeat keeps a job, instead of the queue's lease.
	Lease time.Duration
	// Timeout limits an attempt; one hour if not given.  The queue's job_timeout also limits it.
	Timeout time.Duration
	// Attach is whether a job's lease ends with the worker's session.  The default is true for Handle, unless there is a pooler, and false
	// for HandleOutside.
	Attach *bool
}

// Outcomes counts attempts by how they ended.
type Outcomes map[Outcome]int64

// Worker runs the jobs of one or several queues.
type Worker struct {
	conn   *pgx.ConnConfig
	o      WorkerOptions
	queues []*queueHandlers
	errs   []error
	ran    atomic.Bool
}

// queueHandlers are the handlers of a queue.
type queueHandlers struct {
	name     string
	inside   bool
	o        HandlerOptions
	handlers map[string]*handler
}

// handler is a handler without its types.
type handler struct {
	timeout time.Duration
	call    func(context.Context, *call) (*string, error)
}

// NewWorker returns a worker that connects with conn, which pgx.ParseConfig returns.  Add handlers with Handle and HandleOutside, then call
// Run.
func NewWorker(conn *pgx.ConnConfig, o *WorkerOptions) *Worker {
	w := &Worker{conn: conn}
	if o != nil {
		w.o = *o
	}
	w.o.Name = cmp.Or(w.o.Name, fmt.Sprintf("go %d", os.Getpid()))
	switch {
	case w.o.Grace == 0:
		w.o.Grace = 30 * time.Second
	case w.o.Grace < 0:
		w.o.Grace = 0
	}
	if w.o.Logger == nil {
		w.o.Logger = slog.Default()
	}
	if conn == nil {
		w.errs = append(w.errs, errors.New("NewWorker: conn is nil; pass what pgx.ParseConfig returns"))
	}
	return w
}

// Handle registers a handler whose effects are committed in the transaction that completes its job.  The transaction begins when the
// handler first uses tx.  The handler runs the jobs of the queue that have the kind q.Kind.  If only a handler without a kind is registered
// for the queue, it runs all jobs; otherwise, jobs without a kind.  Jobs of other kinds are given back, because another worker may know
// them.  A mistake in the arguments is returned by Run.
func Handle[P, R any](w *Worker, q Queue[P, R], h func(ctx context.Context, tx pgx.Tx, j *Job[P]) (R, error), o *HandlerOptions) {
	w.add(q.Name, q.Kind, true, h == nil, o, func(ctx context.Context, c *call) (*string, error) {
		job, err := newJob[P](c)
		if err != nil {
			return nil, err
		}
		result, err := h(ctx, &handlerTx{call: c}, job)
		if err != nil {
			return nil, err
		}
		return encodeResult(result, "the result")
	})
}

// HandleOutside registers a handler whose effects are outside the database.  Its job is completed after the handler has returned.
func HandleOutside[P, R any](w *Worker, q Queue[P, R], h func(ctx context.Context, j *Job[P]) (R, error), o *HandlerOptions) {
	w.add(q.Name, q.Kind, false, h == nil, o, func(ctx context.Context, c *call) (*string, error) {
		job, err := newJob[P](c)
		if err != nil {
			return nil, err
		}
		result, err := h(ctx, job)
		if err != nil {
			return nil, err
		}
		text, err := encodeResult(result, "the result")
		if err != nil {
			err = errUnencodable{err}
		}
		return text, err
	})
}

func (w *Worker) add(name, kind string, inside, none bool, given *HandlerOptions, call func(context.Context, *call) (*string, error)) {
	var o HandlerOptions
	if given != nil {
		o = *given
	}
	bad := func(format string, args ...any) {
		w.errs = append(w.errs, fmt.Errorf("queue %q: "+format, append([]any{name}, args...)...))
	}
	switch {
	case w.ran.Load():
		bad("a handler was added after Run")
	case name == "":
		bad("the name of the queue is empty")
	case none:
		bad("the handler is nil")
	case o.Concurrency < 0 || o.Batch < 0 || o.Lease < 0 || o.Timeout < 0:
		bad("an option of the handler is negative")
	case !inside && o.Batch > 1:
		bad("HandleOutside has no Batch, because its jobs share no transaction")
	}
	n := slices.IndexFunc(w.queues, func(q *queueHandlers) bool { return q.name == name })
	if n < 0 {
		n = len(w.queues)
		w.queues = append(w.queues, &queueHandlers{name: name, inside: inside, handlers: map[string]*handler{}})
	}
	q := w.queues[n]
	if q.inside != inside {
		bad("either Handle or HandleOutside must be used for all its kinds")
	}
	if q.handlers[kind] != nil {
		bad("it has two handlers for kind %q", kind)
	}
	timeout := o.Timeout
	o.Timeout = 0
	switch unset := (HandlerOptions{}); {
	case q.o == unset:
		q.o = o
	case o != unset && o != q.o:
		bad("its handlers have different options")
	}
	q.handlers[kind] = &handler{timeout, call}
}

// Run runs jobs until ctx ends.  Then it claims nothing more, gives running handlers the grace period, and returns nil.  A queue that does
// not exist and a missing privilege are errors.  A server that is down is not: Run connects again.  The contexts of handlers have the values
// of ctx.  Run can be called once.
func (w *Worker) Run(ctx context.Context) (Outcomes, error) { return w.run(ctx, false) }

// Drain runs the jobs that are ready, and those that they add, and then returns.  It is for the tests of an application.
func (w *Worker) Drain(ctx context.Context) (Outcomes, error) { return w.run(ctx, true) }

func (w *Worker) run(ctx context.Context, once bool) (Outcomes, error) {
	if w.ran.Swap(true) {
		return nil, errors.New("this worker has already run; create a new one")
	}
	if len(w.errs) > 0 {
		return nil, errors.Join(w.errs...)
	}
	if len(w.queues) == 0 {
		return nil, errors.New("the worker has no handlers; call Handle or HandleOutside")
	}
	return newRun(ctx, w, once).run()
}

// Hooks are functions that a worker calls.  They may be nil.
type Hooks struct {
	// Around is called in place of each handler, and calls next once, in its own goroutine.  An error that it returns is the error of the
	// attempt.  It may run again in the same attempt, as a handler does.
	Around func(ctx context.Context, j *JobHeader, next func(context.Context) error) error
	// Failed is called after an attempt has failed, in the goroutine that runs the next job.
	Failed func(ctx context.Context, j *JobHeader, f Failure)
}

// Failure is an attempt that has failed.
type Failure struct {
	Err error
	// Outcome is the server's: OutcomeRetrying or OutcomeDead.
	Outcome Outcome
	// WillRetry is whether there will be another attempt.
	WillRetry bool
}

// around calls a handler.
func (k *Hooks) around(c *call) (result *string, err error) {
	handle := c.attempt.handler.call
	if k.Around == nil {
		return handle(c.ctx, c)
	}
	header, called := c.attempt.header, false
	err = k.Around(c.ctx, &header, func(ctx context.Context) (err error) {
		if called {
			return errors.New("Hooks.Around has called next twice")
		}
		called = true
		result, err = handle(ctx, c)
		return err
	})
	return result, err
}

// failed calls the hook.
func (k *Hooks) failed(a *attempt, f Failure) {
	if k.Failed == nil {
		return
	}
	ctx, cancel := context.WithCancel(a.queue.run.over)
	defer cancel()
	header := a.header
	_, err := guarded(func() (struct{}, error) {
		k.Failed(ctx, &header, f)
		return struct{}{}, nil
	})
	if err != nil {
		a.log().Error("idemq: hook failed", "hook", "Failed", "error", err)
	}
}
