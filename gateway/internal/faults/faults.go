package faults

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/smcgw/smcgw/gateway/internal/upgrade"
)

// debugPrefix begins the names of the environment variables by which tests
// inject faults that nothing outside of the process can. They are no
// configuration: status lists those that are set.
const debugPrefix = "SMCGW_DEBUG_"

// Knobs are the faults asked for. A gateway has one set, read at its start;
// it is not changed afterwards, but by the counts that points use up. nil: none.
type Knobs struct {
	set []string // NAME=value of what is set, sorted

	// panics is where the work for a flow panics, hold where a flow stays until it
	// is ended from outside.
	panics, hold debugPoints

	// takeover is the step of a takeover at which the successor stays, one of
	// takeoverSteps.
	takeover string
}

// debugParsers are the knobs by name, without debugPrefix.
var debugParsers = map[string]func(*Knobs, string) error{
	"PANIC": func(k *Knobs, v string) (err error) { k.panics, err = parseDebugPoints(v); return err },
	"HOLD":  func(k *Knobs, v string) (err error) { k.hold, err = parseDebugPoints(v); return err },
	"TAKEOVER": func(k *Knobs, v string) error {
		if k.takeover = v; !slices.Contains(upgrade.Steps, v) {
			return fmt.Errorf("%w: one of %q", errDebugTakeover, upgrade.Steps)
		}
		return nil
	},
}

var (
	errUnknownKnob   = errors.New("no such knob")
	errDebugTakeover = errors.New("no step of a takeover")
	errDebugPoint    = errors.New("want STEP:PORT or STEP:PORT:COUNT, or more of them with commas between")
)

// FromEnvironment reads the knobs of this process.
func FromEnvironment() (*Knobs, error) { return parseDebug(os.Environ()) }

// parseDebug reads the knobs out of an environment, NAME=value each. Nothing that
// looks like one is ignored: a test must not pass because of a typing error.
func parseDebug(environ []string) (*Knobs, error) {
	k := &Knobs{}
	var errs []error
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		knob, ok := strings.CutPrefix(name, debugPrefix)
		if !ok || value == "" {
			continue
		}
		parse := debugParsers[knob]
		err := errUnknownKnob
		if parse != nil {
			err = parse(k, value)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", e, err))
		}
		k.set = append(k.set, e)
	}
	slices.Sort(k.set)
	if len(k.set) == 0 {
		return nil, nil
	}
	return k, errors.Join(errs...)
}

// HeldAt returns the step of a takeover at which the successor stays; empty: none.
func (k *Knobs) HeldAt() string {
	if k == nil {
		return ""
	}
	return k.takeover
}

// List returns what is set, for status.
func (k *Knobs) List() []string {
	if k == nil {
		return nil
	}
	return k.set
}

// debugPoint names a step in the life of the connections of one service.
type debugPoint struct {
	step string        // one of debugSteps
	port uint16        // of the server
	left *atomic.Int64 // how many more connections it is about; nil: all
}

// The steps at which flows can be held or their work made to panic: the states,
// and within them what the states do not tell apart.
const (
	Offered     = "offered"     // server: the offered SYN has come
	Accepted    = "accepted"    // client: before adoption; server: the third ACK has come
	Negotiating = "negotiating" // client: PROPOSAL was sent; server: before it is read
	Handover    = "handover"    // client: ACCEPT was read, the application's SYN is still to be handed over
	Completing  = "completing"  // client: the SYN was handed over; server: ACCEPT was sent
	Carrying    = "carrying"    // the data path of a queue pair, with bytes on it
	Relay       = "relay"       // a pump of a relay
	Closing     = "closing"     // a record of the end of a direction
)

var debugSteps = []string{
	Offered, Accepted, Negotiating, Handover, Completing, Carrying, Relay, Closing,
}

// debugPoints are some of them.
type debugPoints []*debugPoint

func parseDebugPoints(v string) (list debugPoints, err error) {
	for part := range strings.SplitSeq(v, ",") {
		p, err := parseDebugPoint(part)
		if err != nil {
			return nil, err
		}
		list = append(list, p)
	}
	return list, nil
}

func parseDebugPoint(v string) (*debugPoint, error) {
	parts := strings.Split(v, ":")
	if len(parts) < 2 || len(parts) > 3 || !slices.Contains(debugSteps, parts[0]) {
		return nil, fmt.Errorf("%w, with a step of %q", errDebugPoint, debugSteps)
	}
	port, err := strconv.ParseUint(parts[1], 10, 16)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errDebugPoint, err)
	}
	p := &debugPoint{step: parts[0], port: uint16(port)}
	if len(parts) == 3 {
		n, err := strconv.ParseUint(parts[2], 10, 31)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errDebugPoint, err)
		}
		p.left = &atomic.Int64{}
		p.left.Store(int64(n))
	}
	return p, nil
}

// Reach is called where a connection to a service arrives at a step: it panics if that
// is asked for, and reports whether the connection is to stay there.
func (k *Knobs) Reach(step string, port uint16) (held bool) {
	if k.panics.meet(step, port) {
		panic(fmt.Sprintf("%sPANIC at %s", debugPrefix, step))
	}
	return k.hold.meet(step, port)
}

// PanicOnce is the knob that has the work for one connection to a service panic.
func PanicOnce(step string, port uint16) *Knobs {
	p := &debugPoint{step: step, port: port, left: &atomic.Int64{}}
	p.left.Store(1)
	return &Knobs{panics: debugPoints{p}}
}

// meet reports whether one of the points is about this step of a connection to a
// service, and counts it if so.
func (ps debugPoints) meet(step string, port uint16) bool {
	for _, p := range ps {
		if p.step == step && p.port == port && (p.left == nil || p.left.Add(-1) >= 0) {
			return true
		}
	}
	return false
}
