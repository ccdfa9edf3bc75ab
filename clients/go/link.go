package idemq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
)

type ctxHandler = ctxwatch.Handler

const (
	connectTimeout = 5 * time.Second
	cancelTimeout  = 2 * time.Second
	// answerTimeout limits a statement that waits for nothing.
	answerTimeout         = 10 * time.Second
	shortestAnswerTimeout = 2 * time.Second
	longestConnectPause   = 5 * time.Second
	sayAgainAfter         = time.Minute
)

// server is the address of a server, and what all sessions with it share.
type server struct {
	config *pgx.ConnConfig
	log    *slog.Logger
	// process identifies the worker in all its sessions.
	process string
	// retry is whether to try again if a session cannot be opened.
	retry bool
	// over ends when the worker must not wait any longer.
	over context.Context
	// pooled is whether a session has turned out to be a pooler's.
	pooled atomic.Bool

	mu       sync.Mutex
	sessions map[*session]bool
	downAt   time.Time
	saidAt   time.Time
	lostAt   time.Time
	cleanups []chan struct{}
}

func newServer(config *pgx.ConnConfig, application string, log *slog.Logger) *server {
	config = config.Copy()
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = application
	}
	if config.RuntimeParams["client_encoding"] == "" {
		config.RuntimeParams["client_encoding"] = "UTF8"
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = connectTimeout
	}
	for _, other := range config.Fallbacks {
		if (other.Host != config.Host || other.Port != config.Port) && config.ValidateConnect == nil {
			config.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
		}
	}
	return &server{config: config, log: log, sessions: map[*session]bool{}}
}

// isHost reports whether this is an address of the server.
func (s *server) isHost(host string, port uint16) bool {
	if s.config.Host == host && s.config.Port == port {
		return true
	}
	for _, other := range s.config.Fallbacks {
		if other.Host == host && other.Port == port {
			return true
		}
	}
	return false
}

// isAddress reports whether a session is connected to this address.
func (s *server) isAddress(address string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for each := range s.sessions {
		if each.socket.conn.RemoteAddr().String() == address {
			return true
		}
	}
	return s.isHost(splitHost(address))
}

func splitHost(address string) (string, uint16) {
	var number uint16
	host, port, _ := net.SplitHostPort(address)
	_, _ = fmt.Sscan(port, &number)
	return host, number
}

func (s *server) lostSince(since time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.lostAt.Before(since)
}

// open opens a session, and tries until it succeeds.
func (s *server) open(ctx context.Context, lends bool) (*session, error) {
	for pause := 200 * time.Millisecond; ; pause = min(2*pause, longestConnectPause) {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		limited, cancel := context.WithTimeout(ctx, s.config.ConnectTimeout*time.Duration(1+len(s.config.Fallbacks)))
		own, err := s.connect(limited, lends)
		cancel()
		if err == nil {
			s.opened(own)
			return own, nil
		}
		if !s.retry || ctx.Err() != nil {
			return nil, err
		}
		s.lost(err)
		sleep(ctx, time.Duration(float64(pause)*(0.75+rand.Float64()/2)))
	}
}

func (s *server) opened(own *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions[own] = true
	if !s.downAt.IsZero() {
		s.log.Warn("idemq: reconnected", "after", time.Since(s.downAt).Round(100*time.Millisecond))
	}
	s.downAt, s.saidAt = time.Time{}, time.Time{}
}

func (s *server) closed(own *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, own)
	if !own.abandoned {
		s.cleanups = append(slices.DeleteFunc(s.cleanups, func(done chan struct{}) bool {
			select {
			case <-done:
				return true
			default:
				return false
			}
		}), own.conn.PgConn().CleanupDone())
	}
}

// cleanedUp waits until the driver has ended what it does in the background for sessions that were lost.
func (s *server) cleanedUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	limit := time.After(connectTimeout)
	for _, done := range s.cleanups {
		select {
		case <-done:
		case <-limit:
			return
		}
	}
}

