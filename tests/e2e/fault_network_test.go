package e2e

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/matrix"
	"github.com/smcgw/smcgw/lab/testnet"
	"github.com/smcgw/smcgw/packet"
)

// netCarrier is what carries, or would. The fault may hit only the wire leg (shm), carrier and wire leg (soft), or
// the wire leg that is also the carrier (relay).
type netCarrier string

const (
	byShm    netCarrier = "shm"
	bySoft   netCarrier = "soft"
	byRelay  netCarrier = "relay"
	byNative netCarrier = "native" // the client has a gateway, the server has not
	byNobody netCarrier = "none"   // no gateway at all: the reference for all others
)

// netMoment is when the fault strikes.
type netMoment string

const (
	before netMoment = "before"    // before the connections begin
	during netMoment = "handshake" // on and off while connections begin
	inBulk netMoment = "bulk"      // while both ends send
	inIdle netMoment = "idle"      // while neither side sends; then both do, before and after its end
)

// forgets is the silence after which the forgetful firewall forgets a connection: more than the second within which
// the wire legs of all but a few busy connections send something.
const forgets = 3 * time.Second

// netFault is what happens to the network between the hosts.
type netFault struct {
	name string
	box  testnet.Box
	// server, if not nil, is what happens to what the server sends instead.
	server  *testnet.Box
	mtu     int           // of the links; 0: 1500
	length  time.Duration // 0: 1 s
	long    bool          // a sample has at most one of these
	soft    bool          // concerns the carrier's datagrams: only for soft
	moments []netMoment   // empty: all
	// breaks tells whether TCP itself loses connections by it at a moment.
	breaks func(netMoment) bool
	// reasons with which connections may stay native or be relayed, besides anyReasons.
	reasons []string
	// first is the reason that the client's gateway must report at moment before.
	first string
	did   func(testnet.BoxStats) uint64 // counts what the box did
	// fails says that queue pairs fail by it, so that carried flows go on over the relay.
	fails bool
}

var noServerFault = &testnet.Box{}

func mtuOf(n int) int {
	if n == 0 {
		return 1500
	}
	return n
}

const wrongRoCE = "wrong RoCE"

