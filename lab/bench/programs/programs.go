package programs

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/smcgw/smcgw/lab/apps"
)

// Result is what a client prints.
type Result struct {
	// Operations is how many were done, in Seconds.
	Operations int     `json:"operations"`
	Seconds    float64 `json:"seconds"`
	// Bytes is what arrived.
	Bytes int64 `json:"bytes,omitempty"`
	// Median and P99 are of single operations, in microseconds.
	Median float64 `json:"median,omitempty"`
	P99    float64 `json:"p99,omitempty"`
}

// Names of the programs.
const (
	// Connect measures connect(2).
	Connect = "bench-connect"
	// Rate makes connections, one request on each.
	Rate = "bench-rate"
	// Write writes pieces of one size as fast as they go.
	Write = "bench-write"
	// Splice forwards connections, as a proxy in Go does.
	Splice = "bench-splice"
	// Serve answers requests and swallows streams.
	Serve = "bench-serve"
	// Idle opens connections and keeps them until its input ends.
	Idle = "bench-idle"
	// Pinned becomes another program, on one processor.
	Pinned = "bench-pinned"
)

// Apps lists the programs.
func Apps() []apps.App {
	app := func(name string, run func(args []string) error) apps.App {
		return apps.App{Name: name, Run: func(args []string, _ func(apps.Event)) error {
			err := run(args)
			if err != nil {
				fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
			}
			return err
		}}
	}
	return []apps.App{
		app(Connect, client(connects)), app(Rate, client(rate)), app(Write, client(writes)),
		app(Idle, client(idle)), app(Splice, splice), app(Serve, serve), app(Pinned, pinned),
	}
}

// job is what a client is asked for.
type job struct {
	to       netip.AddrPort
	seconds  float64
	count    int
	parallel int
	size     int
	gap      time.Duration
}

func (j *job) duration() time.Duration { return time.Duration(j.seconds * float64(time.Second)) }

// client is a program that prints a result.
func client(run func(*job) (Result, error)) func(args []string) error {
	return func(args []string) error {
		j, err := parse(args)
		if err != nil {
			return err
		}
		r, err := run(j)
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(r)
	}
}

func parse(args []string) (*job, error) {
	j := &job{}
	var to string
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.StringVar(&to, "to", "", "address and port of the server")
	fs.Float64Var(&j.seconds, "seconds", 1, "how long")
	fs.IntVar(&j.count, "count", 0, "connections; of each of those at a time, where they are also limited by -seconds")
	fs.IntVar(&j.parallel, "parallel", 1, "connections at a time")
	fs.IntVar(&j.size, "size", 64, "bytes of a write")
	fs.DurationVar(&j.gap, "gap", 0, "pause between connections")
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	ap, err := netip.ParseAddrPort(to)
	if err != nil {
		return nil, fmt.Errorf("-to: %w", err)
	}
	j.to = netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	if !j.to.Addr().Is4() {
		return nil, fmt.Errorf("-to: %s is not an IPv4 address", j.to)
	}
	if j.count < 0 || j.parallel < 1 || j.size < 1 || j.seconds <= 0 {
		return nil, fmt.Errorf("-parallel, -size and -seconds must be positive, and -count not negative")
	}
	return j, nil
}
