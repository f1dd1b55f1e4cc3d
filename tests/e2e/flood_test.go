package e2e

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/procfs"
	"github.com/smcgw/smcgw/lab/matrix"
	"github.com/smcgw/smcgw/lab/testnet"
)

// floodRate is how many packets a second an attacker sends.
const floodRate = 20_000

// floodSlack is how much longer a connect() may take than natively beside the same flood, or than through the gateway
// without a flood.
const floodSlack = 50 * time.Millisecond

// floodTurn is how long a flood lasts. The hosts with and without gateway alternate, with and without a flood, so
// that whatever else the machine does affects all of them.
const floodTurn = 2 * time.Second

func floodTurns() int {
	if matrix.Whole() {
		return 30
	}
	return 3
}

// floodTries is how often the turns are taken again if connections were too slow: a machine that did something else in
// one of them proves nothing.
const floodTries = 2

// floodBurst is how long an attacker may be late and still send what is due. What a busy machine has kept it from for
// longer would be more than floodRate at once.
const floodBurst = 10 * time.Millisecond

// attacker sends packets of one kind at floodRate.
type attacker struct {
	rng  *rand.Rand
	fd   int
	w    *world
	stop atomic.Bool
	sent atomic.Int64
	all  sync.WaitGroup
}

// attack sends from h3 until it is stopped.
func (w *world) attack(t *testing.T, rng *rand.Rand, next func(*attacker) []byte) *attacker {
	t.Helper()
	a := &attacker{rng: rng, w: w, fd: rawSocket(t, w.h3)}
	a.all.Go(func() {
		for last := time.Now(); !a.stop.Load(); time.Sleep(time.Millisecond) {
			now := time.Now()
			for range int(min(now.Sub(last), floodBurst).Seconds() * floodRate) {
				_ = unix.Sendto(a.fd, next(a), 0, &unix.SockaddrInet4{Addr: w.h2.Addr4.As4()})
				a.sent.Add(1)
			}
			last = now
		}
	})
	t.Cleanup(func() { a.end() })
	return a
}

func (a *attacker) end() int64 {
	a.stop.Store(true)
	a.all.Wait()
	return a.sent.Load()
}

// honest is what clients of h1 saw: how long connect() took, and how long an answer on a connection that existed
// before.
type honest struct {
	connects []time.Duration // sorted
	slow     []time.Duration // of each turn, the time that only one in a hundred exceeds; sorted
	worst    time.Duration   // of the answers
}

// add adds the results of another turn.
func (h *honest) add(turn honest) {
	h.connects, h.slow = append(h.connects, turn.connects...), append(h.slow, turn.at(99))
	slices.Sort(h.connects)
	slices.Sort(h.slow)
	h.worst = max(h.worst, turn.worst)
}

// usual returns the median over the turns of the slowest of a hundred.
func (h honest) usual() time.Duration { return h.slow[len(h.slow)/2] }

func (h honest) at(percent int) time.Duration { return h.connects[(len(h.connects)-1)*percent/100] }

// slower tells whether connections took longer than they may beside these.
func (h honest) slower(want, quiet honest) bool {
	return h.usual() >= max(want.usual(), quiet.usual())+floodSlack || h.worst >= max(want.worst, quiet.worst)+time.Second
}

func (h honest) String() string {
	return fmt.Sprintf("%d connects: median %v, p99 %v, of a turn %v, max %v; answers: max %v",
		len(h.connects), h.at(50), h.at(99), h.slow, h.at(100), h.worst)
}

// use makes one connection after another for a while, and asks on another one all the time.
func (w *world) use(t *testing.T, long net.Conn, d time.Duration) (h honest) {
	t.Helper()
	end := time.Now().Add(d)
	var asking sync.WaitGroup
	asking.Go(func() {
		for time.Now().Before(end) {
			began := time.Now()
			if !answered(long) {
				t.Error("the connection that was there is no more")
				return
			}
			h.worst = max(h.worst, time.Since(began))
			time.Sleep(time.Millisecond)
		}
	})
	for time.Now().Before(end) {
		began := time.Now()
		c := w.dialFrom(t, w.h1)
		h.connects = append(h.connects, time.Since(began))
		require.True(t, answered(c), "a connection that came up")
		require.NoError(t, c.Close())
		time.Sleep(5 * time.Millisecond)
	}
	asking.Wait()
	slices.Sort(h.connects)
	return h
}

// dialFrom connects to the echo server of h2.
func (w *world) dialFrom(t *testing.T, from *testnet.Host) (c net.Conn) {
	t.Helper()
	require.NoError(t, from.Do(func() (err error) {
		d := net.Dialer{Timeout: 30 * time.Second}
		d.SetMultipathTCP(false)
		c, err = d.Dial("tcp4", w.h2.AddrPort4(echoPort).String())
		return err
	}))
	return c
}