var netFaults = []netFault{
	{name: "loss", box: testnet.Box{Loss: 20}, did: lost},
	{name: "loss of answers", server: &testnet.Box{Loss: 60}, did: lost},
	{name: "loss of requests", box: testnet.Box{Loss: 60}, server: noServerFault, did: lost},
	{name: "duplication", box: testnet.Box{Dup: 100}, did: func(s testnet.BoxStats) uint64 { return s.Duplicated }},
	{name: "reordering", box: testnet.Box{Reorder: 100, Delay: time.Millisecond}, did: func(s testnet.BoxStats) uint64 { return s.Reordered }},
	{name: "delay", box: testnet.Box{Delay: 100 * time.Millisecond}, did: hopped},
	{name: "jitter", box: testnet.Box{Delay: 5 * time.Millisecond, Jitter: 30 * time.Millisecond, Reorder: 20, Dup: 10, Loss: 5}, did: hopped},
	{name: "corrupt payload", box: testnet.Box{Corrupt: testnet.Corruption{Chance: 10}}, did: corrupted},
	{
		// A damaged handshake is reported for what it seems to say; the kernel drops it by its checksum.
		name: "corrupt headers", box: testnet.Box{Corrupt: testnet.Corruption{Chance: 20, Headers: true}}, did: corrupted,
		reasons: []string{"syn_options", "policy", "option_rejected"},
	},
	{name: "partition", box: testnet.Box{Blackhole: true}, length: 2 * time.Second, did: blackholed, reasons: []string{"option_blackholed", "client_gone"}},
	{name: "partition of 30 s", fails: true, box: testnet.Box{Blackhole: true}, length: 30 * time.Second, long: true, did: blackholed, moments: []netMoment{inBulk, inIdle}},
	{name: "deaf client", box: testnet.Box{}, server: &testnet.Box{Blackhole: true}, length: 2 * time.Second, did: blackholed, reasons: []string{"option_blackholed", "client_gone", "accept_lost"}},
	{name: "deaf client for 30 s", fails: true, server: &testnet.Box{Blackhole: true}, length: 30 * time.Second, long: true, did: blackholed, moments: []netMoment{inBulk, inIdle}},
	{name: "smaller MTU", fails: true, box: testnet.Box{PathMTU: testnet.PathMTU{Bytes: 1400}}, mtu: 4500, did: tooBig},
	{name: "smaller MTU in silence", fails: true, box: testnet.Box{PathMTU: testnet.PathMTU{Bytes: 1400, Silent: true}}, mtu: 4500, length: 3 * time.Second, did: tooBig},
	{name: "offer stripped", box: testnet.Box{StripSYN: true}, moments: []netMoment{before, during}, first: "peer_no_option", did: stripped},
	{name: "accept stripped", box: testnet.Box{StripSYNACK: true}, moments: []netMoment{before, during}, first: "peer_no_option", did: stripped},
	{name: "confirm stripped", box: testnet.Box{StripRest: true}, moments: []netMoment{before, during}, did: stripped},
	{name: "option mirrored", box: testnet.Box{Mirror: true}, reasons: []string{"option_mirrored"}, moments: []netMoment{before, during}, did: func(s testnet.BoxStats) uint64 { return s.Hopped }},
	{name: "offers dropped", length: 2500 * time.Millisecond, box: testnet.Box{EatOffers: true}, moments: []netMoment{before, during}, first: "option_blackholed", did: func(s testnet.BoxStats) uint64 { return s.Eaten }},
	{name: "accepts dropped", length: 2500 * time.Millisecond, box: testnet.Box{DropAccepts: true}, moments: []netMoment{before, during}, first: "option_blackholed", did: func(s testnet.BoxStats) uint64 { return s.DroppedAccepts }},
	{name: "sequence numbers", box: testnet.Box{Sequences: true}, moments: []netMoment{before, during}, did: shifted},
	{name: "sequence numbers and loss", box: testnet.Box{Sequences: true, Loss: 10}, moments: []netMoment{before, during}, did: shifted},
	{name: "SYN proxy", box: testnet.Box{Proxy: testnet.Proxy{On: true}}, moments: []netMoment{before, during}, first: "peer_no_option", did: proxied},
	// If the proxy disappears while it opens a connection, the server's kernel may already have the tuple.
	{name: "SYN proxy with offers", box: testnet.Box{Proxy: testnet.Proxy{On: true, Offers: true}}, moments: []netMoment{before, during}, first: "peer_no_option", reasons: []string{"syn_options", "app_unreachable"}, did: proxied},
	{name: "no timestamps", box: testnet.Box{Options: testnet.Options{StripSYN: []byte{packet.KindTimestamps}}}, moments: []netMoment{before, during}, first: "peer_no_option", reasons: []string{"syn_options"}, did: options},
	{name: "no timestamps in answers", box: testnet.Box{Options: testnet.Options{StripSYNACK: []byte{packet.KindTimestamps}}}, moments: []netMoment{before, during}, did: options},
	{name: "no window scale", box: testnet.Box{Options: testnet.Options{StripSYN: []byte{packet.KindWindowScale}}}, moments: []netMoment{before, during}, did: options},
	{name: "no SACK, and loss", box: testnet.Box{Loss: 10, Options: testnet.Options{StripSYN: []byte{packet.KindSACKPermitted}}}, moments: []netMoment{before, during}, did: options},
	{name: "options turned", box: testnet.Box{Options: testnet.Options{Turn: true}}, did: options},
	{name: "segments cut", box: testnet.Box{Split: true}, did: hopped},
	{name: "segments cut and joined", box: testnet.Box{Split: true, Join: true}, did: hopped},
	{
		name: "forgetful firewall", box: testnet.Box{Firewall: testnet.Firewall{Idle: forgets, Resets: 300 * time.Millisecond}},
		length: 3 * forgets, did: hopped, moments: []netMoment{before, inIdle},
		breaks: func(m netMoment) bool { return m == inIdle },
	},
	{name: "no RoCE", fails: true, box: testnet.Box{UDP: testnet.Datagrams{Port: rdmaPort, Loss: 1000}}, soft: true, length: 5 * time.Second, did: lost},
	{name: "no RoCE to the server", fails: true, box: testnet.Box{UDP: testnet.Datagrams{Port: rdmaPort, Loss: 1000}}, server: noServerFault, soft: true, length: 5 * time.Second, did: lost},
	{name: "no RoCE to the client", fails: true, server: &testnet.Box{UDP: testnet.Datagrams{Port: rdmaPort, Loss: 1000}}, soft: true, length: 5 * time.Second, did: lost},
	{name: "no RoCE for a moment", box: testnet.Box{UDP: testnet.Datagrams{Port: rdmaPort, Loss: 1000}}, soft: true, did: lost},
	{name: "no large RoCE", fails: true, box: testnet.Box{UDP: testnet.Datagrams{Port: rdmaPort, Larger: 300}}, soft: true, length: 5 * time.Second, did: func(s testnet.BoxStats) uint64 { return s.Larger }},
	{name: "little RoCE", box: testnet.Box{UDP: testnet.Datagrams{Port: rdmaPort, Rate: 1000}}, soft: true, did: func(s testnet.BoxStats) uint64 { return s.TooFast }},
	{name: "lossy RoCE", box: testnet.Box{UDP: testnet.Datagrams{Port: rdmaPort, Loss: 30, Dup: 20, Reorder: 50}}, soft: true, did: lost},
	{
		name: wrongRoCE, box: testnet.Box{Corrupt: testnet.Corruption{Chance: 20, Mend: true, UDPPort: rdmaPort}}, soft: true, did: corrupted,
	},
}

