package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/internal/comparison"
)

// Options are the options of Run.
type Options struct {
	// To is the address of [Serve], Token the token that it printed.
	To    netip.AddrPort
	Token Token
	// Duration is the time of one run. Default: 2 s. At most a minute.
	Duration time.Duration
	// Rounds is how often every work is done every way. Default: 5.
	Rounds int
	// Idle is how many connections are held to measure the memory of each. Default: 200. At most 4096. Fewer are held if a
	// quarter of a gateway's limits is in use.
	Idle int
	// Gateway is the one beside us; nil if there is none, and only plain TCP is measured.
	Gateway Gateway
	// Program does the works of connections in process; nil: there are none.
	Program *Program
	// Log receives a line before every round. Default: discard.
	Log io.Writer
	// Progress is called before each measurement with how many of all are done. Default: not called.
	Progress func(done, total int)
	// Command is the command line, for the report.
	Command string
}

// maxRounds bounds the rounds of a comparison.
const maxRounds = 1000

func (o Options) withDefaults() (Options, error) {
	if o.Duration == 0 {
		o.Duration = 2 * time.Second
	}
	if o.Rounds == 0 {
		o.Rounds = 5
	}
	if o.Idle == 0 {
		o.Idle = idleDefault
	}
	if o.Log == nil {
		o.Log = io.Discard
	}
	if o.Progress == nil {
		o.Progress = func(int, int) {}
	}
	o.To = netip.AddrPortFrom(o.To.Addr().Unmap(), o.To.Port())
	switch {
	case !o.To.IsValid() || o.To.Port() == 0:
		return o, fmt.Errorf("serving host %v: no address and port", o.To)
	case o.Duration < 10*time.Millisecond || o.Duration > maxOrderTime:
		return o, fmt.Errorf("duration %v: not between 10 ms and %v", o.Duration, maxOrderTime)
	case o.Rounds < 1 || o.Rounds > maxRounds:
		return o, fmt.Errorf("rounds %d: not between 1 and %d", o.Rounds, maxRounds)
	case o.Idle < 1 || o.Idle > maxIdle:
		return o, fmt.Errorf("idle connections %d: not between 1 and %d", o.Idle, maxIdle)
	}
	return o, nil
}

// variant is one way of doing the works.
type variant struct {
	name    string
	carrier report.Carrier // none: plain TCP
	way     report.Way     // steered or in-process; none for plain TCP
	missing string         // why it cannot be measured; empty if it can
	ports   portRange
}

// runner is a run of [Run].
type runner struct {
	o        Options
	s        *session
	pid      int
	held     Held // nil: no gateway
	programs bool // [Program] does the works that last, every way
	variants []*variant
	rep      *comparison.Report
}