// lost notes that a session was lost or could not be opened.  It says so in the log once a minute.
func (s *server) lost(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.lostAt = now
	if s.downAt.IsZero() || now.Sub(s.saidAt) >= sayAgainAfter {
		s.saidAt = now
		s.log.Warn("idemq: no connection; trying again", "database", s.config.Database, "error", err)
	}
	if s.downAt.IsZero() {
		s.downAt = now
	}
}

// all returns the open sessions.
func (s *server) all() []*session {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*session, 0, len(s.sessions))
	for each := range s.sessions {
		all = append(all, each)
	}
	return all
}

// sleep waits, or until the context ends.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// link is a connection that reconnects.  Its statements run one after the other.
type link struct {
	server *server
	lends  bool
	// onConnect is called with each new session.
	onConnect func(context.Context, *session) error
	turn      chan struct{}
	current   atomic.Pointer[session]
}

func newLink(server *server, lends bool) *link {
	return &link{server: server, lends: lends, turn: make(chan struct{}, 1)}
}

// errLost marks errors of a session that was lost, or that could not be opened because the worker ends.
type errLost struct{ error }

func (e errLost) Unwrap() error { return e.error }

func isLost(err error) bool { return errors.As(err, new(errLost)) }

// connected reports whether the link has a session, as far as it knows.
func (l *link) connected() bool {
	s := l.current.Load()
	return s != nil && !s.killed.Load()
}

// with calls fn with the session, exclusively until fn is done.  If the session is lost, the error is an errLost.
func (l *link) with(ctx context.Context, fn func(*session) error) error {
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return errLost{context.Cause(ctx)}
	}
	defer func() { <-l.turn }()
	s, err := l.open(ctx)
	if err != nil {
		return err
	}
	err = fn(s)
	if s.broken(err) {
		l.drop(s, err)
		return errLost{err}
	}
	return err
}

// drop ends a session that was lost.
func (l *link) drop(s *session, err error) {
	l.current.CompareAndSwap(s, nil)
	if err != nil && !s.killed.Load() && l.server.over.Err() == nil {
		l.server.lost(err)
	}
	s.kill()
	if !s.abandoned {
		_ = s.conn.Close(context.Background()) // its socket is closed, so this sends nothing
	}
	l.server.closed(s)
}

func (l *link) open(ctx context.Context) (*session, error) {
	for {
		s := l.current.Load()
		if s != nil && !s.gone() {
			return s, nil
		}
		if s != nil {
			l.drop(s, nil)
		}
		s, err := l.server.open(ctx, l.lends)
		if err != nil {
			if ctx.Err() != nil {
				err = errLost{err}
			}
			return nil, err
		}
		l.current.Store(s)
		if l.onConnect == nil {
			return s, nil
		}
		limited, cancel := context.WithTimeout(ctx, answerTimeout)
		err = l.onConnect(limited, s)
		cancel()
		if err == nil {
			return s, nil
		}
		again := s.broken(err) && l.server.retry && ctx.Err() == nil
		l.drop(s, err)
		if !again {
			return nil, err
		}
		sleep(ctx, 200*time.Millisecond)
	}
}

// ask is like with, for a statement that waits for nothing.  ctx ends the wait for a session, but not a statement that is under way.
func (l *link) ask(ctx context.Context, limit time.Duration, fn func(context.Context, *session) error) error {
	return l.with(ctx, func(s *session) error {
		limited, cancel := context.WithTimeout(l.server.over, limit)
		defer cancel()
		return fn(limited, s)
	})
}

// repeat runs a statement that may be repeated until a server that accepts writes has answered it.  again: whether an answer may have been
// lost.
func (l *link) repeat(ctx context.Context, fn func(context.Context, *session) error) (again bool, err error) {
	for ; ; again = true {
		begun := false
		err = l.with(ctx, func(s *session) error {
			begun = true
			return fn(ctx, s)
		})
		if !isLost(err) || !begun || ctx.Err() != nil {
			return again, err
		}
		sleep(ctx, 100*time.Millisecond)
	}
}

// close ends the session.  Nothing may use the link afterwards.
func (l *link) close() {
	if s := l.current.Swap(nil); s != nil {
		s.close()
		l.server.closed(s)
	}
}
