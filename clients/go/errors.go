package idemq

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"runtime/debug"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"
)

// sentinel is an error that callers recognize with errors.Is.
type sentinel struct{ state, text string }

func (s sentinel) Error() string { return s.text }

// Errors of the server, to be tested with errors.Is.
var (
	// ErrStaleToken means that the attempt has lost its job (IQ001).
	ErrStaleToken error = sentinel{"IQ001", "idemq: the token is stale"}
	// ErrNoSuchJob means that the job does not exist, or that it has been deleted (IQ002).
	ErrNoSuchJob error = sentinel{"IQ002", "idemq: no such job"}
	// ErrKeyReused means that a job with another payload has the key (IQ003).
	ErrKeyReused error = sentinel{"IQ003", "idemq: the key belongs to a job with another payload"}
	// ErrDuplicateKey means that the key is taken, and OnDuplicate is OnDuplicateError (IQ004).
	ErrDuplicateKey error = sentinel{"IQ004", "idemq: the key is taken"}
	// ErrNoSuchQueue means that there is no such queue (IQ005).
	ErrNoSuchQueue error = sentinel{"IQ005", "idemq: no such queue"}
	// ErrAlreadyCommitted means that this attempt has already completed the job (IQ006).
	ErrAlreadyCommitted error = sentinel{"IQ006", "idemq: the job is already committed"}
	// ErrQueueFull means that the queue, or the group of the job, has too many unfinished jobs (IQ007).
	ErrQueueFull error = sentinel{"IQ007", "idemq: the queue is full"}
)

// Reasons for which the context of a handler ends, to be tested with errors.Is(context.Cause(ctx), …).
var (
	// ErrLeaseLost means that the job no longer belongs to this attempt.
	ErrLeaseLost error = sentinel{text: "the lease was lost"}
	// ErrTimeout means that the time of the attempt is over.
	ErrTimeout error = sentinel{text: "the time of the attempt is over"}
	// ErrCancelled means that the job is being cancelled, or has been cancelled.
	ErrCancelled error = sentinel{text: "the job was cancelled"}
	// ErrDraining means that the worker is stopping, and that its grace period is over.
	ErrDraining error = sentinel{text: "the worker is stopping"}
)

// stopped is the cause with which a handler's context ends.
type stopped struct {
	why  error // one of the errors above
	text string
}

func (s *stopped) Error() string { return s.text }
func (s *stopped) Unwrap() error { return s.why }

// Error is an error of the server.  Unwrap returns the error of the driver, such as a *pgconn.PgError.
type Error struct {
	SQLState, Message, Detail, Hint string
	cause                           error
}

// Error returns the message with its SQLSTATE.
func (e *Error) Error() string { return fmt.Sprintf("%s (SQLSTATE %s)", e.Message, e.SQLState) }

// Unwrap returns the error of the driver.
func (e *Error) Unwrap() error { return e.cause }

// Is reports whether the target is the package's error for this SQLSTATE.
func (e *Error) Is(target error) bool {
	s, ok := target.(sentinel)
	return ok && s.state != "" && s.state == e.SQLState
}

// typed converts an error of the driver to an Error if the server has raised it.
func typed(err error) error {
	if err == nil || errors.As(err, new(*Error)) {
		return err
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return &Error{pg.Code, pg.Message, pg.Detail, pg.Hint, err}
	}
	if state := sqlState(err); state != "" { // of another driver
		return &Error{SQLState: state, Message: err.Error(), cause: err}
	}
	return err
}

// sqlState returns the SQLSTATE of an error, or "".
func sqlState(err error) string {
	var own *Error
	if errors.As(err, &own) {
		return own.SQLState
	}
	var with interface{ SQLState() string }
	if errors.As(err, &with) {
		return with.SQLState()
	}
	return ""
}

// hasState reports whether an error has one of these SQLSTATEs, or classes of two characters.
func hasState(err error, states ...string) bool {
	state := sqlState(err)
	for _, each := range states {
		if state != "" && strings.HasPrefix(state, each) {
			return true
		}
	}
	return false
}

// Scope says whose further jobs HoldBack holds back.
type Scope string

// The scopes of HoldBack.  The zero value means the group, or the queue if the job has no group.
const (
	ScopeQueue Scope = "queue"
	ScopeGroup Scope = "group"
)

// verdict is an error with which a handler decides how its attempt ends.
type verdict struct {
	kind  verdictKind
	delay any // an interval, or nil
	scope Scope
	text  string
	cause error
}

type verdictKind int

const (
	retryLater verdictKind = iota
	snooze
	dead
	refused
	holdBack
)

func (v *verdict) Error() string { return v.text }
func (v *verdict) Unwrap() error { return v.cause }

