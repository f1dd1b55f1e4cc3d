package load

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime/pprof"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/lab/apps"
)

// Program is the name under which [App] is one of the programs of package apps.
// Its arguments are "serve ADDRESS" or "run JOB", the job as JSON.
const Program = "bench-load"

// Port is where a server listens for jobs; PlainPort is for the TCP and UDP of
// the jobs themselves, RawPort for the raw datagrams.
const (
	Port      = 7100
	PlainPort = 7101
	RawPort   = 7102
)

// Job is what a client does with a server.
type Job struct {
	Kind string `json:"kind"` // tcp, udp, raw, soft, rsocket-soft
	// Op is "stream" (in one direction as fast as it goes), "ping" (a message
	// and its echo, one at a time) or "rate" (a stream of small messages, each
	// posted or written alone), or "idle" (rsocket: Count connections that do
	// nothing).
	Op      string     `json:"op"`
	Server  netip.Addr `json:"server"`
	Local   netip.Addr `json:"local"`
	Size    int        `json:"size"`              // bytes of a message
	Depth   int        `json:"depth,omitempty"`   // soft: messages under way at most
	MTU     int        `json:"mtu,omitempty"`     // soft, raw: payload of a packet
	Verb    string     `json:"verb,omitempty"`    // soft: "write" (default) or "send"
	CC      string     `json:"cc,omitempty"`      // tcp: congestion control
	Seconds float64    `json:"seconds,omitempty"` // stream, rate
	Count   int        `json:"count,omitempty"`   // ping: round trips
	Polling float64    `json:"polling,omitempty"` // rsocket: microseconds; 0: the default
	// Profile is the beginning of the names of files for the CPU profiles of
	// both sides; none if empty.
	Profile string `json:"profile,omitempty"`
}

// Result is what came of a job.
type Result struct {
	Error    string   `json:"error,omitempty"`
	Bytes    int64    `json:"bytes"`    // that arrived
	Messages int64    `json:"messages"` // that arrived
	Seconds  float64  `json:"seconds"`
	CPU      float64  `json:"cpu"`    // seconds of both processes
	Median   float64  `json:"median"` // microseconds of a round trip
	P99      float64  `json:"p99"`
	Fastest  float64  `json:"fastest"`
	Rate     float64  `json:"rate"`              // round trips per second in the quickest run of 1000
	Memory   float64  `json:"memory,omitempty"`  // bytes of the client per idle connection
	Samples  []Sample `json:"samples,omitempty"` // of a stream
	Source   Counters `json:"source"`
	Sink     Counters `json:"sink"`
}

// Counters are what the soft devices counted during the job.
type Counters struct {
	TxPackets, TxCalls, TxErrors, RxPackets, RxCalls uint64
	Retransmits, Timeouts, SequenceNAKs, SentNAKs    uint64
}

// Sample is how much of a stream had arrived at a time of the machine's clock.
type Sample struct {
	At    int64 `json:"at"` // Unix time in milliseconds
	Bytes int64 `json:"bytes"`
}

// BitsPerSecond is the rate of a stream.
func (r *Result) BitsPerSecond() float64 { return float64(r.Bytes) * 8 / r.Seconds }

// CPUPerGB is the processor time of both sides for 10^9 bytes.
func (r *Result) CPUPerGB() float64 { return r.CPU / (float64(r.Bytes) / 1e9) }

// Within is the rate of a stream between two times, in bits per second.
func (r *Result) Within(from, to time.Time) float64 {
	return float64(r.bytesAt(to)-r.bytesAt(from)) * 8 / to.Sub(from).Seconds()
}

func (r *Result) bytesAt(t time.Time) int64 {
	var n int64
	for _, s := range r.Samples {
		if s.At > t.UnixMilli() {
			break
		}
		n = s.Bytes
	}
	return n
}

// App is the load program, for [apps.Init].
var App = apps.App{Name: Program, Run: func(args []string, _ func(apps.Event)) error {
	err := run(args)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return err
}}

var errUsage = errors.New("usage: serve ADDRESS | run JOB")

