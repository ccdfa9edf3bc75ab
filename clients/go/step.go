package idemq

import (
	"cmp"
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

// beginStepFormats are the formats of the columns of beginStepSQL: only the time is not text.
var beginStepFormats = pgx.QueryResultFormats{pgx.TextFormatCode, pgx.TextFormatCode, pgx.TextFormatCode, pgx.BinaryFormatCode, pgx.TextFormatCode, pgx.TextFormatCode}

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
	end, err := j.call.beginApart("Step")
	if err != nil {
		return answer, err
	}
	defer end()
	s := step[T, P]{j, name, cmp.Or(o.CallTimeout, 30*time.Second)}
	return s.run(ctx, request, call, o.Ask)
}

// step is a call of Step.
type step[T, P any] struct {
	*Job[P]
	name  string
	limit time.Duration
}

func (s step[T, P]) run(ctx context.Context, request string, call func(context.Context, StepCall) (T, error), ask func(context.Context, StepCall) (T, bool, error)) (answer T, err error) {
	ends := time.Now().Add(s.limit)
	var outcome string
	var response, former, retryAfter, key *string
	var begunAt *time.Time
	// If this is repeated after a lost answer, the outcome is busy, because the server cannot know that no call was made.
	err = s.side(ctx, func(ctx context.Context, own *session) error {
		return own.row(ctx, beginStepSQL, beginStepFormats, s.ID, s.Token, s.name, request, interval(s.limit)).Scan(&outcome, &response, &former, &begunAt, &retryAfter, &key)
	})
	switch {
	case err != nil:
		return answer, err
	case outcome == "done":
		return s.stored(response)
	case outcome == "busy": // the call of a lost attempt may still arrive
		return answer, &verdict{kind: snooze, delay: retryAfter, text: "an earlier call of step " + s.name + " may still arrive"}
	case outcome == "unknown" && ask != nil:
		done := false
		answer, err = guarded(func() (answer T, err error) {
			answer, done, err = ask(ctx, StepCall{Key: deref(key), Request: raw(former), BegunAt: deref(begunAt)})
			return answer, err
		})
		if err != nil {
			return answer, s.refused(ctx, err, refused) // if Ask returns Dead, that says nothing about the earlier call
		}
		if done {
			return s.finish(ctx, answer)
		}
	}
	// Another attempt may already have asked whether the call was made.
	if !time.Now().Before(ends) {
		return answer, fmt.Errorf("step %s: the time for the call was over before the call, so it was not made", s.name)
	}
	limited, cancel := context.WithDeadlineCause(ctx, ends, fmt.Errorf("step %s: no response within %s: %w", s.name, s.limit, context.DeadlineExceeded))
	defer cancel()
	answer, err = guarded(func() (T, error) {
		return call(limited, StepCall{Key: deref(key), Request: json.RawMessage(request)})
	})
	if err != nil {
		return answer, s.refused(ctx, err, refused, dead)
	}
	return s.finish(ctx, answer)
}

// stored decodes a stored response.
func (s step[T, P]) stored(response *string) (answer T, err error) {
	if response == nil {
		return answer, nil
	}
	if err := decode([]byte(*response), &answer); err != nil {
		return answer, fmt.Errorf("the stored response of step %s cannot be decoded: %w", s.name, err)
	}
	return answer, nil
}

// refused notes that the call was not performed, if the error is one of these verdicts.  It returns the error of the handler.
func (s step[T, P]) refused(ctx context.Context, err error, kinds ...verdictKind) error {
	v := verdictOf(err)
	for _, kind := range kinds {
		if v != nil && v.kind == kind {
			failed := s.side(context.WithoutCancel(ctx), func(ctx context.Context, own *session) error {
				return own.exec(ctx, refuseStepSQL, s.ID, s.Token, s.name, textOf(err))
			})
			if failed != nil {
				return errors.Join(failed, err)
			}
		}
	}
	return err
}

// finish stores an answer; the first one counts.  An answer that cannot be stored is left out, because the call has been performed.
func (s step[T, P]) finish(ctx context.Context, answer T) (T, error) {
	text, err := encode(answer, "the response")
	if err == nil {
		var stored *string
		if stored, err = s.store(ctx, &text); err == nil {
			return s.stored(stored)
		}
		if !hasState(err, "22", "54") {
			return answer, err
		}
	}
	s.Log.Warn("idemq: step is done, but its response cannot be stored", "step", s.name, "error", err)
	_, err = s.store(ctx, nil)
	return answer, err
}

// store stores an answer even if the lease was lost during the call, or the context has ended, because the call has been performed.
func (s step[T, P]) store(ctx context.Context, text *string) (stored *string, err error) {
	var standing string
	err = s.side(context.WithoutCancel(ctx), func(ctx context.Context, own *session) error {
		return own.row(ctx, finishStepSQL, s.ID, s.Token, s.name, text).Scan(&stored, &standing)
	})
	if err == nil && (standing == "stale" || standing == "not_found") {
		err = &Error{SQLState: "IQ001", Message: "the answer of step " + s.name + " arrived after the lease was lost; it is stored, and the next attempt returns it"}
	}
	return stored, err
}
