package memhost

import (
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/ebpf"
)

// recorded is one line of what the programs did: the hook's class of packet, state
// of the entry, liveness of the gateway; what became of the packet and of the entry,
// and what was counted.
type recorded struct {
	class, state, live    string
	where, after, counted string
}

// readRecord reads what package ebpf has recorded of the programs: the packets by class,
// of both families, and what became of them.
func readRecord(t *testing.T) (packets map[string][][]byte, cells []recorded) {
	t.Helper()
	text, err := os.ReadFile("../../ebpf/testdata/verdicts.txt")
	require.NoError(t, err)
	packets = map[string][][]byte{}
	for line := range strings.Lines(string(text)) {
		head, tail, _ := strings.Cut(strings.TrimSpace(line), ": ")
		f := strings.Fields(strings.TrimSuffix(head, ":"))
		if f[0] == "packet" {
			pkt, err := hex.DecodeString(f[2])
			require.NoError(t, err)
			packets[f[1]] = append(packets[f[1]], pkt)
			continue
		}
		result, counted, _ := strings.Cut(tail, ": ")
		where, after, _ := strings.Cut(result, ", ")
		cells = append(cells, recorded{class: f[1], state: f[2], live: f[3], where: where, after: after, counted: counted})
	}
	return packets, cells
}

// elsewhere are the cells that no packet of a host in memory gets to: nothing proves
// legs there, nothing sends ICMP, every leg is found, and no segment of a leg waits in a queue.
func (c recorded) elsewhere() bool {
	return c.state == "proof" || slices.Contains([]string{"OUT_ERROR", "IN_UNREACHABLE", "IN_ERROR", "LEG_QUEUED", "LEG_LOST", "LOOKUP", "APP_SEGMENT"}, c.class)
}

// stateNamed finds a state of the record.
func stateNamed(t *testing.T, name string) ebpf.State {
	t.Helper()
	for s := ebpf.StateNone; s <= ebpf.StateDead; s++ {
		if s.String() == name {
			return s
		}
	}
	t.Fatalf("state %s", name)
	return 0
}

// replay sends the packet of a cell through the model.
func (m *Model) replay(t *testing.T, c recorded, pkt []byte) recorded {
	t.Helper()
	hook, _, _ := strings.Cut(c.class, "_")
	dir := outbound
	if hook == "IN" || hook == "LEG" {
		dir = inbound
	}
	s, ok := parseSegment(append([]byte(nil), pkt...), dir)
	require.True(t, ok)
	tuple := s.tuple
	if c.class == "APP_PEER_SYN" {
		tuple = reverse(tuple)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counts = ebpf.Counters{Native: [2]map[uint8]uint64{{}, {}}, Stats: map[string]uint64{}}
	m.flows = map[ebpf.Tuple]*ebpf.Flow{}
	if state := stateNamed(t, c.state); state != ebpf.StateNone {
		f := &ebpf.Flow{Tuple: tuple, State: state, ISN: 1000, Nonce: 7, OfferedAt: m.now(), ChangedAt: m.now(), Rule: ebpf.NoRule}
		f.Confirmed = c.class == "IN_SYN_AGAIN"
		if slices.Contains([]string{"wire", "serving", "raw", "returned"}, c.state) && c.class != "OUT_SYN" {
			f.Side = ebpf.SideServer
		}
		m.flows[tuple] = f
	}
	m.beat = map[string]time.Duration{"alive": m.now(), "late": m.now() - 2*time.Second, "gone": 0}[c.live]
	var v verdict
	switch hook {
	case "OUT":
		v = m.wireEgress(&s)
	case "IN":
		v = m.wireIngress(&s)
	case "LEG":
		v = m.legIngress(&s)
	case "APP":
		v = m.appIngress(&s)
	case "NET":
		v = m.wireSide(&s)
	}
	got := c
	got.where = []string{"pass", "drop", "legs", "netstack", "wire", "host"}[v]
	got.after = stateOf(m.flows[tuple]).String()
	got.counted = m.counted()
	return got
}

// counted lists what was counted, as the record does.
func (m *Model) counted() string {
	var list []string
	for name := range m.counts.Stats {
		list = append(list, name)
	}
	for side := range m.counts.Native {
		for reason := range m.counts.Native[side] {
			list = append(list, fmt.Sprintf("native=%v/%d", ebpf.Side(side), reason))
		}
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// The model does with every class of packet, in every state and liveness, what the
// programs have done with the same packet.
func TestAsThePrograms(t *testing.T) {
	m := testModel(t, func(c *ebpf.Config) { c.HeartbeatTimeout = time.Second })
	m.start = m.start.Add(-time.Hour) // so that a beat can be old
	packets, cells := readRecord(t)
	n := 0
	for _, c := range cells {
		if c.where == "held" { // here the kernel is told in neither case
			c.where = "drop"
		}
		if c.elsewhere() {
			continue
		}
		require.Len(t, packets[c.class], 2, c.class)
		for _, pkt := range packets[c.class] {
			if got := m.replay(t, c, pkt); got != c {
				t.Errorf("%s, %s, %s: %s, %s: %s; the programs: %s, %s: %s", c.class, c.state, c.live, got.where, got.after, got.counted, c.where, c.after, c.counted)
			}
			n++
		}
	}
	require.Greater(t, n, 1000)
}