func lost(s testnet.BoxStats) uint64       { return s.Lost }
func hopped(s testnet.BoxStats) uint64     { return s.Hopped }
func corrupted(s testnet.BoxStats) uint64  { return s.Corrupted }
func blackholed(s testnet.BoxStats) uint64 { return s.Blackholed }
func tooBig(s testnet.BoxStats) uint64     { return s.TooBig }
func stripped(s testnet.BoxStats) uint64   { return s.Stripped }
func shifted(s testnet.BoxStats) uint64    { return s.Shifted }
func proxied(s testnet.BoxStats) uint64    { return s.Proxied }
func options(s testnet.BoxStats) uint64    { return s.Options }

// anyReasons are reasons that a connection may have under every fault: it was not carried, or not as intended, and
// works. On a busy machine an application may answer after the budget is used up.
var anyReasons = []string{"", "app_reset", "app_unreachable", "handshake_timeout", "carrier_unreachable", "option_blackholed", "offer_unanswered", "client_gone", "peer_no_option", "accept_lost", "wire_reset", "gateway_stale"}

// netCell is one cell of the matrix. Each has connections of both families.
type netCell struct {
	fault netFault
	by    netCarrier
	when  netMoment
}

func (c netCell) String() string { return fmt.Sprintf("%s/%s/%s", c.fault.name, c.by, c.when) }

// survives tells whether TCP survives the cell.
func (c netCell) survives() bool { return c.fault.breaks == nil || !c.fault.breaks(c.when) }

// netCells returns the cells of the matrix, and separately those that take long.
func netCells() (cells, long []netCell) {
	for _, f := range netFaults {
		for _, by := range []netCarrier{byShm, bySoft, byRelay, byNative, byNobody} {
			for _, when := range []netMoment{before, during, inBulk, inIdle} {
				c := netCell{f, by, when}
				switch {
				case f.soft && by != bySoft, len(f.moments) > 0 && !slices.Contains(f.moments, when):
				case f.long:
					long = append(long, c)
				default:
					cells = append(cells, c)
				}
			}
		}
	}
	return cells, long
}

// netSample is how many cells a run draws; long ones run only in the whole matrix.
const netSample = 8

// TestFaultNetwork checks that, whatever the network does, wherever and whenever, every connection gets its bytes if
// it would by TCP alone, and that new connections are carried again when it is over.
func TestFaultNetwork(t *testing.T) {
	t.Parallel()
	total := newTally(t)
	cells, long := netCells()
	if matrix.Whole() {
		cells = append(cells, long...)
	} else { // what TCP survives has been measured before
		cells = slices.DeleteFunc(cells, func(c netCell) bool { return c.by == byNobody })
	}
	drawn := matrix.Cells(t, cells, netSample)
	rng := matrix.Rand(t)
	for _, c := range drawn {
		seed := rng.Uint64()
		t.Run(c.String(), func(t *testing.T) {
			if c.fault.long { // it mostly waits
				t.Parallel()
			}
			c.run(t, total, rand.New(rand.NewPCG(seed, 1)))
		})
	}
}

// netWorld is the world of one cell.
type netWorld struct {
	*world
	cell   netCell
	server *testnet.Host
	g1, g2 *gw
	x      *talks
	tally  *tally
	rng    *rand.Rand
}