// run is the load program with these arguments.
func run(args []string) error {
	if len(args) != 2 {
		return errUsage
	}
	switch args[0] {
	case "serve":
		addr, err := netip.ParseAddr(args[1])
		if err != nil {
			return fmt.Errorf("%w: %w", errUsage, err)
		}
		return serve(addr)
	case "run":
		var j Job
		if err := json.Unmarshal([]byte(args[1]), &j); err != nil {
			return fmt.Errorf("%w: %w", errUsage, err)
		}
		r, err := runJob(&j)
		if err != nil {
			r.Error = err.Error()
		}
		return json.NewEncoder(os.Stdout).Encode(r)
	}
	return errUsage
}

// runJob is the client of one job.
func runJob(j *Job) (r Result, err error) {
	c, err := net.Dial("tcp", netip.AddrPortFrom(j.Server, Port).String())
	if err != nil {
		return r, fmt.Errorf("reach the server: %w", err)
	}
	defer func() { _ = c.Close() }()
	ctl := newControl(c)
	if err := ctl.send(j); err != nil {
		return r, err
	}
	clients := map[string]func(*Job, *control) (Result, error){
		"tcp": tcpClient, "udp": udpClient, "raw": rawClient, "soft": softClient,
		"rsocket-soft": rsocketClient,
	}
	client := clients[j.Kind]
	if client == nil {
		return r, fmt.Errorf("%w: kind %q", errUsage, j.Kind)
	}
	stop, err := profile(j, "source")
	if err != nil {
		return r, err
	}
	defer stop()
	return client(j, ctl)
}

// control is the connection over which the two sides agree on a job.
type control struct {
	in  *json.Decoder
	out *json.Encoder
}

func newControl(c net.Conn) *control {
	return &control{json.NewDecoder(c), json.NewEncoder(c)}
}

func (c *control) send(v any) error {
	if err := c.out.Encode(v); err != nil {
		return fmt.Errorf("tell the other side: %w", err)
	}
	return nil
}

func (c *control) receive(v any) error {
	if err := c.in.Decode(v); err != nil {
		return fmt.Errorf("hear from the other side: %w", err)
	}
	return nil
}

// report is the server's part of the result.
type report struct {
	Error    string
	Bytes    int64
	CPU      float64
	Samples  []Sample
	Counters Counters
}

// finish ends a job: the client says so and hears what the server has seen.
func finish(ctl *control, r *Result, cpu float64) error {
	r.CPU = cpuSeconds() - cpu
	if err := ctl.send("stop"); err != nil {
		return err
	}
	var rep report
	if err := ctl.receive(&rep); err != nil {
		return err
	}
	r.CPU += rep.CPU
	r.Sink = rep.Counters
	if rep.Bytes > 0 {
		r.Bytes = rep.Bytes
	}
	if rep.Samples != nil {
		r.Samples = rep.Samples
	}
	if rep.Error != "" {
		return fmt.Errorf("server: %s", rep.Error)
	}
	return nil
}

// cpuSeconds is the processor time that this process has used.
func cpuSeconds() float64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// profile records the CPU profile of this process if the job asks for it.
func profile(j *Job, side string) (stop func(), err error) {
	if j.Profile == "" {
		return func() {}, nil
	}
	f, err := os.Create(j.Profile + "." + side + ".pprof")
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("profile: %w", err)
	}
	return func() {
		pprof.StopCPUProfile()
		_ = f.Close()
	}, nil
}

// sampler collects samples at most every 20 ms.
type sampler struct {
	list []Sample
	next time.Time
}

func (s *sampler) add(now time.Time, bytes int64) {
	if now.Before(s.next) {
		return
	}
	s.next = now.Add(20 * time.Millisecond)
	s.list = append(s.list, Sample{now.UnixMilli(), bytes})
}

// quantiles returns minimum, median and 99th percentile in microseconds; it sorts.
func (r *Result) quantiles(trips []time.Duration) {
	if len(trips) == 0 {
		return
	}
	sortDurations(trips)
	r.Fastest = float64(trips[0].Nanoseconds()) / 1e3
	r.Median = float64(trips[len(trips)/2].Nanoseconds()) / 1e3
	r.P99 = float64(trips[len(trips)*99/100].Nanoseconds()) / 1e3
}