// Run compares. If ctx ends midway, it returns the results so far with the error.
func Run(ctx context.Context, o Options) (*comparison.Report, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &runner{o: o, rep: &comparison.Report{
		Schema: comparison.Schema, Machine: comparison.ThisMachine(""), Rounds: o.Rounds,
		Notes: []string{"processor time is that of the two programs and the two daemons, without what the kernel does in interrupts"},
	}}
	if o.Command != "" {
		c.rep.Commands = []string{o.Command}
	}
	defer c.end()
	if err := c.prepare(ctx); err != nil {
		return nil, err
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	r := comparison.Runner{Rounds: o.Rounds, Duration: o.Duration, Log: io.Discard, Progress: c.progress, KeepEmpty: true}
	c.rep.Series, err = r.Run(ctx, c.works(end))
	return c.rep, err
}

// progress reports a measurement, and a round before its first.
func (c *runner) progress(done, total int) {
	if each := total / c.o.Rounds; done%each == 0 {
		fmt.Fprintf(c.o.Log, "round %d of %d\n", done/each+1, c.o.Rounds)
	}
	c.o.Progress(done, total)
}

// end releases everything, however far prepare came.
func (c *runner) end() {
	c.release()
	if c.s != nil {
		c.s.close()
	}
}

// prepare opens the session, natively, and finds out which carriers there are.
func (c *runner) prepare(ctx context.Context) error {
	plain := &variant{name: comparison.TCP}
	c.variants = []*variant{plain}
	if err := c.devices(ctx); err != nil {
		return err
	}
	for i, v := range c.variants {
		v.ports = systemPorts().part(i, len(c.variants))
	}
	if err := c.arm(ctx, plain, false); err != nil {
		return err
	}
	var err error
	if c.s, err = open(ctx, c.o.To, c.o.Token); err != nil {
		return err
	}
	c.s.own, c.s.idle = c.o.Gateway, c.o.Idle
	if c.s.note != "" {
		c.rep.Notes = append(c.rep.Notes, c.s.note)
	}
	for _, v := range c.variants {
		if v.way == report.WayInProcess && v.missing == "" && c.s.noProgram != "" {
			v.missing = "on the serving host " + c.s.noProgram
		}
		if v.missing == "" {
			if err := c.probe(ctx, v); err != nil {
				return err
			}
		}
		c.programs = c.programs || v.way == report.WayInProcess && v.missing == ""
	}
	if c.programs {
		c.rep.Notes = append(c.rep.Notes, "works on connections that last are done by smcgw-load, every way; in process it has the library")
	}
	return nil
}

// devices makes a variant of every carrier.
func (c *runner) devices(ctx context.Context) error {
	if c.o.Gateway == nil {
		c.everywhere("no gateway on this host")
		return nil
	}
	list, err := c.o.Gateway.Devices(ctx)
	if err != nil {
		return err
	}
	if len(list.Devices) == 0 { // as in the modes that carry nothing; a probe tells the reason
		c.everywhere("")
	}
	seen := map[report.DeviceKind]bool{}
	for _, d := range list.Devices {
		if seen[d.Kind] {
			continue // soft has one device per address
		}
		seen[d.Kind] = true
		missing := ""
		if d.State != report.DeviceActive {
			missing = fmt.Sprintf("device %s", d.State)
			if d.Error != "" {
				missing += ": " + d.Error
			}
		}
		c.by(d.Kind, missing)
	}
	c.rep.Notes = append(c.rep.Notes, "each value is from connections that the gateway of this host says were carried so")
	if c.pid, err = c.o.Gateway.DaemonPID(ctx); err != nil {
		return err
	}
	return nil
}

// everywhere adds variants of the carriers that need no adapter; missing is why they cannot be measured, if known.
func (c *runner) everywhere(missing string) {
	for _, kind := range []report.DeviceKind{report.DeviceShm, report.DeviceSoft} {
		c.by(kind, missing)
	}
}

// by adds the variants of a device: steered, and for devices between hosts also from ring to ring.
func (c *runner) by(kind report.DeviceKind, missing string) {
	c.variants = append(c.variants, &variant{name: string(kind), carrier: kind.Carrier(), way: report.WaySteered, missing: missing})
	if c.o.Program != nil && kind != report.DeviceShm {
		c.variants = append(c.variants, &variant{
			name: string(report.WayInProcess) + " " + string(kind), carrier: kind.Carrier(), way: report.WayInProcess, missing: cmp.Or(missing, c.o.Program.missing()),
		})
	}
}

// arm makes the gateway beside us treat the next connections as a variant needs; cold makes each the first with its
// peer.
func (c *runner) arm(ctx context.Context, v *variant, cold bool) error {
	if c.s != nil {
		c.s.ports = v.ports
	}
	if c.o.Gateway == nil {
		return nil
	}
	c.release()
	t := config.Trial{Peer: c.o.To.Addr(), Port: c.o.To.Port(), Action: report.ActionPass}
	if v.carrier != report.CarrierNone {
		t.Action, t.Carrier, t.Cold, t.Way = report.ActionAccelerate, v.carrier, cold, v.way
	}
	var err error
	if c.held, err = c.o.Gateway.Try(ctx, t); err != nil {
		return fmt.Errorf("%s: %w", trialNote(err, "this host"), err)
	}
	return nil
}

func (c *runner) release() {
	if c.held != nil {
		c.held.Close()
		c.held = nil
	}
}

// probes is how often a carrier may fail before it counts as unavailable: the first connections also probe the peer.
const probes = 3

// probe makes a connection to see how it is carried. This is also a warm-up.
func (c *runner) probe(ctx context.Context, v *variant) error {
	if err := c.arm(ctx, v, false); err != nil {
		return err
	}
	for range probes {
		m, err := c.try(ctx, v)
		if err != nil {
			v.missing = err.Error()
			continue
		}
		how, err := c.verify(ctx, m, v)
		if err != nil {
			return err
		}
		if how.holds() {
			v.missing = ""
			return nil
		}
		v.missing = "fallback: " + how.reason
		c.explain(v, how.reason)
		if v.carrier == report.CarrierNone {
			v.missing = how.reason
		}
	}
	return context.Cause(ctx)
}

// try makes a connection of a variant: in process it must last to be promoted.
func (c *runner) try(ctx context.Context, v *variant) (measured, error) {
	if v.way != report.WayInProcess {
		m := measured{began: time.Now()}
		return m, c.s.request(ctx, &m)
	}
	if err := c.handOver(v); err != nil {
		return measured{}, err
	}
	m, err := c.s.ping(ctx, max(c.o.Duration, promotedWithin))
	return m, errors.Join(err, c.takeBack())
}

// promotedWithin is how long a connection lasts to see whether it is promoted.
const promotedWithin = time.Second

// handOver makes the programs do the next works, with the library if the variant needs it.
func (c *runner) handOver(v *variant) error {
	who := askProgram
	if v.way == report.WayInProcess {
		who = askLibrary
	}
	if err := c.s.serveBy(who); err != nil {
		return err
	}
	c.s.load = &loading{c.o.Program, who == askLibrary}
	return nil
}

// takeBack makes this process and the server do the works again.
func (c *runner) takeBack() error {
	if c.s.load == nil {
		return nil
	}
	c.s.load = nil
	return c.s.serveBy(askOwn)
}

// verify looks up how a run was carried; without a gateway everything is plain TCP.
func (c *runner) verify(ctx context.Context, m measured, v *variant) (carriage, error) {
	if c.o.Gateway == nil {
		return carriage{as: len(m.conns)}, nil
	}
	return verify(ctx, c.o.Gateway, m, v)
}

// works returns the tasks, each every way. An error that ends the comparison, rather than just a run, is passed to end.
func (c *runner) works(end context.CancelCauseFunc) (list []comparison.Work) {
	for _, t := range tasks {
		w := comparison.Work{Name: t.name, NoWarmUp: true}
		for _, r := range t.results {
			w.Metrics = append(w.Metrics, r.Metric)
		}
		for _, v := range c.variants {
			rem := new(remarks)
			w.Cells = append(w.Cells, comparison.Cell{Variant: v.name, Missing: t.missing(v), Note: rem.String, Run: func(ctx context.Context, d time.Duration) ([]float64, error) {
				values, err := c.one(ctx, t, v, d, rem)
				if err != nil {
					end(err)
				}
				return values, err
			}})
		}
		list = append(list, w)
	}
	return list
}

// one does a work one way. A failed run has no numbers; an error ends the comparison.
func (c *runner) one(ctx context.Context, t task, v *variant, d time.Duration, rem *remarks) ([]float64, error) {
	values := make([]float64, len(t.results))
	for i := range values {
		values[i] = math.NaN()
	}
	if err := c.arm(ctx, v, t.cold); err != nil {
		return values, err
	}
	settle(ctx, d)
	if t.stays && c.programs {
		if err := c.handOver(v); err != nil {
			if rem.failure = err.Error(); !errors.Is(err, ErrProgram) {
				return values, interrupted(ctx, err)
			}
			return values, nil
		}
	}
	before, err := c.meters()
	if err != nil {
		return values, interrupted(ctx, err)
	}
	m, errRun := t.run(c.s, ctx, d)
	if err := c.takeBack(); err != nil {
		return values, interrupted(ctx, errors.Join(errRun, err))
	}
	after, err := c.meters()
	if err != nil {
		return values, interrupted(ctx, errors.Join(errRun, err))
	}
	if errRun != nil {
		rem.failure = errRun.Error()
		return values, nil
	}
	how, err := c.verify(ctx, m, v)
	if err != nil {
		return values, err
	}
	rem.add(m, how)
	c.explain(v, how.reason)
	if !how.holds() || float64(m.failed) > (1-enough)*float64(m.failed+m.count) {
		return values, nil
	}
	for i, r := range t.results {
		values[i] = r.value(m, before.until(after))
	}
	return values, nil
}

// explain notes, once, what a reason means for the measurement and what to do.
func (c *runner) explain(v *variant, reason string) {
	note := "no_peer in process: in_process.between_hosts, which is off by default, must be on at both hosts, and TCP port 4790 (datagram_port) pass"
	if v.way != report.WayInProcess || reason != inprocess.WhyNoPeer.String() {
		code, known := report.CodeNamed(reason)
		if !known {
			return
		}
		note = reason + ": " + code.Meaning + " " + code.Fix
	}
	if !slices.Contains(c.rep.Notes, note) {
		c.rep.Notes = append(c.rep.Notes, note)
	}
}

// interrupted returns the cause of an error rather than its consequence.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// settle waits for the effects of the last run to disappear: garbage here, connections ending in the gateways,
// processors that are awake.
func settle(ctx context.Context, d time.Duration) {
	runtime.GC()
	select {
	case <-ctx.Done():
	case <-time.After(min(max(d, 50*time.Millisecond), time.Second)):
	}
}

// remarks collects, over the rounds of a task done one way, what a reader of its rows must know.
type remarks struct {
	looked, other int    // connections looked up; those not carried as claimed
	reason        string // reason of the first of those
	made, failed  int    // connections made, and failed, by a rate
	note          string // of the last run that had one
	failure       string // of the last run that failed
}

func (r *remarks) add(m measured, how carriage) {
	r.looked += how.as + how.other
	r.other += how.other
	if r.reason == "" {
		r.reason = how.reason
	}
	if m.note != "" {
		r.note = m.note
	}
	r.made += m.count
	r.failed += m.failed
}

// String returns the remarks, or "" if there are none.
func (r *remarks) String() string {
	var list []string
	if r.other > 0 {
		list = append(list, fmt.Sprintf("fallback: %s (%d of %d connections looked up)", r.reason, r.other, r.looked))
	}
	if r.failed > 0 {
		list = append(list, fmt.Sprintf("%d of %d connections failed", r.failed, r.made+r.failed))
	}
	if r.note != "" {
		list = append(list, r.note)
	}
	if r.failure != "" {
		list = append(list, r.failure)
	}
	return strings.Join(list, "; ")
}