// faultPort is the port of the service in these tests.
const faultPort = echoPort

func (c netCell) run(t *testing.T, total *tally, rng *rand.Rand) {
	n := &netWorld{
		world: newWorld(t, testnet.Config{NoOffload: true, MTU: mtuOf(c.fault.mtu)}), cell: c, tally: total, rng: rng,
	}
	n.server = n.h2
	n.ups()
	n.x = newTalks(t, n.h1, n.server, faultPort, rng)
	n.set(t, false)
	start, err := n.net.BoxStats()
	require.NoError(t, err)
	switch c.when {
	case before:
		n.beforeIt(t)
	case during:
		n.duringIt(t)
	case inBulk:
		n.inBulk(t)
	case inIdle:
		n.inIdle(t)
	}
	errs := n.x.over(total)
	stats, err := n.net.BoxStats()
	require.NoError(t, err)
	total.faults(int64(c.fault.did(stats) - c.fault.did(start)))
	n.judge(t, errs)
	n.recovers(t)
}

// ups starts the gateways of the cell.
func (n *netWorld) ups() {
	s := settings{Handshake: quick, NegativeCache: "10m", Carriers: "soft"}
	switch n.cell.by {
	case byNobody:
		n.server = n.h3
		return
	case byNative:
		n.server = n.h3
		n.g1 = n.up(n.h1, s)
		return
	case byShm:
		s.Carriers = "shm"
	case bySoft, byRelay:
	}
	n.g1, n.g2 = n.up(n.h1, s), n.up(n.h2, s)
}

// carrier returns what carries if nothing is wrong.
func (n *netWorld) carrier() report.Carrier {
	switch n.cell.by {
	case byShm:
		return report.CarrierShm
	case bySoft:
		return report.CarrierSoft
	case byRelay:
		return report.CarrierRelay
	case byNative, byNobody:
	}
	return report.CarrierNone
}

// set begins or ends the fault.
func (n *netWorld) set(t *testing.T, on bool) {
	t.Helper()
	client, server := testnet.Box{Watch: true}, testnet.Box{Watch: true}
	if on {
		client, server = n.cell.fault.box, n.cell.fault.box
		if n.cell.fault.server != nil {
			server = *n.cell.fault.server
		}
		client.Watch, server.Watch = true, true
		client.Firewall.Since, server.Firewall.Since = time.Now(), time.Now()
	}
	if n.cell.by == byRelay { // RoCE packets never get through
		client.UDP = testnet.Datagrams{Port: rdmaPort, Loss: 1000}
		server.UDP = client.UDP
	}
	client.UDP.Seed, server.UDP.Seed = n.rng.Uint64(), n.rng.Uint64()
	require.NoError(t, n.h1.SetBox(client))
	require.NoError(t, n.server.SetBox(server))
}

func (n *netWorld) length() time.Duration {
	if n.cell.fault.length > 0 {
		return n.cell.fault.length
	}
	return time.Second
}

// open begins connections of both families. If the relay must carry, it first makes the gateways forget what cannot
// be reached.
func (n *netWorld) open(t *testing.T, each int, limit int64) {
	t.Helper()
	for i := range 2 * each {
		if n.cell.by == byRelay {
			n.flush()
		}
		one := n.x.begin(i%2 == 1, limit)
		if n.cell.by == byRelay {
			for end := time.Now().Add(time.Second); one.bytes() == 0 && time.Now().Before(end); {
				time.Sleep(2 * time.Millisecond)
			}
		}
	}
}

const someBytes = 100_000

func (n *netWorld) beforeIt(t *testing.T) {
	n.set(t, true)
	n.open(t, 2, 0)
	time.Sleep(n.length())
	n.set(t, false)
	n.x.move(t, someBytes)
}

// duringIt switches the fault on and off while short connections begin.
func (n *netWorld) duringIt(t *testing.T) {
	on := false
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		if n.rng.IntN(3) == 0 {
			on = !on
			n.set(t, on)
		}
		if len(n.x.list()) < 60 {
			n.x.begin(n.rng.IntN(2) == 1, 1+n.rng.Int64N(40_000))
		}
		if n.rng.IntN(4) == 0 && n.g1 != nil {
			n.flush()
		}
		time.Sleep(time.Duration(n.rng.IntN(20)) * time.Millisecond)
	}
	n.set(t, false)
	for _, one := range n.x.list() {
		<-one.done
	}
}

