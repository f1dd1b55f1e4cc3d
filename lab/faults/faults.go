package faults

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/smcgw/smcgw/gateway/faults"
)

// prefix is the prefix of the environment variables.
const prefix = "SMCGW_DEBUG_"

// knobs are the requested faults. They do not change, except for the counts of points.
type knobs struct {
	// panics has the points where the work for a flow panics, hold those where a flow stays until it is ended from
	// outside.
	panics, hold points

	// takeover is the step of a takeover at which the successor stays; empty if none.
	takeover string

	trace *tracing // nil if none
}

// parsers are the parsers of the knobs by name, without the prefix.
var parsers = map[string]func(*knobs, string) error{
	"PANIC": func(k *knobs, v string) (err error) { k.panics, err = parsePoints(v); return err },
	"HOLD":  func(k *knobs, v string) (err error) { k.hold, err = parsePoints(v); return err },
	"TAKEOVER": func(k *knobs, v string) error {
		if k.takeover = v; !slices.Contains(faults.TakeoverSteps(), v) {
			return fmt.Errorf("%w: one of %q", errTakeover, faults.TakeoverSteps())
		}
		return nil
	},
	"TRACE": func(k *knobs, v string) (err error) { k.trace, err = parseTracing(v); return err },
}

var (
	errUnknownKnob = errors.New("no such knob")
	errTakeover    = errors.New("no step of a takeover")
	errPoint       = errors.New("want STEP:PORT or STEP:PORT:COUNT, or more of them with commas between")
)

// Parse parses the knobs from an environment of NAME=value strings. It ignores nothing that looks like a knob, because
// a test must not pass due to a typo. It returns nil if none is set.
func Parse(environ []string) (faults.Injector, error) {
	k := &knobs{}
	var errs []error
	none := true
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		knob, ok := strings.CutPrefix(name, prefix)
		if !ok || value == "" {
			continue
		}
		parse := parsers[knob]
		err := errUnknownKnob
		if parse != nil {
			err = parse(k, value)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", e, err))
		}
		none = false
	}
	if none {
		return nil, nil
	}
	return k, errors.Join(errs...)
}

// point is a step in the life of the connections of one service.
type point struct {
	step string        // one of [faults.Steps]
	port uint16        // of the server
	left *atomic.Int64 // how many more connections it applies to; nil: all
}

// points is a set of points.
type points []*point

func parsePoints(v string) (list points, err error) {
	for part := range strings.SplitSeq(v, ",") {
		p, err := parsePoint(part)
		if err != nil {
			return nil, err
		}
		list = append(list, p)
	}
	return list, nil
}

func parsePoint(v string) (*point, error) {
	parts := strings.Split(v, ":")
	if len(parts) < 2 || len(parts) > 3 || !slices.Contains(faults.Steps(), parts[0]) {
		return nil, fmt.Errorf("%w, with a step of %q", errPoint, faults.Steps())
	}
	port, err := strconv.ParseUint(parts[1], 10, 16)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errPoint, err)
	}
	p := &point{step: parts[0], port: uint16(port)}
	if len(parts) == 3 {
		n, err := strconv.ParseUint(parts[2], 10, 31)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errPoint, err)
		}
		p.left = &atomic.Int64{}
		p.left.Store(int64(n))
	}
	return p, nil
}

// meet reports whether one of the points applies to this step of a connection, and counts the connection if so.
func (ps points) meet(step string, port uint16) bool {
	for _, p := range ps {
		if p.step == step && p.port == port && (p.left == nil || p.left.Add(-1) >= 0) {
			return true
		}
	}
	return false
}

// At implements [faults.Injector].
func (k *knobs) At(step string, port uint16) (held bool) {
	if k.trace != nil {
		k.trace.at(step, port)
	}
	if k.panics.meet(step, port) {
		panic(fmt.Sprintf("%sPANIC at %s", prefix, step))
	}
	return k.hold.meet(step, port)
}

// Takeover implements [faults.Injector].
func (k *knobs) Takeover(step string) bool { return k.takeover == step }
