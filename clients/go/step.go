package idemq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// StepCall is what the functions of a step get.
type StepCall struct {
	// Key is the same in every attempt.  Send it to the other system as its idempotency key.
	Key string
	// Request is the request of the step as JSON.  Ask gets the request of the earlier call.
	Request json.RawMessage
	// BegunAt is when the earlier call began, for Ask.
	BegunAt time.Time
}

// StepOptions are the options of a step.
type StepOptions[T any] struct {
	// Request is stored before the call, so that a later attempt can compare it.
	Request any
	// CallTimeout is the time for the call; 30 s if not given.  The context of the call ends with it.
	CallTimeout time.Duration
	// Ask asks the other system whether an earlier call, whose answer is unknown, was performed.  If done is false, the call is made again.
	Ask func(context.Context, StepCall) (answer T, done bool, err error)
}

const (
	beginStepSQL  = `CALL idemq.begin_step($1::bigint, $2::bigint, $3::text, $4::text::jsonb, $5::text::interval)`
	finishStepSQL = `SELECT idemq.finish_step($1::bigint, $2::bigint, $3::text, $4::text::jsonb)::text, idemq.validate($1::bigint, $2::bigint)::text`
	refuseStepSQL = `SELECT idemq.refuse_step($1::bigint, $2::bigint, $3::text, $4::text)`
)

// Step calls another system, unless an earlier attempt has done so, and stores the answer at once.  If call returns Refused or Dead, the
// other system has definitely not performed it.  A handler of Handle can call Step until it uses its transaction.
func Step[T, P any](ctx context.Context, j *Job[P], name string, call func(context.Context, StepCall) (T, error), o *StepOptions[T]) (answer T, err error) {
	if o == nil {
		o = new(StepOptions[T])
	}
	if o.CallTimeout < 0 {
		return answer, fmt.Errorf("CallTimeout must not be negative, but is %s", o.CallTimeout)
	}
	request, err := encode(o.Request, "the request")
	if err != nil {
		return answer, err
	}
	end, err := j.handled.beginStep(name)
	if err != nil {
		return answer, err
	}
	defer end()
	err = j.handled.apart("Step", func(ask asker) error {
		s := &step{ask: ask, id: j.ID, token: j.Token, name: name, request: request, limit: or(o.CallTimeout, 30*time.Second)}
		var askFirst func(context.Context, StepCall) (any, bool, error)
		if o.Ask != nil {
			askFirst = func(ctx context.Context, c StepCall) (any, bool, error) { return o.Ask(ctx, c) }
		}
		text, value, err := s.run(ctx, askFirst, func(ctx context.Context, c StepCall) (any, error) { return call(ctx, c) })
		if err != nil {
			return err
		}
		if text == nil {
			if value != nil {
				answer = value.(T)
				j.Log.Warn("idemq: step is done, but its response cannot be stored", "step", name, "error", s.unstored)
			}
			return nil
		}
		if err := decode([]byte(*text), &answer); err != nil {
			return fmt.Errorf("the stored response of step %s cannot be decoded: %w", name, err)
		}
		return nil
	})
	return answer, typed(err)
}

// step is a call of Step without its types.
type step struct {
	ask       asker
	id, token int64
	name      string
	request   string
	limit     time.Duration
	unstored  error
}

// begunStep is what begin_step returns.
type begunStep struct {
	outcome                                 string
	response, former, retryAfter, effectKey *string
	begunAt                                 *time.Time
}

// run returns the stored answer or, if it cannot be stored, the answer itself.
func (s *step) run(ctx context.Context, askFirst func(context.Context, StepCall) (any, bool, error), call func(context.Context, StepCall) (any, error)) (*string, any, error) {
	asked := time.Now()
	var b begunStep
	// If this is repeated after a lost answer, the outcome is busy, because the server cannot know that no call was made.
	err := s.ask(ctx, func(ctx context.Context, own *session) error {
		text := int16(pgx.TextFormatCode)
		formats := pgx.QueryResultFormats{text, text, text, pgx.BinaryFormatCode, text, text}
		return own.row(ctx, beginStepSQL, formats, s.id, s.token, s.name, s.request, interval(s.limit)).Scan(&b.outcome, &b.response, &b.former, &b.begunAt, &b.retryAfter, &b.effectKey)
	})
	switch {
	case err != nil:
		return nil, nil, err
	case b.outcome == "done":
		return b.response, nil, nil
	case b.outcome == "busy": // the call of a lost attempt may still arrive
		return nil, nil, &verdict{kind: snooze, exact: deref(b.retryAfter), text: "an earlier call of step " + s.name + " may still arrive"}
	case b.outcome == "unknown" && askFirst != nil:
		answer, done, err := guarded(func() (any, bool, error) {
			return askFirst(ctx, StepCall{Key: deref(b.effectKey), Request: raw(b.former), BegunAt: deref(b.begunAt)})
		})
		if err != nil {
			// If Ask returns Dead, that says nothing about the earlier call.
			if v := verdictOf(err); v != nil && v.kind == refused {
				err = errors.Join(s.refuse(ctx, err), err)
			}
			return nil, nil, err
		}
		if done {
			return s.finish(ctx, answer)
		}
	}
	limited, cancel := context.WithDeadlineCause(ctx, asked.Add(s.limit), fmt.Errorf("step %s: no response within %s: %w", s.name, s.limit, context.DeadlineExceeded))
	defer cancel()
	// Another attempt may already have asked whether the call was made.
	if !time.Now().Before(asked.Add(s.limit)) {
		return nil, nil, fmt.Errorf("step %s: the time for the call was over before the call, so it was not made", s.name)
	}
	answer, _, err := guarded(func() (any, bool, error) {
		answer, err := call(limited, StepCall{Key: deref(b.effectKey), Request: json.RawMessage(s.request)})
		return answer, true, err
	})
	if err != nil {
		if v := verdictOf(err); v != nil && (v.kind == refused || v.kind == dead) {
			if failed := s.refuse(ctx, err); failed != nil {
				return nil, nil, failed
			}
		}
		return nil, nil, err
	}
	return s.finish(ctx, answer)
}

func (s *step) refuse(ctx context.Context, err error) error {
	return s.ask(context.WithoutCancel(ctx), func(ctx context.Context, own *session) error {
		return own.exec(ctx, refuseStepSQL, s.id, s.token, s.name, textOf(err))
	})
}

// finish stores an answer; the first one counts.  An answer that cannot be stored is left out, because the call has been performed.
func (s *step) finish(ctx context.Context, answer any) (*string, any, error) {
	text, err := encode(answer, "the response")
	if err == nil {
		var stored *string
		if stored, err = s.store(ctx, &text); err == nil {
			return stored, nil, nil
		}
		if !hasState(err, "22", "54") {
			return nil, nil, err
		}
	}
	s.unstored = err
	if _, err := s.store(ctx, nil); err != nil {
		return nil, nil, err
	}
	return nil, answer, nil
}

// store stores an answer even if the lease was lost during the call, or the context has ended, because the call has been performed.
func (s *step) store(ctx context.Context, text *string) (stored *string, err error) {
	var standing string
	err = s.ask(context.WithoutCancel(ctx), func(ctx context.Context, own *session) error {
		return own.row(ctx, finishStepSQL, s.id, s.token, s.name, text).Scan(&stored, &standing)
	})
	if err == nil && (standing == "stale" || standing == "not_found") {
		err = &Error{SQLState: "IQ001", Message: "the answer of step " + s.name + " arrived after the lease was lost; it is stored, and the next attempt returns it"}
	}
	return stored, err
}