// answered tells whether an echo server answers.
func answered(c net.Conn) bool {
	const text = "what goes in comes out"
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := c.Write([]byte(text)); err != nil {
		return false
	}
	got := make([]byte, len(text))
	for n := 0; n < len(got); {
		m, err := c.Read(got[n:])
		if err != nil {
			return false
		}
		n += m
	}
	return string(got) == text
}

// resident returns the resident memory of a process, in KiB.
func resident(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	n, ok := procfs.Bytes(string(b), "VmRSS")
	require.True(t, ok, "%s", b)
	return int(n >> 10)
}

// levelTurns bounds how often honest clients use a gateway until its memory is level.
const levelTurns = 10

// level has honest clients, who make a gateway hold memory, too, use it until they make no difference, and returns its
// resident memory.
func (w *world) level(t *testing.T, long net.Conn, pid int) (kib int) {
	t.Helper()
	for range levelTurns {
		last := kib
		w.use(t, long, floodTurn)
		if kib = resident(t, pid); kib < last+1<<10 {
			break
		}
	}
	return kib
}

// floodWorld is a world in which the server's host has a route to the attacker's addresses.
func floodWorld(t *testing.T) *world {
	t.Helper()
	w := newServed(t)
	_, err := w.h2.Run(t.Context(), "ip", "route", "add", "10.78.0.0/16", "via", w.h3.Addr4.String())
	require.NoError(t, err)
	return w
}

// answeredOffers is the metric of the offers that the programs answer.
const answeredOffers = `smcgw_datapath_events_total{event="answered"}`

// TestFlood checks that packets with forged addresses cost the users of a host no more than natively, and that a
// gateway holds nothing for them.
func TestFlood(t *testing.T) {
	plain, w := floodWorld(t), floodWorld(t)
	s := settings{
		Peers: `10.77.0.0/16, 10.78.0.0/16, "fd77::/16"`, Handshake: quick, NegativeCache: "1s",
		Policy: udpRule("10.77.0.0/16, 10.78.0.0/16"),
	}
	w.up(w.h1, s)
	g := w.up(w.h2, s)
	done := w.watchLeaks(t)
	pid, long, native := g.daemon(), w.dialFrom(t, w.h1), plain.dialFrom(t, plain.h1)
	require.True(t, answered(long) && answered(native))
	for _, f := range matrix.Cells(t, floods, 1) {
		t.Run(f.name, func(t *testing.T) {
			rng := matrix.Rand(t)
			before := w.level(t, long, pid)
			counted := g.metrics(t)
			var all int64
			var legs float64
			turns := func() (want, quiet, got honest) {
				var control, sent, replied int64
				for range floodTurns() {
					a := plain.attack(t, rng, f.next)
					want.add(plain.use(t, native, floodTurn))
					control += a.end()
					quiet.add(w.use(t, long, floodTurn))
					a = w.attack(t, rng, f.next)
					replies := func() int64 { return 0 }
					if f.answers {
						replies = a.reply(t)
					}
					got.add(w.use(t, long, floodTurn))
					legs = max(legs, g.metrics(t)[`smcgw_wire_legs{state="open"}`])
					sent, replied = sent+a.end(), replied+replies()
				}
				t.Logf("natively, %d packets: %v", control, want)
				t.Logf("gateway, no packets: %v", quiet)
				t.Logf("gateway, %d packets, %d replies: %v", sent, replied, got)
				all += sent
				return want, quiet, got
			}
			want, quiet, got := turns()
			for try := 0; try < floodTries && got.slower(want, quiet); try++ {
				want, quiet, got = turns()
			}
			now := g.metrics(t)
			answers := now[answeredOffers] - counted[answeredOffers]
			t.Logf("resident: %d KiB before, %d KiB after; %.0f of %d packets answered, at most %.0f wire legs at the times we looked; %v",
				before, resident(t, pid), answers, all, legs, floodCounters(now))
			require.Less(t, got.usual(), max(want.usual(), quiet.usual())+floodSlack)
			require.Less(t, got.worst, max(want.worst, quiet.worst)+time.Second)
			require.Equal(t, pid, g.daemon(), "it lives")
			require.Less(t, resident(t, pid), before+32<<10)
			if f.offers {
				require.Greater(t, answers, float64(all)/2, "it hit the programs: %v", g.counters(t))
			}
			if !f.answers {
				require.LessOrEqual(t, legs, 64.0, "nobody proves anything but who is honest")
			}
		})
	}
	w.carriedSoon(t, w.h2.AddrPort4(echoPort).String(), slowed(40*time.Second)) // what it remembers of a flood lasts a second
	require.NoError(t, long.Close())
	done()
}

// floodCounters returns the counters that a flood moves.
func floodCounters(m map[string]float64) (list []string) {
	for name, v := range m {
		if v != 0 && (strings.Contains(name, "rate_limit") || strings.Contains(name, "answered") ||
			strings.Contains(name, "served") || strings.Contains(name, "shed")) {
			list = append(list, fmt.Sprintf("%s %.0f", name, v))
		}
	}
	slices.Sort(list)
	return list
}