func (n *netWorld) inBulk(t *testing.T) {
	n.openCarried(t)
	n.set(t, true)
	time.Sleep(n.length())
	n.set(t, false)
	n.x.move(t, someBytes)
}

func (n *netWorld) inIdle(t *testing.T) {
	n.openCarried(t)
	n.x.quiet.Store(true)
	time.Sleep(50 * time.Millisecond) // let what is under way arrive
	n.set(t, true)
	time.Sleep(n.length() * 3 / 4)
	n.x.quiet.Store(false)
	time.Sleep(n.length() / 4)
	n.set(t, false)
	n.x.move(t, someBytes)
}

// openCarried begins connections until as many are carried as the cell needs: on a busy machine some are native.
func (n *netWorld) openCarried(t *testing.T) {
	t.Helper()
	n.open(t, 2, 0)
	n.x.move(t, someBytes)
	if n.g2 == nil {
		return
	}
	for tries := 0; ; tries++ {
		carried := map[bool]int{}
		for _, c := range n.x.told(n.g1) {
			if c.Carrier == n.carrier() && c.State == "carrying" {
				carried[c.Local.Addr().Is6()]++
			}
		}
		if carried[false] >= 2 && carried[true] >= 2 {
			return
		}
		require.Less(t, tries, 10, "carried: %v\n%s", carried, n.g1.dump())
		n.flush() // forget what the native ones have left
		n.open(t, 1, 0)
		n.x.move(t, someBytes)
	}
}

// judge compares what the applications and the gateways report with what may happen.
func (n *netWorld) judge(t *testing.T, errs []error) {
	t.Helper()
	if n.cell.survives() {
		require.Empty(t, errs, "TCP loses none")
	} else if n.cell.by == byNobody {
		require.NotEmpty(t, errs, "TCP loses some: the fault is what it says")
	}
	if n.cell.fault.name == wrongRoCE && n.cell.when == inBulk {
		dropped := uint64(0)
		for _, g := range n.gateways {
			for _, d := range g.devices() {
				dropped += d.Counters["drop_icrc"]
			}
		}
		require.Positive(t, dropped, "the ICRC finds what the UDP checksum does not")
	}
	reasons := map[string]int{}
	for _, g := range n.gateways {
		for _, c := range n.x.told(g) {
			reasons[fmt.Sprintf("%s %s %s %s %s", g.h.Name, c.Carrier, c.End, c.Reason, c.Demoted)]++
			if n.cell.survives() {
				require.Contains(t, append(n.cell.fault.reasons, anyReasons...), c.Reason, "%s: %+v", g.h.Name, c)
			}
		}
	}
	if n.cell.fault.fails && n.cell.by == bySoft && n.cell.when == inBulk {
		require.True(t, slices.ContainsFunc(n.x.told(n.g1), func(c report.ConnInfo) bool { return c.Demoted != "" }), "%v", reasons)
	}
	t.Logf("%d connections, %d accepted in vain, errors %v: %v", len(n.x.list()), n.x.givenBack.Load(), errs, reasons)
	if first := n.cell.fault.first; first != "" && n.cell.when == before && n.g2 != nil {
		require.True(t, slices.ContainsFunc(n.x.told(n.g1), func(c report.ConnInfo) bool { return c.Reason == first }), "%s: %v", first, reasons)
	}
}

// recovers checks that new connections are carried as before. It flushes what the kernels have learned of the path,
// which they would keep for ten minutes.
func (n *netWorld) recovers(t *testing.T) {
	t.Helper()
	for _, h := range []*testnet.Host{n.h1, n.h2} {
		for _, family := range []string{"-4", "-6"} {
			out, err := h.Run(t.Context(), "ip", family, "route", "flush", "cache")
			require.NoError(t, err, out)
		}
	}
	if n.g2 == nil {
		return
	}
	for _, v6 := range []bool{false, true} {
		var c report.ConnInfo
		require.Eventually(t, func() bool {
			n.flush()
			one := n.x.begin(v6, 1000)
			<-one.done
			require.NoError(t, one.err)
			for _, c = range n.g1.everything(func(c report.ConnInfo) bool { return c.Local == *one.local.Load() }) {
				if c.Carrier == n.carrier() {
					return true
				}
			}
			return false
		}, 30*time.Second, 50*time.Millisecond, "not carried any more: %+v", c)
	}
}
