package idemq

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"time"
)

const (
	version = "1.0.0"

	reportInterval     = 30 * time.Second
	reportAfterRefusal = 10 * time.Minute
	// firstReportAfter: a worker that ends sooner reports nothing.
	firstReportAfter = time.Second
	lastReport       = 500 * time.Millisecond

	// Like heartbeats, its commit does not wait for the disk or a standby.
	reportSQL = `SELECT pg_catalog.set_config('synchronous_commit', 'off', true), idemq.report_worker($1::text::uuid, $2::text, $3::text::text[], program => 'go', version => $4::text,
  host => $5::text, concurrency => $6::int, running => $7::text::bigint[], done => $8::bigint, stopping => $9::boolean, end_waits => '{}')`
)

// report reports the worker to the server every 30 s, for monitoring only.
type report struct {
	run      *run
	process  string
	reported bool
}

func newReport(r *run, process string) *report { return &report{run: r, process: process} }

func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// regularly reports until the worker stops.
func (p *report) regularly() {
	if p.run.once {
		return
	}
	for pause := firstReportAfter; p.run.over.Err() == nil; {
		sleep(p.run.over, pause)
		pause = reportInterval
		if p.run.over.Err() != nil || p.run.isStopping() {
			return
		}
		if !p.run.control.connected() {
			pause = firstReportAfter
		} else if err := p.report(false, reportInterval); err != nil && sqlState(err) != "" && !isLost(err) {
			pause = reportAfterRefusal
		}
	}
}

// stopped sends the last report if the worker has reported before.
func (p *report) stopped() {
	p.run.mu.Lock()
	reported := p.reported
	p.run.mu.Unlock()
	if reported && p.run.control.connected() {
		_ = p.report(true, lastReport)
	}
}

// report reports the queues that the server accepts: some may not exist, or the role may not claim from them.
func (p *report) report(stopping bool, limit time.Duration) error {
	all := p.run.queues
	err := p.send(all, stopping, limit)
	if len(all) < 2 || !hasState(err, "IQ005", "42501") {
		return err
	}
	var accepted []*consumer
	for _, q := range all {
		if p.send([]*consumer{q}, stopping, limit) == nil {
			accepted = append(accepted, q)
		}
	}
	if len(accepted) == 0 {
		return err
	}
	return p.send(accepted, stopping, limit)
}

func (p *report) send(queues []*consumer, stopping bool, limit time.Duration) error {
	r := p.run
	ids, _ := pairs(r.attempts())
	names := array(queues, func(q *consumer) any { return q.name })
	r.mu.Lock()
	concurrency, done := 0, int64(0)
	for _, q := range r.queues {
		concurrency += q.concurrency * max(q.o.Batch, 1)
	}
	for _, n := range r.counts {
		done += n
	}
	r.mu.Unlock()
	host, _ := os.Hostname()
	err := r.control.ask(r.over, min(limit, r.controlLimit()), func(ctx context.Context, s *session) error {
		return s.exec(ctx, reportSQL, p.process, r.w.o.Name, names, version, host, concurrency, ids, done, stopping)
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	p.reported = p.reported || err == nil
	return err
}
