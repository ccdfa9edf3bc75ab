package idemq

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

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
	// cleanups are what the driver does in the background for sessions that were lost.
	cleanups sync.WaitGroup

	mu             sync.Mutex
	sessions       map[*session]bool
	downAt, saidAt time.Time
}

func newServer(config *pgx.ConnConfig, application string) *server {
	config = config.Copy()
	config.RuntimeParams["application_name"] = cmp.Or(config.RuntimeParams["application_name"], application)
	config.RuntimeParams["client_encoding"] = cmp.Or(config.RuntimeParams["client_encoding"], "UTF8")
	config.ConnectTimeout = cmp.Or(config.ConnectTimeout, connectTimeout)
	if config.ValidateConnect == nil && len(config.Fallbacks) > 0 { // of several hosts, one accepts writes
		config.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	return &server{config: config, sessions: map[*session]bool{}}
}

// open opens a session, and tries until it succeeds.
func (s *server) open(ctx context.Context, lends bool) (*session, error) {
	for pause := 200 * time.Millisecond; ; pause = min(2*pause, longestConnectPause) {
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
}

// lost notes that a session was lost or could not be opened.  It says so in the log once a minute.
func (s *server) lost(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if now.Sub(s.saidAt) >= sayAgainAfter {
		s.saidAt = now
		s.log.Warn("idemq: no connection; trying again", "database", s.config.Database, "error", err)
	}
	s.downAt = cmp.Or(s.downAt, now)
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
	server  *server
	lends   bool
	turn    chan struct{}
	current atomic.Pointer[session]
}

func newLink(server *server, lends bool) *link {
	return &link{server: server, lends: lends, turn: make(chan struct{}, 1)}
}

// errLost marks errors of a session that was lost, or that could not be opened because the context has ended.
type errLost struct{ error }

func (e errLost) Unwrap() error { return e.error }

func isLost(err error) bool { return errors.As(err, new(errLost)) }

// with calls fn with the session, exclusively until fn is done.  ctx limits the wait for the session.  If the session is lost, the error is
// an errLost.
func (l *link) with(ctx context.Context, fn func(*session) error) error {
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return errLost{context.Cause(ctx)}
	}
	defer func() { <-l.turn }()
	s := l.current.Load()
	if s != nil && s.gone() {
		l.drop(s)
		s = nil
	}
	if s == nil {
		var err error
		if s, err = l.server.open(ctx, l.lends); err != nil {
			if ctx.Err() != nil {
				err = errLost{err}
			}
			return err
		}
		l.current.Store(s)
	}
	err := fn(s)
	if s.broken(err) {
		if !s.killed.Load() && l.server.over.Err() == nil {
			l.server.lost(err)
		}
		l.drop(s)
		return errLost{err}
	}
	return err
}

// drop ends a session that was lost.
func (l *link) drop(s *session) {
	l.current.CompareAndSwap(s, nil)
	s.kill()
	l.server.closed(s)
	if s.abandoned {
		return
	}
	// Its wire is closed, so this sends nothing.  With a context of its own, the driver ends a watch of a result that was left open.
	ctx, cancel := context.WithTimeout(context.Background(), cancelTimeout)
	defer cancel()
	_ = s.conn.Close(ctx)
	l.server.cleanups.Add(1)
	go func() {
		defer l.server.cleanups.Done()
		<-s.conn.PgConn().CleanupDone()
	}()
}

// ask is like with, for a statement that waits for nothing.  ctx does not end a statement that is under way.
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
		err = l.with(ctx, func(s *session) error { return fn(ctx, s) })
		if !isLost(err) || ctx.Err() != nil {
			return again, err
		}
		sleep(ctx, 100*time.Millisecond)
	}
}

// unlock ends a transaction in which no handler has run.  Only the owner of the link may call it.
func (l *link) unlock() {
	if s := l.current.Load(); s != nil && s.held {
		s.held = false
		if s.exec(l.server.over, "ROLLBACK") != nil {
			s.kill()
		}
	}
}

// close ends the session.  Nothing may use the link afterwards.
func (l *link) close() {
	if s := l.current.Swap(nil); s != nil {
		s.close()
		l.server.closed(s)
	}
}

// links are links of which each is used by one goroutine at a time.  The one that was used last is used next, so that no more connections
// are opened than necessary.
type links struct {
	server *server
	lends  bool
	// places limits their number, unless it is nil.
	places    chan struct{}
	mu        sync.Mutex
	idle, all []*link
}

func (p *links) acquire() *link {
	if p.places != nil {
		p.places <- struct{}{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.idle); n > 0 {
		l := p.idle[n-1]
		p.idle = p.idle[:n-1]
		return l
	}
	l := newLink(p.server, p.lends)
	p.all = append(p.all, l)
	return l
}

func (p *links) release(l *link) {
	p.mu.Lock()
	p.idle = append(p.idle, l)
	p.mu.Unlock()
	if p.places != nil {
		<-p.places
	}
}
