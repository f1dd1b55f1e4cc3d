package world

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/inprocess/broker"
)

// socketVariable, if set, holds the socket of the broker that this process is to be.
const socketVariable = "SMCGW_WORLD_BROKER"

// Init serves as a broker and exits, if this process was started as one. Otherwise it returns.
func Init() {
	socket := os.Getenv(socketVariable)
	if socket == "" {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { // serve until the process that started this one is gone
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	l, err := broker.Listen(socket, 0o600)
	if err != nil {
		fmt.Fprintln(os.Stderr, "broker:", err)
		os.Exit(1)
	}
	b := broker.New(broker.Config{Thresholds: broker.Thresholds{Calls: 1}})
	go func() {
		for ; ; time.Sleep(20 * time.Millisecond) {
			fmt.Println(b.Counters().Promoted)
		}
	}()
	if b.Serve(ctx, l) != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// mortal is a world whose broker is a process that can be killed. promoted counts the connections of all its brokers.
type mortal struct {
	World
	promoted atomic.Uint64
}

// begin starts a broker and returns a function that kills it.
func (m *mortal) begin() (kill func() error, err error) {
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), socketVariable+"="+m.socket())
	c.Stderr = os.Stderr
	if _, err = c.StdinPipe(); err != nil { // closed by Wait, or with this process
		return nil, err
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.Start(); err != nil {
		return nil, err
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		last := uint64(0)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			n, _ := strconv.ParseUint(lines.Text(), 10, 64)
			m.promoted.Add(n - last)
			last = n
		}
	}()
	return func() error {
		err := c.Process.Kill()
		<-read
		_ = c.Wait() // killed
		return err
	}, nil
}

// Result counts what a random test has done.
type Result struct {
	Rounds, Bytes    uint64
	Crowd            uint64 // connections of programs that have many at once
	Kills, Inside    uint64 // ends that were killed; those killed at or near an instruction of the library
	Brokers, Toggles uint64 // brokers that were killed; how often the switch was thrown
	Promoted         uint64 // connections
	Refused          uint64 // descriptors that were not passed on, because received bytes were in two places
}

func (r *Result) add(o Result) {
	r.Rounds += o.Rounds
	r.Bytes += o.Bytes
	r.Crowd += o.Crowd
	r.Kills += o.Kills
	r.Inside += o.Inside
	r.Brokers += o.Brokers
	r.Toggles += o.Toggles
	r.Promoted += o.Promoted
	r.Refused += o.Refused
}

// String returns every number with its name, for a log.
func (r Result) String() string {
	return fmt.Sprintf("rounds=%d bytes=%d crowd=%d promoted=%d kills=%d at_instructions=%d brokers_killed=%d switched=%d refused=%d",
		r.Rounds, r.Bytes, r.Crowd, r.Promoted, r.Kills, r.Inside, r.Brokers, r.Toggles, r.Refused)
}

// errNative says that nothing was promoted, so that nothing was tested.
var errNative = errors.New("no connection was promoted")

// spare is how much longer than asked a run may take: rounds end by themselves, and stalls are found, also on a busy
// machine.
const spare = 5 * time.Minute

// lane is one sequence of a random test, with worlds of its own.
type lane struct {
	run     func(*Build, context.Context, *rand.Rand, func(*World) (Result, error)) (Result, error)
	how     string // of stress; empty: crowd
	seconds string
}

// Model runs random connections, as programs use them, for a time, and compares every byte with what was sent. Three
// sequences run side by side: in one the switch is thrown at random, in one the broker is killed, in one ends are
// killed at instructions of the library. The same seed draws the same programs; what meets what depends on the
// machine's timing.
func (b *Build) Model(ctx context.Context, seed uint64, length time.Duration) (Result, error) {
	return b.beside(ctx, seed, length, []lane{{(*Build).switched, "a+", "0.3"}, {(*Build).killed, "a+", "0.3"}, {(*Build).kept, "i", "0.1"}})
}

// Crowd is like Model, with programs that have many connections at once.
func (b *Build) Crowd(ctx context.Context, seed uint64, length time.Duration) (Result, error) {
	return b.beside(ctx, seed, length, []lane{{run: (*Build).switched}, {run: (*Build).killed}})
}

func (b *Build) beside(ctx context.Context, seed uint64, length time.Duration, lanes []lane) (Result, error) {
	var (
		all   sync.WaitGroup
		mu    sync.Mutex
		total Result
		errs  []error
	)
	ctx, cancel := context.WithTimeout(ctx, length+spare)
	defer cancel()
	for i, lane := range lanes {
		first := seed%1_000_000 + uint64(i)<<32 // each lane has rounds of its own
		all.Go(func() {
			var r Result
			err := errNative
			for try := 0; try < 3 && errors.Is(err, errNative); try++ { // a busy machine may have no time for a promotion
				var o Result
				o, err = lane.run(b, ctx, rand.New(rand.NewPCG(seed, uint64(i))), func(w *World) (Result, error) {
					if lane.how == "" {
						return b.crowds(ctx, w, first, length)
					}
					return b.rounds(ctx, w, lane.seconds, first, lane.how, 1<<30, length)
				})
				r.add(o)
				if err == nil && r.Promoted == 0 {
					err = errNative
				}
			}
			mu.Lock()
			defer mu.Unlock()
			total.add(r)
			if err != nil {
				errs = append(errs, fmt.Errorf("sequence %d: %w", i, err))
				cancel()
			}
		})
	}
	all.Wait()
	return total, errors.Join(errs...)
}

// roundsError is a round that failed.
type roundsError struct {
	command, said string
	err           error
}

func (e *roundsError) Error() string { return e.err.Error() + ": " + e.command + "\n" + e.said }
func (e *roundsError) Unwrap() error { return e.err }

func (b *Build) rounds(ctx context.Context, w *World, seconds string, seed uint64, how string, rounds int, length time.Duration) (r Result, err error) {
	args := []string{"??", "?", seconds, strconv.FormatUint(seed, 10), "?", how, strconv.Itoa(rounds), strconv.FormatFloat(length.Seconds(), 'f', 0, 64)}
	return r, b.random(ctx, w, "stress", args, "ok: rounds %d bytes %d kills %d at instructions %d refused %d", &r.Rounds, &r.Bytes, &r.Kills, &r.Inside, &r.Refused)
}

// crowds runs programs of many connections.
func (b *Build) crowds(ctx context.Context, w *World, seed uint64, length time.Duration) (r Result, err error) {
	args := []string{strconv.FormatUint(seed, 10), strconv.Itoa(1 << 30), strconv.FormatFloat(length.Seconds(), 'f', 0, 64)}
	return r, b.random(ctx, w, "crowd", args, "ok: rounds %d connections %d bytes %d", &r.Rounds, &r.Crowd, &r.Bytes)
}

// random runs a program and scans the results from its last line.
func (b *Build) random(ctx context.Context, w *World, program string, args []string, format string, results ...any) error {
	said, err := w.Run(ctx, nil, "nice", append([]string{"-n", "5", b.Program(program)}, args...)...)
	if err == nil {
		last := said[strings.LastIndex(strings.TrimSpace(said), "\n")+1:]
		_, err = fmt.Sscanf(last, format, results...)
	}
	if err != nil {
		return &roundsError{program + " " + strings.Join(args, " "), said, err}
	}
	return nil
}

// kept runs with a broker that is left alone.
func (b *Build) kept(_ context.Context, _ *rand.Rand, run func(*World) (Result, error)) (Result, error) {
	w, err := Open(b.Library(), broker.Config{Thresholds: broker.Thresholds{Calls: 1}})
	if err != nil {
		return Result{}, err
	}
	r, err := run(w)
	r.Promoted = w.Counters().Promoted
	return r, errors.Join(err, w.Close())
}

// switched runs with a broker whose switch is thrown at random.
func (b *Build) switched(ctx context.Context, rng *rand.Rand, run func(*World) (Result, error)) (Result, error) {
	w, err := Open(b.Library(), broker.Config{Thresholds: broker.Thresholds{Calls: 1, Spin: 20 * time.Microsecond}})
	if err != nil {
		return Result{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var toggles uint64
	var all sync.WaitGroup
	all.Go(func() { toggles = w.Toggle(ctx, rng, 200*time.Millisecond) })
	r, err := run(w)
	cancel()
	all.Wait()
	r.Promoted, r.Toggles = w.Counters().Promoted, toggles
	return r, errors.Join(err, w.Close())
}

// Toggle throws the broker's switch at random until ctx ends, and returns how often. It begins after the first
// promotion: programs that find the switch off at their start ask again only late. The switch is on for most at most,
// and off for a tenth of that at most.
func (w *World) Toggle(ctx context.Context, rng *rand.Rand, most time.Duration) (times uint64) {
	for w.Counters().Promoted == 0 && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	defer w.SetOff(false)
	for off := true; ; off = !off {
		d := time.Duration(rng.Int64N(int64(most)))
		if !off {
			d /= 10
		}
		select {
		case <-ctx.Done():
			return times
		case <-time.After(d):
			w.SetOff(off)
			times++
		}
	}
}

// killed runs with brokers that are killed and replaced.
func (b *Build) killed(ctx context.Context, rng *rand.Rand, run func(*World) (Result, error)) (r Result, err error) {
	dir, err := os.MkdirTemp("", "smcgw-in")
	if err != nil {
		return r, err
	}
	m := &mortal{World: World{dir: dir, library: b.Library()}}
	kill, err := m.begin()
	if err != nil {
		return r, errors.Join(err, os.RemoveAll(dir))
	}
	ctx, cancel := context.WithCancel(ctx)
	var kills uint64
	var wrong error
	var all sync.WaitGroup
	all.Go(func() {
		for {
			d := time.Duration(rng.Int64N(int64(3 * time.Second)))
			select {
			case <-ctx.Done():
				wrong = errors.Join(wrong, kill())
				return
			case <-time.After(d):
			}
			if wrong = errors.Join(wrong, kill()); wrong == nil {
				kill, wrong = m.begin()
			}
			if wrong != nil {
				return
			}
			kills++
		}
	})
	r, err = run(&m.World)
	cancel()
	all.Wait()
	r.Promoted, r.Brokers = m.promoted.Load(), kills
	return r, errors.Join(err, wrong, os.RemoveAll(dir))
}
