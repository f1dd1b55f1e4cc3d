package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/smcgw/smcgw/ebpf/witness"
	"github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/inprocess/adopt"
	"github.com/smcgw/smcgw/inprocess/broker"
	"github.com/smcgw/smcgw/internal/procfs"
	"github.com/smcgw/smcgw/lab/testnet"
)

// spin is how long libraries of [InProcessSpin] poll a ring before they sleep.
const spin = 50 * time.Microsecond

// promotion is a broker in this process, and the library of the programs of some hosts.
type promotion struct {
	broker  *broker.Broker
	library string
	socket  string
	cancel  context.CancelFunc
	ended   chan error
}

// promote starts a broker. All brokers share the sequences that name connections across hosts, which the first one
// loads.
func (n *network) promote(library, name string, spin time.Duration) (*promotion, error) {
	if n.sequences == nil {
		root, err := procfs.CgroupMount()
		if err != nil {
			return nil, err
		}
		if n.sequences, err = witness.LoadSequences(root); err != nil {
			return nil, fmt.Errorf("names of connections: %w", err)
		}
	}
	p := &promotion{library: library, socket: filepath.Join(n.dir, name+".in-process"), ended: make(chan error, 1)}
	l, err := broker.Listen(p.socket, 0o666) // workers of nginx run as another user
	if err != nil {
		return nil, err
	}
	p.broker = broker.New(broker.Config{Thresholds: broker.Thresholds{Spin: spin}, Namer: n.sequences})
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	go func() { p.ended <- p.broker.Serve(ctx, l) }()
	n.promotions = append(n.promotions, p)
	return p, nil
}

func (p *promotion) close() error {
	p.cancel()
	return <-p.ended
}

// environment returns env with the library added. A program that executes another one passes it on.
func (p *promotion) environment(env []string) []string {
	return adopt.Environment(env, p.library, p.socket, 0)
}

// moved is what a broker has counted so far.
type moved struct {
	counters broker.Counters
	ring     uint64 // bytes through rings, as reported by the libraries
}

func (p *promotion) moved() moved {
	s := p.broker.Snapshot()
	return moved{s.Counters, s.Counters.MovedBytes + s.RingBytes()}
}

// fewestRingBytes is less than what a run of any promoted work moves: even a very short run has several hundred
// requests.
const fewestRingBytes = 16 << 10

// reckoning bounds the wait for what libraries report about connections that have ended.
const reckoning = time.Second

// promoted checks that connections of a run are promoted, that their bytes use the rings, and that the kernel keeps
// none that asked.
func (p *promotion) promoted(ctx context.Context) (func(ctx context.Context) error, error) {
	before := p.moved()
	return func(ctx context.Context) error {
		for end := time.Now().Add(reckoning); ; {
			err := whollyPromoted(before, p.moved())
			if err == nil || time.Now().After(end) {
				return err
			}
			if slept := testnet.Sleep(ctx, 10*time.Millisecond); slept != nil {
				return errors.Join(err, slept)
			}
		}
	}, nil
}

func whollyPromoted(before, after moved) error {
	var errs []error
	if after.counters.Promoted == before.counters.Promoted {
		errs = append(errs, fmt.Errorf("%w: none was promoted", errOtherWay))
	}
	if n := after.ring - before.ring; after.ring < before.ring || n < fewestRingBytes {
		errs = append(errs, fmt.Errorf("%w: %d bytes by rings", errOtherWay, int64(n)))
	}
	for _, why := range inprocess.Whys() {
		n := after.counters.Denied[why] + after.counters.Returned[why] - before.counters.Denied[why] - before.counters.Returned[why]
		if n > 0 && why != inprocess.WhyNoPeer { // the other end had ended when this one began to count
			errs = append(errs, fmt.Errorf("%w: %d ends native, %v", errOtherWay, n, why))
		}
	}
	return errors.Join(errs...)
}

// unpromoted checks that the servers of a host have the library, and that it promotes no connection of a run.
func (p *promotion) unpromoted(server *host) func(ctx context.Context) (func(ctx context.Context) error, error) {
	return func(context.Context) (func(context.Context) error, error) {
		if err := p.loaded(server); err != nil {
			return nil, err
		}
		before := p.broker.Counters().Promoted
		return func(context.Context) error {
			if n := p.broker.Counters().Promoted - before; n > 0 {
				return fmt.Errorf("%w: %d promoted", errOtherWay, n)
			}
			return nil
		}, nil
	}
}

var errNoLibrary = errors.New("the library is not loaded")

// loaded fails unless every program of a host, except our own, has the library.
func (p *promotion) loaded(h *host) error {
	own, err := os.Stat("/proc/self/exe")
	if err != nil {
		return err
	}
	programs := 0
	for _, pid := range h.cgroup.Processes() {
		exe, err := os.Stat(fmt.Sprintf("/proc/%d/exe", pid))
		if err != nil || os.SameFile(own, exe) {
			continue // the process has just ended
		}
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
		if err != nil {
			continue
		}
		if programs++; !strings.Contains(string(maps), p.library) {
			name, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
			return fmt.Errorf("%w: process %d of %s, %s", errNoLibrary, pid, h.Name, name)
		}
	}
	if programs == 0 {
		return fmt.Errorf("%w: %s runs no program", errNoLibrary, h.Name)
	}
	return nil
}
