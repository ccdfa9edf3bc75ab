package idemq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
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
	ErrLeaseLost error = sentinel{text: "idemq: the lease was lost"}
	// ErrTimeout means that the time of the attempt is over.
	ErrTimeout error = sentinel{text: "idemq: the time of the attempt is over"}
	// ErrCancelled means that the job is being cancelled, or has been cancelled.
	ErrCancelled error = sentinel{text: "idemq: the job was cancelled"}
	// ErrDraining means that the worker is stopping, and that its grace period is over.
	ErrDraining error = sentinel{text: "idemq: the worker is stopping"}
)

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
	if state := sqlState(err); state != "" {
		return &Error{SQLState: state, Message: err.Error(), cause: err}
	}
	return err
}

// sqlState returns the SQLSTATE of an error, or "".  Other drivers than pgx also have the method.
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

// aboutJob reports whether the server says that the attempt does not own its job.
func aboutJob(err error) bool { return hasState(err, "IQ001", "IQ002", "IQ006") }

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
	delay time.Duration
	scope Scope
	event string
	text  string
	cause error
	exact string // a delay from the server, as text
}

type verdictKind int

const (
	retryLater verdictKind = iota
	snooze
	dead
	refused
	holdBack
	waiting
)

func (v *verdict) Error() string { return v.text }
func (v *verdict) Unwrap() error { return v.cause }

func newVerdict(kind verdictKind, d time.Duration, cause error, text string) *verdict {
	if cause != nil {
		text = cause.Error()
	}
	return &verdict{kind: kind, delay: d, text: text, cause: cause}
}

// RetryLater is returned by a handler whose attempt has failed.  The job is retried after d, or after the queue's backoff if d is negative.
func RetryLater(d time.Duration, cause error) error {
	return newVerdict(retryLater, d, cause, "retry later")
}

// Snooze is returned by a handler that wants to run again after d.  The attempt does not count.
func Snooze(d time.Duration, reason string) error {
	return newVerdict(snooze, d, nil, reason)
}

// Dead is returned by a handler if no attempt can succeed.
func Dead(cause error) error { return newVerdict(dead, 0, cause, "dead") }

// Refused is returned by the call of a [Step] if the other system has definitely not performed it.
func Refused(cause error) error { return newVerdict(refused, 0, cause, "refused") }

// HoldBack is returned by a handler whose provider asks for a pause.  No further job of the group or queue starts until d has passed.  The
// job is then ready again.  The first 100 such attempts in a row do not count.
func HoldBack(d time.Duration, scope Scope) error {
	v := newVerdict(holdBack, d, nil, "held back")
	v.scope = scope
	return v
}

// verdictOf returns the verdict in an error's chain, or nil.
func verdictOf(err error) *verdict {
	var v *verdict
	if errors.As(err, &v) {
		return v
	}
	return nil
}

// stopped is the cause of a handler's context: one of the errors above, with a text.
type stopped struct {
	why  error
	text string
}

func (s *stopped) Error() string { return s.text }
func (s *stopped) Unwrap() error { return s.why }

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

// ascii replaces what an encoding of the server may lack.
func ascii(text string) string { return notASCII.ReplaceAllString(text, "?") }

// causesOf calls see with each error in the chain, the outermost first.
func causesOf(err error, see func(error)) {
	left := maxCauses
	var visit func(error)
	visit = func(err error) {
		if err == nil || left == 0 {
			return
		}
		left--
		see(err)
		switch e := err.(type) {
		case interface{ Unwrap() error }:
			visit(e.Unwrap())
		case interface{ Unwrap() []error }:
			for _, each := range e.Unwrap() {
				visit(each)
			}
		}
	}
	visit(err)
}

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
	var d details
	d.SQLState = sqlState(err)
	causesOf(err, func(each error) {
		if v, ok := each.(*verdict); ok && v.cause != nil && d.Type == "" {
			return // its cause says more
		}
		if p, ok := each.(*panicked); ok {
			d.Trace = shorten(strings.ReplaceAll(p.stack, "\x00", ""), maxText)
		}
		if d.Type == "" {
			d.Type = fmt.Sprintf("%T", each)
			return
		}
		d.Causes = append(d.Causes, cause{fmt.Sprintf("%T", each), shorten(textOf(each), 1000)})
	})
	text, _ := json.Marshal(d) // strings only
	return string(text)
}

var values = regexp.MustCompile(`(?i)"[^"]*"|'[^']*'|\b[0-9a-f]{8,}\b|\d+`)

// fingerprint returns what is the same in errors with the same cause.
func fingerprint(err error) string {
	return fmt.Sprintf("%T %s %s", err, sqlState(err), values.ReplaceAllString(shorten(textOf(err), 2000), "?"))
}

// serverLost reports whether an error of an outside handler says that its own connection to the worker's server was lost.
func serverLost(err error, s *server, since time.Time) bool {
	lost := false
	causesOf(err, func(each error) {
		switch e := each.(type) {
		case *pgconn.PgError:
			lost = lost || hasState(e, "08", "57P01", "57P02", "57P03")
		case *pgconn.ConnectError:
			lost = lost || e.Config != nil && s.isHost(e.Config.Host, e.Config.Port)
		case *net.OpError:
			lost = lost || e.Addr != nil && s.isAddress(e.Addr.String())
		}
		if each == io.ErrUnexpectedEOF || each.Error() == "conn closed" {
			lost = lost || s.lostSince(since)
		}
	})
	return lost && !errors.Is(err, context.DeadlineExceeded)
}
