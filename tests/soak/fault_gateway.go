package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/testnet"
)

// ofGateways are the faults of gateways and of their hosts.
func (s *soak) ofGateways() []mischief {
	return []mischief{
		{"off", s.drawOff},
		{"stop", s.drawStop},
		{"demotion", s.drawDemotion},
		{"address", s.drawAddress},
		{"questions", s.drawQuestions},
		{"reload", s.drawReload},
		{"takeover", s.drawTakeover},
		{"death", s.drawDeath},
	}
}

// drawOff draws that the kill switch is thrown and reset.
func (s *soak) drawOff(rng *rand.Rand) (func(context.Context), string) {
	at, d := s.any(rng), span(rng, 100*time.Millisecond, 2*time.Second)
	return func(ctx context.Context) {
		began := time.Now()
		_, err := at.asking().SetOff(s.life, true)
		s.broke(began, "off at "+at.Name, err)
		_ = testnet.Sleep(ctx, d)
		_, err = at.asking().SetOff(s.life, false)
		s.broke(began, "on at "+at.Name, err)
	}, fmt.Sprintf("%s for %v", at.Name, d)
}

// drawDemotion draws that flows are demoted several times, whatever they are doing.
func (s *soak) drawDemotion(rng *rand.Rand) (func(context.Context), string) {
	at, times, gap := s.any(rng), 1+rng.IntN(10), span(rng, 10*time.Millisecond, 300*time.Millisecond)
	q := admin.DemoteQuery{All: true}
	if by := []report.Carrier{report.CarrierNone, report.CarrierShm, report.CarrierSoft}[rng.IntN(3)]; by != report.CarrierNone {
		q = admin.DemoteQuery{Carrier: by}
	}
	return func(ctx context.Context) {
		for range times {
			began := time.Now()
			_, err := at.asking().Demote(s.life, q)
			s.broke(began, "demote at "+at.Name, err)
			if testnet.Sleep(ctx, gap) != nil {
				return
			}
		}
	}, fmt.Sprintf("%s, all=%v %s, %d times, every %v", at.Name, q.All, q.Carrier, times, gap)
}

// heartbeat is how old the last heartbeat may be before the programs leave everything to the kernel.
const heartbeat = 200 * time.Millisecond

// drawStop draws that the daemon gets no processor for less than heartbeat, several times.
func (s *soak) drawStop(rng *rand.Rand) (func(context.Context), string) {
	at, times := s.any(rng), 1+rng.IntN(8)
	d, gap := span(rng, 5*time.Millisecond, heartbeat*6/10), span(rng, 10*time.Millisecond, 300*time.Millisecond)
	return func(ctx context.Context) {
		for range times {
			began := time.Now()
			s.broke(began, "stop "+at.Name, at.signal(unix.SIGSTOP))
			time.Sleep(d)
			s.broke(began, "continue "+at.Name, at.signal(unix.SIGCONT))
			if testnet.Sleep(ctx, gap) != nil {
				return
			}
		}
	}, fmt.Sprintf("daemon of %s, %d times for %v, every %v", at.Name, times, d, gap)
}

// drawAddress draws that an address is added, used, and removed once no connection uses it.
func (s *soak) drawAddress(rng *rand.Rand) (func(context.Context), string) {
	at, to := s.any(rng), s.any(rng)
	for to == at {
		to = s.any(rng)
	}
	n := 100 + rng.IntN(100)
	prefix := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 77, 0, byte(n)}), 24)
	bytes, seed := size(rng, 1<<20), rng.Uint64()
	return func(context.Context) {
		began := time.Now()
		s.broke(began, "add address", at.AddAddress(prefix))
		s.perform(s.life, pairing{from: at, to: to}, "transfer from the new address "+prefix.Addr().String(),
			app(pairing{from: at, to: to}, good, "transfer", "-bind", netip.AddrPortFrom(prefix.Addr(), 0).String(),
				"-to", to.addr(false, transferPort).String(), "-limit", text(limit), "-seed", text(seed),
				"-up", text(bytes), "-down", text(bytes)))
		s.broke(began, "remove address", at.RemoveAddress(prefix))
	}, fmt.Sprintf("%s at %s, used towards %s", prefix.Addr(), at.Name, to.Name)
}

// drawQuestions draws that everything is queried at once, and refusals are flushed.
func (s *soak) drawQuestions(rng *rand.Rand) (func(context.Context), string) {
	at, times := s.any(rng), 1+rng.IntN(20)
	return func(context.Context) {
		began := time.Now()
		for range times {
			client := at.asking()
			_, err := client.Conns(s.life, report.ConnQuery{All: true})
			s.broke(began, "conns of "+at.Name, err)
			_, err = client.FlushPeers(s.life)
			s.broke(began, "peers flush of "+at.Name, err)
			_, err = s.metrics(at)
			s.broke(began, "metrics of "+at.Name, err)
		}
	}, fmt.Sprintf("%s, %d times", at.Name, times)
}