// verdictOf returns the verdict in an error's chain, or nil.
func verdictOf(err error) *verdict {
	var v *verdict
	_ = errors.As(err, &v)
	return v
}

func newVerdict(kind verdictKind, cause error, text string) *verdict {
	if cause != nil {
		text = cause.Error()
	}
	return &verdict{kind: kind, text: text, cause: cause}
}

// RetryLater is returned by a handler whose attempt has failed.  The job is retried after d, or after the queue's backoff if d is negative.
func RetryLater(d time.Duration, cause error) error {
	v := newVerdict(retryLater, cause, "retry later")
	if d >= 0 {
		v.delay = interval(d)
	}
	return v
}

// Snooze is returned by a handler that wants to run again after d.  The attempt does not count.
func Snooze(d time.Duration, reason string) error {
	return &verdict{kind: snooze, delay: givenInterval(max(d, 0)), text: reason}
}

// Dead is returned by a handler if no attempt can succeed.
func Dead(cause error) error { return newVerdict(dead, cause, "dead") }

// Refused is returned by the call of a [Step] if the other system has definitely not performed it.
func Refused(cause error) error { return newVerdict(refused, cause, "refused") }

// HoldBack is returned by a handler whose provider asks for a pause.  No further job of the group or queue starts until d has passed.  The
// job is then ready again.  The first 100 such attempts in a row do not count.
func HoldBack(d time.Duration, scope Scope) error {
	return &verdict{kind: holdBack, delay: interval(d), scope: scope, text: "held back"}
}

// IsUncounted reports whether an error ends an attempt of which it is not a failure: Snooze, HoldBack, or the end of the handler's context
// for another reason than its time limit.
func IsUncounted(err error) bool {
	v := verdictOf(err)
	return v != nil && (v.kind == snooze || v.kind == holdBack) || errors.As(err, new(*stopped)) && !errors.Is(err, ErrTimeout)
}

// panicked is what a handler, a step or a hook panicked with.
type panicked struct {
	value any
	stack string
}

func (p *panicked) Error() string { return fmt.Sprintf("panic: %v", p.value) }

func (p *panicked) Unwrap() error {
	err, _ := p.value.(error)
	return err
}

var errGoexit = errors.New("the handler called runtime.Goexit, as t.FailNow does")

// returned is what a function has returned.
type returned[T any] struct {
	value T
	err   error
}

// start calls the application's code in a goroutine of its own, which a panic or runtime.Goexit ends with an error.
func start[T any](fn func() (T, error)) <-chan returned[T] {
	done := make(chan returned[T], 1)
	go func() {
		got := returned[T]{err: errGoexit}
		defer func() {
			if p := recover(); p != nil {
				got.err = &panicked{p, string(debug.Stack())}
			}
			done <- got
		}()
		got.value, got.err = fn()
	}()
	return done
}

// guarded is start for a caller that waits.
func guarded[T any](fn func() (T, error)) (T, error) {
	got := <-start(fn)
	return got.value, got.err
}

const (
	maxText   = 10000
	maxCauses = 16
)

// textOf returns the text of an error as the server accepts it.
func textOf(err error) string {
	text := strings.ReplaceAll(strings.ToValidUTF8(err.Error(), "�"), "\x00", "")
	if text == "" {
		text = fmt.Sprintf("%T", err)
	}
	return shorten(text, maxText)
}

// shorten cuts a text at a character boundary.
func shorten(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most]
}

var notASCII = regexp.MustCompile(`[^\n -~]`)

// details is the form of an error that idemq.attempts stores.
type details struct {
	Type     string  `json:"type"`
	SQLState string  `json:"sqlstate,omitempty"`
	Causes   []cause `json:"causes,omitempty"`
	Trace    string  `json:"trace,omitempty"`
}

type cause struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

func detailsOf(err error) string {
	d := details{SQLState: sqlState(err)}
	d.add(err)
	text, _ := json.Marshal(d) // strings only
	return string(text)
}

// add adds an error and the errors in its chain, the outermost first.
func (d *details) add(err error) {
	if err == nil || len(d.Causes) == maxCauses {
		return
	}
	if p, ok := err.(*panicked); ok {
		d.Trace = shorten(strings.ReplaceAll(p.stack, "\x00", ""), maxText)
	}
	own := fmt.Sprintf("%T", err)
	v, ok := err.(*verdict)
	switch {
	case ok && v.cause != nil && d.Type == "": // its cause says more
	case d.Type == "":
		d.Type = own
	default:
		d.Causes = append(d.Causes, cause{own, shorten(textOf(err), 1000)})
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		d.add(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, each := range e.Unwrap() {
			d.add(each)
		}
	}
}
