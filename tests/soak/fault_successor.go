package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/testnet"
)

// drawReload draws another policy, then a file with an error, then the original configuration.
func (s *soak) drawReload(rng *rand.Rand) (func(context.Context), string) {
	at, d := s.any(rng), span(rng, 100*time.Millisecond, 2*time.Second)
	ports := services()
	rng.Shuffle(len(ports), func(i, j int) { ports[i], ports[j] = ports[j], ports[i] })
	ports = ports[:1+rng.IntN(len(ports))]
	mode := report.ModeEnforce
	if rng.IntN(4) == 0 {
		mode = report.ModeObserve
	}
	const inForce = "configuration in force"
	return func(ctx context.Context) {
		began := time.Now()
		s.broke(began, "reload "+at.Name, s.reload(at, at.policy(mode, ports), inForce))
		_ = testnet.Sleep(ctx, d)
		s.broke(began, "refuse the configuration of "+at.Name, s.reload(at, "mode: {{", "configuration refused"))
		s.broke(began, "reload "+at.Name+" again", s.reload(at, at.policy(report.ModeEnforce, services()), inForce))
	}, fmt.Sprintf("%s, mode %s, ports %v, for %v", at.Name, mode, ports, d)
}

// reload gives a gateway another configuration and waits until its log says what it did with it.
func (s *soak) reload(at *site, configuration, says string) error {
	if err := os.WriteFile(at.file(), []byte(configuration), 0o600); err != nil {
		return err
	}
	proc := at.process()
	before := strings.Count(proc.Output(), says)
	if err := proc.Signal(unix.SIGHUP); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(s.life, patience)
	defer cancel()
	for strings.Count(proc.Output(), says) == before {
		if err := testnet.Sleep(ctx, 20*time.Millisecond); err != nil {
			said := proc.Output()
			return fmt.Errorf("wait for %q: %w, after:\n%s", says, err, said[max(0, len(said)-4096):])
		}
	}
	return nil
}

// drawTakeover draws that another process takes over. The old gateway carries to the end what it carries, and then
// ends.
func (s *soak) drawTakeover(rng *rand.Rand) (func(context.Context), string) {
	at := s.any(rng)
	return func(context.Context) { s.takeOver(at) }, at.Name
}

func (s *soak) takeOver(at *site) {
	began := time.Now()
	s.innocent(at)
	s.count()
	at.mu.Lock()
	old, number := at.proc, at.starts
	at.mu.Unlock()
	defer at.writeLogOf(old, number)
	if err := at.up(s.life, s.executable, true); err != nil {
		s.broke(began, "take over at "+at.Name, err)
		return
	}
	if err := s.outlived(at, old, at.last()); err != nil {
		s.broke(began, "the gateway of "+at.Name+" that was taken over does not end in order", err)
	}
}

// outlived waits for the end of a gateway that was taken over, and checks its counters meanwhile. so is the number of
// its demotions before.
func (s *soak) outlived(at *site, old *testnet.Proc, so int64) error {
	ctx, cancel := context.WithTimeout(s.life, patience)
	defer cancel()
	for {
		select {
		case <-old.Done():
			return old.Wait()
		case <-ctx.Done():
			return fmt.Errorf("%w after %v", context.Cause(ctx), patience)
		case <-time.After(200 * time.Millisecond):
		}
		r, err := s.read(at.socket() + ".old")
		if err != nil {
			continue // it is about to end
		}
		s.zero(at, r)
		if now := int64(r.Sum("smcgw_demotions_total")); now > so {
			at.also(now - so)
			so = now
		}
	}
}
