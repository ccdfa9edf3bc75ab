package idemq

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Hooks are functions that an application has called by a worker.  They may be nil.
type Hooks struct {
	// Started is called before the first claim.  An error ends Run.
	Started func(ctx context.Context, w *Worker) error
	// Around is called in place of each handler, and calls next.  An error that it returns is the error of the attempt.  It may run again
	// in the same attempt, as a handler does.
	Around func(ctx context.Context, j *JobHeader, next func(context.Context) error) error
	// Failed is called after an attempt has failed.
	Failed func(ctx context.Context, j *JobHeader, f Failure)
	// Stopped is called when the worker has ended.
	Stopped func(ctx context.Context, w *Worker, o Outcomes)
}

// Failure is an attempt that has failed.
type Failure struct {
	Err error
	// Outcome is the server's, for example OutcomeRetrying.
	Outcome Outcome
	// WillRetry is whether there will be another attempt.
	WillRetry bool
}

// hooksTimeout is the time that hooks may take after the worker has ended.
const hooksTimeout = 5 * time.Second

// hooks calls the hooks of a run.
type hooks struct {
	Hooks
	run     *run
	wg      sync.WaitGroup
	running chan struct{} // limits the calls of Failed that run at once
}

var errNotAwaited = errors.New("Hooks.Around has returned before next")

// around calls a handler.
func (k *hooks) around(ctx context.Context, a *attempt, h *handling) (result *string, err error) {
	if k.Around == nil {
		return a.handler.call(ctx, h)
	}
	header := a.header
	began, ended := false, make(chan struct{})
	err = k.Around(ctx, &header, func(ctx context.Context) error {
		if began {
			return errors.New("Hooks.Around has called next twice")
		}
		began = true
		text, failed := a.handler.call(ctx, h)
		result = text
		close(ended)
		return failed
	})
	if began {
		select {
		case <-ended:
		default:
			return nil, errNotAwaited
		}
	}
	return result, err
}

// failed calls the hook in a goroutine.
func (k *hooks) failed(a *attempt, f Failure) {
	if k.Failed == nil {
		return
	}
	k.wg.Add(1)
	k.running <- struct{}{}
	go func() {
		defer k.wg.Done()
		defer func() { <-k.running }()
		header := a.header
		k.call("Failed", func(ctx context.Context) { k.Failed(ctx, &header, f) })
	}()
}

// ended waits for the hooks.
func (k *hooks) ended() {
	done := make(chan struct{})
	go func() {
		k.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(hooksTimeout + time.Second):
		k.run.log.Warn("idemq: a hook is still running")
	}
}

// call calls a hook.  A panic is logged.
func (k *hooks) call(name string, fn func(context.Context)) {
	ctx, cancel := context.WithCancel(k.run.base)
	defer cancel()
	stop := context.AfterFunc(k.run.over, func() { time.AfterFunc(hooksTimeout, cancel) })
	defer stop()
	_, _, err := guarded(func() (struct{}, bool, error) {
		fn(ctx)
		return struct{}{}, true, nil
	})
	if err != nil {
		k.run.log.Error("idemq: hook failed", "hook", name, "error", err)
	}
}
