package ebpf

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/lab/testnet"
	"github.com/smcgw/smcgw/packet"
)

// recorder collects events.
type recorder struct {
	mu     sync.Mutex
	events []Event
}

// record reads events until the test ends.
func record(t *testing.T, d *Datapath) *recorder {
	t.Helper()
	r := new(recorder)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = d.Events(ctx, func(e Event) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.events = append(r.events, e)
		})
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return r
}

// find returns the first matching event so far.
func (r *recorder) find(match func(Event) bool) (Event, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		if match(e) {
			return e, true
		}
	}
	return Event{}, false
}

// wait waits for a matching event.
func (r *recorder) wait(t *testing.T, timeout time.Duration, match func(Event) bool) Event {
	t.Helper()
	var e Event
	require.Eventually(t, func() (ok bool) {
		e, ok = r.find(match)
		return ok
	}, timeout, 5*time.Millisecond)
	return e
}

// replacedBy matches the end of a connection.
func replacedBy(t Tuple, isn uint32) func(Event) bool {
	return func(e Event) bool { return e.Kind == EventReplaced && e.Tuple == t && e.ISN == isn }
}

// nativeFor matches a native decision to a remote port.
func nativeFor(side Side, reason uint8) func(Event) bool {
	return func(e Event) bool { return e.Kind == EventNative && e.Side == side && e.Reason == reason }
}

// Events ends with its context and with the datapath.
func TestEventsEnd(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	h, other := newPair(t)
	h.ghosts(other)
	var d *Datapath
	var err error
	cfg := withLegs(t, Config{Devices: []string{"w0"}})
	h.do(func() { d, err = Open(cfg) })
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, d.Events(ctx, func(Event) {}), context.Canceled)
	ended := make(chan error, 1)
	inside, closing := make(chan struct{}), make(chan struct{})
	go func() {
		ended <- d.Events(context.Background(), func(Event) { // calls d while Close waits
			close(inside)
			<-closing
			time.Sleep(20 * time.Millisecond)
			_, _ = d.Counters()
		})
	}()
	_, err = h.begin(unix.AF_INET, addrPort(ghost4+":7777"))
	require.NoError(t, err)
	<-inside
	close(closing)
	require.NoError(t, d.Close())
	require.ErrorIs(t, <-ended, os.ErrClosed)
	require.NoError(t, d.Close())
	require.ErrorIs(t, d.Heartbeat(), os.ErrClosed)
}

// checksumOK verifies the TCP checksum of a raw IP packet.
func checksumOK(pkt []byte) bool {
	p, err := packet.ParseIP(pkt)
	return err == nil && p.Proto == packet.ProtoTCP && p.TransportSumOK()
}

func FuzzParseEvent(f *testing.F) {
	f.Add(make([]byte, binary.Size(smcgwEvent{})))
	f.Add([]byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := parseEvent(b)
		if err == nil {
			_ = e.Tuple.String()
			require.LessOrEqual(t, e.Rule, MaxRules)
		}
	})
}

func TestEventTruncated(t *testing.T) {
	for n := range binary.Size(smcgwEvent{}) {
		_, err := parseEvent(make([]byte, n))
		require.Error(t, err, n)
	}
}

func TestTupleKey(t *testing.T) {
	for _, v := range []Tuple{
		{addrPort("10.0.0.1:65535"), addrPort("10.0.0.2:1")},
		{addrPort("[fd00::1]:258"), addrPort("[fd00::2]:6379")},
	} {
		k, err := v.key()
		require.NoError(t, err)
		require.Equal(t, v, k.tuple())
	}
	mapped, err := Tuple{addrPort("[::ffff:10.0.0.1]:5"), addrPort("10.0.0.2:6")}.key()
	require.NoError(t, err)
	require.Equal(t, Tuple{addrPort("10.0.0.1:5"), addrPort("10.0.0.2:6")}, mapped.tuple())
	_, err = Tuple{addrPort("10.0.0.1:5"), addrPort("[fd00::1]:6")}.key()
	require.Error(t, err)
	_, err = Tuple{}.key()
	require.Error(t, err)
}

// The option is dropped wherever it is, and nothing else is; the checksum is made.
func TestBare(t *testing.T) {
	for lead := range 20 {
		nops := make([]byte, lead)
		for i := range nops {
			nops[i] = 1
		}
		s := segment{src: addrPort("[fd00::1]:1"), dst: addrPort("[fd00::2]:2"), options: pad(nops, timestamps(), smgw(roleOffer, 5))}
		pkt := s.bytes(t)
		pkt[packet.IPv6Len+16] ^= 0xff
		require.NoError(t, bare(pkt))
		got, ok := readSegment(pkt)
		require.True(t, ok)
		require.Equal(t, pad(nops, timestamps(), []byte{1, 1, 1, 1, 1, 1, 1, 1, 1, 1}), got.options)
		require.True(t, checksumOK(pkt))
		for n := range len(pkt) {
			require.ErrorIs(t, bare(pkt[:n]), os.ErrInvalid)
		}
	}
}

// The Go lists must follow the enumerations of maps.h.
func TestNamesMatchC(t *testing.T) {
	require.EqualValues(t, smcgwStatSTAT_SLOTS, len(statNames))
	require.Equal(t, "event_lost", statNames[smcgwStatSTAT_EVENT_LOST])
	require.Equal(t, "syn_returned", statNames[smcgwStatSTAT_SYN_RETURNED])
	require.Equal(t, "dead", StateDead.String())
	require.Equal(t, "state(77)", State(77).String())
	require.Equal(t, "server", SideServer.String())
}

// clockVariable makes the test binary a process that prints its clock.
const clockVariable = "SMCGW_CLOCK"

// TestClockInATimeNamespace: what a time namespace adds, or takes away, is not in the
// clock that the programs and the gateway share.
func TestClockInATimeNamespace(t *testing.T) {
	if os.Getenv(clockVariable) != "" {
		fmt.Println(Now())
		os.Exit(0)
	}
	testnet.Require(t, "root", "unshare")
	up := int64(Now() / 1e9)
	for _, offset := range []int64{0, 1_000_000, -up / 2} {
		cmd := exec.CommandContext(t.Context(), "unshare", "--time", "--monotonic", strconv.FormatInt(offset, 10),
			os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), clockVariable+"=1")
		before := Now()
		out, err := cmd.Output()
		require.NoError(t, err, "%s", out)
		line, _, _ := strings.Cut(string(out), "\n")
		at, err := strconv.ParseUint(line, 10, 64)
		require.NoError(t, err)
		require.GreaterOrEqual(t, at, before, "offset %d", offset)
		require.LessOrEqual(t, at, Now(), "offset %d", offset)
	}
}
