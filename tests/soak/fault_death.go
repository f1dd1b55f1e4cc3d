package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/testnet"
)

const (
	// victims is how many connections, each way, a gateway carries when it is killed.
	victims = 8
	// attempts is how many connections are opened around a death, each way.
	attempts = 400
)

// drawDeath draws the death of a gateway, which is then started again. Around it programs connect, in the end
// natively, which must not fail; a native stream must go on; what the gateway carried must end by a reset.
func (s *soak) drawDeath(rng *rand.Rand) (func(context.Context), string) {
	at, to := s.any(rng), s.any(rng)
	for to == at {
		to = s.any(rng)
	}
	d := death{s: s, at: at, to: to, after: span(rng, 100*time.Millisecond, 1500*time.Millisecond), seed: rng.Uint64(), whole: rng.IntN(2) == 0}
	what := "daemon"
	if d.whole {
		what = "daemon and guardian"
	}
	return d.run, fmt.Sprintf("kill -9 %s of %s after %v, among connections with %s", what, at.Name, d.after, to.Name)
}

// death is one death of a gateway.
type death struct {
	s      *soak
	at, to *site
	after  time.Duration // when the first attempt to connect is made
	seed   uint64
	whole  bool // the guardian is killed, too
}

func (d death) run(ctx context.Context) {
	s := d.s
	s.calm.Lock() // in a partition the peer's flows would wait as TCP does
	defer s.calm.Unlock()
	d.at.busy.Lock()
	defer d.at.busy.Unlock()
	if ctx.Err() != nil {
		return // the soak is over
	}
	var around sync.WaitGroup
	for _, p := range []pairing{{from: d.at, to: d.to}, {from: d.to, to: d.at, v6: true}, {from: d.at, to: s.plain}} {
		around.Go(func() { d.connect(p) })
	}
	around.Go(func() { d.stream() })
	held := []*victim{d.hold(pairing{from: d.at, to: d.to}), d.hold(pairing{from: d.to, to: d.at, v6: true})}
	time.Sleep(d.after)
	d.kill(held)
	around.Wait()
	began := time.Now()
	s.broke(began, "start the gateway of "+d.at.Name+" again", d.at.up(s.life, s.executable, false))
}

// connect opens one connection after another, to the port of the echo server.
func (d death) connect(p pairing) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(d.s.life, patience)
	defer cancel()
	r := app(p, good, "connect", "-to", p.to4or6(echoPort), "-count", text(attempts), "-gap", "5ms", "-timeout", text(limit))(ctx)
	d.s.ledger.add(r.flows, r.bytes)
	if r.err != nil && d.s.life.Err() == nil {
		d.s.ledger.fail(began, fmt.Sprintf("connect %s to %s around a death", p.from.Name, p.to.Name), r.err.Error()+"\n"+d.s.seen(p, r))
	}
}

// stream runs a native transfer: its other end is the plain host.
func (d death) stream() {
	p := pairing{from: d.at, to: d.s.plain}
	do := app(p, good, "transfer", "-to", p.to4or6(transferPort), "-limit", text(limit), "-seed", text(d.seed),
		"-up", text(d.s.largest), "-down", text(d.s.largest))
	d.s.perform(d.s.life, p, "native transfer through a death of the gateway of "+p.from.Name, do)
}

// victim is a program with connections that a gateway carries.
type victim struct {
	pairing
	proc *testnet.Proc
	ends map[string]bool // local addresses of the connections that are carried
}

// hold opens connections and keeps them.
func (d death) hold(p pairing) *victim {
	began := time.Now()
	v := &victim{pairing: p, ends: map[string]bool{}}
	proc, err := p.from.StartApp("hold", "-to", p.to4or6(echoPort), "-count", text(victims), "-patience", text(limit))
	if err != nil {
		d.s.broke(began, "hold connections", err)
		return nil
	}
	v.proc = proc
	ctx, cancel := context.WithTimeout(d.s.life, patience)
	defer cancel()
	for _, step := range []string{"connect", "ping"} {
		e, err := proc.Ask(ctx, step)
		d.s.broke(began, "hold connections", err)
		if e.Failed > 0 {
			d.s.ledger.fail(began, "held connections before a death", e.Error)
		}
	}
	d.s.ledger.add(victims, 0)
	return v
}

// carried records which connections of a victim the gateway carries.
func (d death) carried(v *victim) error {
	list, err := d.at.asking().Conns(d.s.life, report.ConnQuery{})
	if err != nil {
		return err
	}
	for i := range list.Conns {
		c := &list.Conns[i]
		if c.Carrier == report.CarrierNone {
			continue
		}
		for _, a := range []netip.AddrPort{c.Local, c.Remote} {
			v.ends[a.String()] = true
		}
	}
	return nil
}

// prompt bounds the time from the death of a gateway to the reset of what it carried: five seconds at the peer of a
// soft device, and more for a loaded machine.
const prompt = 15 * time.Second

// kill kills the gateway and checks how its connections end.
func (d death) kill(held []*victim) {
	s, began := d.s, time.Now()
	for _, v := range held {
		if v != nil {
			s.broke(began, "list connections", d.carried(v))
		}
	}
	s.innocent(d.at)
	s.count()
	d.at.last()
	proc := d.at.process()
	pids := d.at.Children(proc.Pid())
	if d.whole {
		pids = append(pids, proc.Pid())
	}
	for _, pid := range pids {
		s.broke(began, "kill", unix.Kill(pid, unix.SIGKILL))
	}
	ctx, cancel := context.WithTimeout(s.life, prompt)
	defer cancel()
	select {
	case <-proc.Done():
	case <-ctx.Done():
		s.broke(began, "guardian of "+d.at.Name, fmt.Errorf("%w: it outlives its daemon", errProgram))
	}
	d.at.writeLog()
	for _, v := range held {
		if v != nil {
			d.bury(ctx, v, began)
		}
	}
}

// bury waits for the resets of what was carried. Connections that were not carried must go on.
func (d death) bury(ctx context.Context, v *victim, began time.Time) {
	defer func() {
		_ = v.proc.CloseInput()
		select {
		case <-v.proc.Done():
		case <-time.After(prompt):
			_ = v.proc.Kill()
		}
	}()
	wanted := map[int]string{}
	for _, e := range v.proc.Events() {
		if e.Event == "connected" && v.ends[e.Local] {
			wanted[e.ID] = e.Local
		}
	}
	ended := func(e apps.Event) bool { return e.Event == "ended" && wanted[e.ID] != "" }
	events, err := v.proc.WaitEvents(ctx, len(wanted), ended)
	if err != nil && d.s.life.Err() == nil {
		d.s.ledger.fail(began, fmt.Sprintf("%d of %d connections from %s to %s live on without the gateway of %s",
			len(wanted)-len(events), len(wanted), v.from.Name, v.to.Name, d.at.Name), fmt.Sprint(wanted))
	}
	for _, e := range events {
		if e.Errno != "ECONNRESET" {
			d.s.ledger.fail(began, fmt.Sprintf("connection %s of a dead gateway ended by %q instead of a reset", wanted[e.ID], e.Errno), e.Error)
		}
	}
}
