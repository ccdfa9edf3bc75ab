package idemq

import "time"

const (
	breakerOpensAfter   = 10
	breakerFirstPause   = time.Second
	breakerLongestPause = 10 * time.Second
	// breakerOthers is the number of successes of other kinds after which it closes, because the failing kind may have no more jobs.
	breakerOthers = 10
	breakerKinds  = 1000
)

// breaker notices that the attempts of a queue keep failing with the same error.  While it is open, the worker runs one job at a time and
// pauses after each failure, so that the backlog does not use up its attempts.
type breaker struct {
	streaks map[string]streak // by kind
	others  int
	next    time.Duration
}

type streak struct {
	like  string
	count int
}

// open reports whether to run one job at a time.
func (b *breaker) open() bool {
	for _, s := range b.streaks {
		if s.count >= breakerOpensAfter {
			return true
		}
	}
	return false
}

// failed notes a failed attempt, and reports whether this opens it for the kind.
func (b *breaker) failed(kind string, err error) bool {
	like := fingerprint(err)
	s := b.streaks[kind]
	if s.like != like {
		s = streak{like: like}
	}
	s.count++
	if b.streaks == nil || len(b.streaks) >= breakerKinds {
		b.streaks = map[string]streak{}
	}
	b.streaks[kind] = s
	if s.count >= breakerOpensAfter {
		b.others = 0
	}
	return s.count == breakerOpensAfter
}

// succeeded notes a successful attempt, and reports whether this closes it.
func (b *breaker) succeeded(kind string) bool {
	if len(b.streaks) == 0 {
		return false
	}
	was := b.open()
	b.next = 0
	delete(b.streaks, kind)
	if b.open() {
		if b.others++; b.others >= breakerOthers {
			// The next such failure opens it again at once.
			for other, s := range b.streaks {
				s.count = min(s.count, breakerOpensAfter-1)
				b.streaks[other] = s
			}
		}
	}
	return was && !b.open()
}

// pause returns the pause after a failed attempt.
func (b *breaker) pause() time.Duration {
	if !b.open() {
		return 0
	}
	pause := max(b.next, breakerFirstPause)
	b.next = min(2*pause, breakerLongestPause)
	return pause
}
