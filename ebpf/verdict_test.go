package ebpf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	bpf "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const (
	cellISN   = 1000
	cellNonce = 7
	cellMark  = 0x77
	// cellTime is CHALLENGE_NS of ingress.h: what follows on a release that is older passes.
	cellTime = 500_000_000
)

// cellValue is flow_value of flow.h.
func cellValue[T int | uint32](v T) uint64 { return cellISN<<32 | uint64(v) }

// cellAddrs are a family's addresses. Bytes 12 and 13 of a packet from one of them
// are the EtherType of its family: BPF_PROG_TEST_RUN takes them for it, where a program
// of a device without link header sees the packet itself.
var cellAddrs = [][2]netip.AddrPort{
	{netip.MustParseAddrPort("8.0.0.1:5000"), netip.MustParseAddrPort("8.0.0.2:7000")},
	{netip.MustParseAddrPort("[fd77:0:86dd::1]:5000"), netip.MustParseAddrPort("[fd77:0:86dd::2]:7000")},
}

// cellPacket is a packet of a class, without a link header, as it follows on an entry of
// ISN cellISN and nonce cellNonce.
func cellPacket(t *testing.T, class string, local, remote netip.AddrPort) []byte {
	t.Helper()
	out := func(flags uint8, seq uint32, opts ...[]byte) []byte {
		return segment{src: local, dst: remote, flags: flags, seq: seq, ack: 501, options: pad(opts...)}.bytes(t)
	}
	in := func(flags uint8, seq, ack uint32, opts ...[]byte) []byte {
		return segment{src: remote, dst: local, flags: flags, seq: seq, ack: ack, options: pad(opts...)}.bytes(t)
	}
	switch class {
	case "OUT_OFFER":
		return out(flagSYN, cellISN, timestamps(), smgw(roleOffer, cellNonce+2))
	case "OUT_SYN", "APP_SYN", "NET_SYN":
		return out(flagSYN, cellISN, timestamps())
	case "OUT_OTHER_SYN":
		return out(flagSYN, 2*cellISN, timestamps())
	case "OUT_SEGMENT", "APP_SEGMENT", "NET_SEGMENT":
		return out(flagACK, cellISN+1)
	case "NET_RESET":
		return out(flagRST|flagACK, cellISN+1)
	case "OUT_ERROR":
		return quotedError(local.Addr(), remote.Addr(), true, in(flagACK, 501, cellISN+1))
	case "IN_SYN", "APP_PEER_SYN", "LOOKUP":
		return in(flagSYN, 500, 0, timestamps())
	case "IN_SYN_AGAIN":
		return in(flagSYN, cellISN, 0, timestamps())
	case "IN_ACCEPT":
		return in(flagSYN|flagACK, 500, cellISN+1, smgw(roleAccept, cellNonce))
	case "IN_ANSWER", "LEG_QUEUED":
		return in(flagSYN|flagACK, 500, cellISN+1, timestamps())
	case "IN_RESET":
		return in(flagRST|flagACK, 0, cellISN+1)
	case "IN_STRAY":
		return in(flagSYN|flagACK, 500, 77, smgw(roleAccept, cellNonce))
	case "IN_ACK", "LEG_SEGMENT":
		return in(flagACK, 501, cellISN+1)
	case "IN_SEGMENT":
		return in(flagFIN|flagACK, 501, cellISN+1)
	case "IN_UNREACHABLE":
		return quotedError(remote.Addr(), local.Addr(), true, out(flagSYN, cellISN))
	case "IN_ERROR":
		return quotedError(remote.Addr(), local.Addr(), false, out(flagACK, cellISN+1))
	case "LEG_CLOSED":
		return in(flagRST|flagACK, 0, cellISN+1)
	case "LEG_LOST":
		return in(flagRST, 501, 0)
	}
	t.Fatalf("no packet of class %s", class)
	return nil
}

// quotedError quotes a packet: unreachable, or too big.
func quotedError(from, to netip.Addr, unreachable bool, quoted []byte) []byte {
	icmp, proto := []byte{3, 4, 0, 0, 0, 0, 0, 0}, byte(unix.IPPROTO_ICMP)
	if unreachable {
		icmp[1] = 1
	}
	if from.Is6() {
		icmp, proto = []byte{2, 0, 0, 0, 0, 0, 0, 0}, unix.IPPROTO_ICMPV6
		if unreachable {
			icmp[0] = 1
		}
		h := []byte{0x60, 0, 0, 0, 0, byte(len(icmp) + len(quoted)), proto, 64}
		return slices.Concat(h, from.AsSlice(), to.AsSlice(), icmp, quoted)
	}
	h := []byte{0x45, 0, 0, byte(20 + len(icmp) + len(quoted)), 0, 0, 0, 0, 64, proto, 0, 0}
	return slices.Concat(h, from.AsSlice(), to.AsSlice(), icmp, quoted)
}

// cellHost is a datapath whose programs are run by BPF_PROG_TEST_RUN.
type cellHost struct {
	*host
	t      *testing.T
	d      *Datapath
	device int
	mac    []byte
	queued *bpf.Program // tags a packet as LEG_QUEUED does, then runs in_l2
}

func newCellHost(t *testing.T) *cellHost {
	h1, _ := newPair(t)
	c := &cellHost{host: h1, t: t, mac: h1.mac()}
	cfg := withLegs(t, config(nil))
	cfg.HeartbeatTimeout = time.Second
	var err error
	h1.do(func() { c.d, err = Open(cfg) })
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.d.Close()) })
	h1.do(func() { c.device, err = linkIndex("w0") })
	require.NoError(t, err)
	takeAddresses(t, c.d.objs, cellAddrs[0][0].Addr(), cellAddrs[1][0].Addr())
	h1.listen(c.d, "tcp4")
	h1.listen(c.d, "tcp6")
	progs, err := bpf.NewMap(&bpf.MapSpec{Type: bpf.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	require.NoError(t, err)
	t.Cleanup(func() { _ = progs.Close() })
	require.NoError(t, progs.Put(uint32(0), c.d.objs.IngressL2))
	c.queued, err = bpf.NewProgram(&bpf.ProgramSpec{Type: bpf.SchedCLS, AttachType: bpf.AttachTCXIngress, License: "GPL", Instructions: asm.Instructions{
		asm.Mov.Imm(asm.R2, tagLegSYN),
		asm.StoreMem(asm.R1, skbTag, asm.R2, asm.Word),
		asm.LoadMapPtr(asm.R2, progs.FD()),
		asm.Mov.Imm(asm.R3, 0),
		asm.FnTailCall.Call(),
		asm.Mov.Imm(asm.R0, 99),
		asm.Return(),
	}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.queued.Close() })
	return c
}

// beat makes the gateway alive, late or gone, and returns whether it still is.
func (c *cellHost) beat(live int) (still func() bool) {
	now := Now()
	at := []uint64{now, now - uint64(2*time.Second), 0}[live]
	require.NoError(c.t, c.d.objs.Beat.Put(uint32(0), at))
	return func() bool {
		age := time.Duration(Now() - at)
		return live == 2 || live == 1 && age < 12*time.Second || live == 0 && age < time.Second
	}
}

// outcome is what has become of a packet, of its entry, and what was counted.
type outcome struct {
	where, after string
	counted      []string
}

func (o outcome) String() string {
	return strings.TrimRight(fmt.Sprintf("%s, %s: %s", o.where, o.after, strings.Join(o.counted, " ")), ": ")
}

// serverState tells whether entries in a state are of a server.
func serverState(state int) bool {
	return slices.Contains([]State{StateWire, StateServing, StateRaw, StateReturned}, State(state))
}

// enterCell makes the entry of a cell, or none.
func (c *cellHost) enterCell(k smcgwFlowKey, class string, state int) {
	c.t.Helper()
	_ = c.d.objs.Flows.Delete(k)
	if state == int(StateNone) {
		return
	}
	word := uint64(cellISN)<<32 | cellNonce<<16 | uint64(state)
	if serverState(state) && class != "OUT_SYN" {
		word |= wordServer
	}
	if class == "IN_SYN_AGAIN" {
		word |= 1 << 13 // WORD_CONFIRMED
	}
	if State(state) == StateReleased && (class == "IN_RESET" || class == "IN_UNREACHABLE") {
		word |= 3 << 11 // WORD_REFUSED, WORD_BARE
	}
	now := Now()
	require.NoError(c.t, c.d.objs.Flows.Put(k, smcgwFlow{
		Word: word, OfferedAt: now, ChangedAt: now, Ifindex: cellValue(c.device), Out: cellValue(c.device),
		Mark: cellValue(cellMark), Bound: cellValue(0), Options: cellValue(0),
	}))
	c.d.traces.leave(k)
}

// run sends a packet of a class through the program of its hook.
func (c *cellHost) run(class string, local, remote netip.AddrPort, pkt []byte) (where string) {
	c.t.Helper()
	objs := c.d.objs
	hook, _, _ := strings.Cut(class, "_")
	switch {
	case hook == "OUT":
		return c.runOn(objs.EgressL2, c.link(pkt, false))
	case class == "LEG_QUEUED":
		return c.runOn(c.queued, c.link(pkt, true))
	case hook == "IN":
		return c.runOn(objs.IngressL2, c.link(pkt, true))
	case hook == "LEG":
		return c.runOn(objs.LegIn, c.link(pkt, false))
	case hook == "APP":
		return c.runOn(objs.AppIn, pkt)
	case hook == "NET":
		return c.runOn(objs.WireIn, pkt)
	default:
		return c.lookup(local, remote)
	}
}

// link puts a link header in front: to the device, or from it.
func (c *cellHost) link(pkt []byte, inbound bool) []byte {
	other := []byte{2, 0, 0, 0, 0, 9}
	to, from, proto := other, c.mac, []byte{8, 0}
	if inbound {
		to, from = c.mac, other
	}
	if pkt[0]>>4 == 6 {
		proto = []byte{0x86, 0xdd}
	}
	return slices.Concat(to, from, proto, pkt)
}

// Offsets in struct __sk_buff.
const (
	skbMark    = 8
	skbVLAN    = 20 // vlan_present
	skbIfindex = 40
	skbSize    = 192
)

// runOn runs a program and tells from what it returned, and made of the packet, where
// that went.
func (c *cellHost) runOn(p *bpf.Program, pkt []byte) string {
	var in, out [skbSize]byte
	binary.NativeEndian.PutUint32(in[skbIfindex:], uint32(c.device))
	opts := &bpf.RunOptions{Data: pkt, DataOut: make([]byte, 512), Context: in, ContextOut: &out}
	ret, err := p.Run(opts)
	require.NoError(c.t, err)
	const next, drop, redirect = ^uint32(0), 2, 7
	switch ret {
	case next:
		return "pass"
	case drop:
		return "drop"
	case redirect:
	default:
		c.t.Fatalf("returned %d", ret)
	}
	switch got := opts.DataOut; {
	case bytes.HasPrefix(got, []byte{2, 'S', 'M', 'G', 'W', 2}):
		return "legs"
	case bytes.Equal(got, pkt) && p == c.d.objs.EgressL2:
		return "held"
	case bytes.Equal(got, pkt):
		return "netstack"
	case bytes.HasPrefix(got, c.mac):
		return "host"
	case binary.NativeEndian.Uint32(out[skbMark:]) == cellMark && len(got) == len(pkt)+14:
		return "wire"
	default:
		c.t.Fatalf("redirected as %x", got)
		return ""
	}
}

// lookup runs the program of sk_lookup.
func (c *cellHost) lookup(local, remote netip.AddrPort) string {
	type sockLookup struct {
		Cookie     uint64
		Family     uint32
		Protocol   uint32
		RemoteIP4  [4]byte
		RemoteIP6  [16]byte
		RemotePort [4]byte
		LocalIP4   [4]byte
		LocalIP6   [16]byte
		LocalPort  uint32
		Ingress    uint32
		_          uint32
	}
	in := sockLookup{Family: unix.AF_INET, Protocol: unix.IPPROTO_TCP, LocalPort: uint32(remote.Port())}
	binary.BigEndian.PutUint16(in.RemotePort[:], local.Port())
	// To the namespace of the legs the application is the remote side.
	if local.Addr().Is4() {
		in.RemoteIP4, in.LocalIP4 = local.Addr().As4(), remote.Addr().As4()
	} else {
		in.Family, in.RemoteIP6, in.LocalIP6 = unix.AF_INET6, local.Addr().As16(), remote.Addr().As16()
	}
	var out sockLookup
	ret, err := c.d.objs.Lookup.Run(&bpf.RunOptions{Context: in, ContextOut: &out})
	require.NoError(c.t, err)
	switch {
	case out.Cookie != 0:
		return "listener"
	case ret == 1:
		return "pass"
	default:
		return "drop"
	}
}

// after is the state that the entry has come to.
func (c *cellHost) after(k smcgwFlowKey) string {
	var f smcgwFlow
	if err := c.d.objs.Flows.Lookup(k, &f); err != nil {
		require.ErrorIs(c.t, err, bpf.ErrKeyNotExist)
		return tableStates[0]
	}
	return tableStates[uint8(f.Word)]
}

// counted lists what two snapshots differ by.
func counted(before, now Counters) (list []string) {
	for name, n := range now.Stats {
		if n != before.Stats[name] {
			list = append(list, name)
		}
	}
	for side := range now.Native {
		for reason, n := range now.Native[side] {
			if n != before.Native[side][reason] {
				list = append(list, fmt.Sprintf("native=%v/%d", Side(side), reason))
			}
		}
	}
	slices.Sort(list)
	return list
}

// observe runs one cell.
func (c *cellHost) observe(class string, live, state int, addrs [2]netip.AddrPort) (o outcome) {
	c.t.Helper()
	k, err := Tuple{Local: addrs[0], Remote: addrs[1]}.key()
	require.NoError(c.t, err)
	pkt := cellPacket(c.t, class, addrs[0], addrs[1])
	for range 10 {
		before, err := c.d.Counters()
		require.NoError(c.t, err)
		entered := Now()
		c.enterCell(k, class, state)
		still := c.beat(live)
		where := c.run(class, addrs[0], addrs[1], pkt)
		if !still() || Now()-entered > cellTime {
			continue // on a machine that did something else meanwhile
		}
		now, err := c.d.Counters()
		require.NoError(c.t, err)
		return outcome{where: where, after: c.after(k), counted: counted(before, now)}
	}
	c.t.Fatal("the machine leaves no time")
	return o
}

// expected is what a verdict means for a packet of a class in a state.
func expected(verdict, class string, state int) outcome {
	same, none := tableStates[state], tableStates[0]
	if verdict == "HOLD" {
		return outcome{"held", same, []string{"syn_retransmit_drop"}}
	}
	if first, ok := map[string]string{"YIELD": "GIVE_BACK", "SPEAK": "WIRE"}[verdict]; ok { // of a gateway that has not spoken
		verdict = first
	}
	drop := map[string]string{
		"DROP_OUT": "out_drop", "DROP_SYN": "syn_retransmit_drop", "DROP_RELEASED": "released_drop", "DROP_RETURNED": "returned_drop",
		"DROP_DEAD": "dead_drop", "DROP_STALE": "stale_dropped", "DROP_LEG": "leg_ingress_drop", "DROP_WIRE": "wire_ingress_drop",
		"DROP_APP": "app_ingress_drop", "WAIT": "syn_retransmit_drop", "CHALLENGE": "released_drop",
	}
	if stat, ok := drop[verdict]; ok {
		return outcome{"drop", same, []string{stat}}
	}
	const stale, forwarded, noOption = "native=client/4", "native=client/6", "native=client/20"
	switch verdict {
	case "OFFER": // the packets of this test have no socket of ours
		return outcome{"pass", none, []string{forwarded, "neutralised"}}
	case "REOFFER":
		return outcome{"pass", none, []string{forwarded, "neutralised", "replaced"}}
	case "LEGS_ERROR":
		return outcome{"legs", same, []string{"icmp_steered"}}
	case "NET_ERROR":
		return outcome{"netstack", same, []string{"icmp_steered"}}
	case "RELEASE":
		return outcome{"pass", "released", nil}
	case "GIVE_BACK":
		return outcome{"pass", "released", []string{stale, "replaced"}}
	case "REPLACE":
		if class == "IN_SYN_AGAIN" {
			return outcome{"pass", none, []string{"native=server/4", "replaced"}}
		}
		return outcome{"pass", none, []string{"replaced"}}
	case "STALE":
		return outcome{"pass", none, []string{"stale_deleted"}}
	case "ACCEPT":
		return outcome{"netstack", "negotiating", []string{"accepted"}}
	case "TOO_LATE":
		return outcome{"drop", "released", []string{stale, "stale_dropped"}}
	case "NATIVE":
		return outcome{"pass", none, []string{noOption}}
	case "REFUSED":
		return outcome{"pass", "released", []string{"offer_refused"}}
	case "FORGET", "NEW", "REFUSED_BARE":
		return outcome{"pass", none, nil}
	case "DELIVER":
		return outcome{"legs", same, []string{"syn_delivered"}}
	case "INJECT":
		return outcome{"host", none, []string{"syn_returned"}}
	case "WIRE":
		o := outcome{"wire", same, nil}
		if class == "APP_SYN" {
			o.counted = []string{"syn_released"}
		}
		return o
	}
	where := map[string]string{
		"PASS": "pass", "ASK": "pass", "COOKIE": "pass", "DROP": "drop", "LEGS": "legs", "LEGS_LAST": "legs", "LEGS_PROOF": "legs",
		"NETSTACK": "netstack", "HOST": "host", "LISTENER": "listener",
	}[verdict]
	return outcome{where, same, nil}
}

// Every class of packet in every state and liveness, through the programs: each does
// what the table says, and the same to both families.
func TestVerdicts(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	table, c := loadTable(t), newCellHost(t)
	c.do(func() {
		for i, class := range table.classes {
			for state := range tableStates {
				for live := range lives {
					var first outcome
					for n, addrs := range cellAddrs {
						name := fmt.Sprintf("%s, %s, %s, %v", class, tableStates[state], lives[live], addrs[0].Addr())
						got := c.observe(class, live, state, addrs)
						want := expected(table.of(i, live, state), class, state)
						require.Equal(t, want.String(), got.String(), "%s: %s", name, table.of(i, live, state))
						if n == 0 {
							first = got
						}
						require.Equal(t, first, got, name)
					}
				}
			}
		}
	})
}

// From the first segment of the client's gateway on the application's SYN does not leave
// by itself, for as long as the gateway may resume.
func TestSpoken(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	c := newCellHost(t)
	c.do(func() {
		for _, addrs := range cellAddrs {
			k, err := Tuple{Local: addrs[0], Remote: addrs[1]}.key()
			require.NoError(t, err)
			run := func(class string) string {
				return c.run(class, addrs[0], addrs[1], cellPacket(t, class, addrs[0], addrs[1]))
			}
			c.enterCell(k, "OUT_SYN", int(StateNegotiating))
			c.beat(0)
			for range 2 {
				require.Equal(t, "wire", run("NET_SEGMENT"))
				f, err := c.d.Flow(k.tuple())
				require.NoError(t, err)
				require.True(t, f.Spoken)
				require.Equal(t, StateNegotiating, f.State)
			}
			for live := range 2 {
				c.beat(live)
				require.Equal(t, "held", run("OUT_SYN"), lives[live])
				require.Equal(t, "negotiating", c.after(k))
			}
			c.beat(2)
			require.Equal(t, "pass", run("OUT_SYN"))
			require.Equal(t, "released", c.after(k))
			require.Equal(t, "drop", run("NET_SEGMENT"))
		}
	})
}

// The states of the table: those of [State], and that of a proof of legs.
var tableStates = append(append([]string(nil), stateNames[:]...), "proof")

// lives are the values of enum liveness after ANY.
var lives = []string{"alive", "late", "gone"}

const tableWidth = 16 // STATES of verdict.h

// verdictTable is the table of verdict.h, as it is in the object.
type verdictTable struct {
	classes, verdicts []string
	cells             []uint8
}

// enumNames are the names of an enum of the object by value.
func enumNames(t *testing.T, types *btf.Spec, name string) (names []string) {
	t.Helper()
	var e *btf.Enum
	require.NoError(t, types.TypeByName(name, &e))
	for i, v := range e.Values {
		require.EqualValues(t, i, v.Value, v.Name)
		names = append(names, v.Name)
	}
	return names
}

func loadTable(t *testing.T) *verdictTable {
	t.Helper()
	spec, err := loadSmcgw()
	require.NoError(t, err)
	v := &verdictTable{classes: enumNames(t, spec.Types, "packet_class"), verdicts: enumNames(t, spec.Types, "packet_verdict")}
	v.classes = v.classes[:len(v.classes)-1] // CLASSES
	v.cells = make([]uint8, len(v.classes)*(1+len(lives))*tableWidth)
	require.NoError(t, spec.Variables["smcgw_verdicts"].Get(v.cells))
	return v
}

// at is one cell; live is 0 for ANY.
func (v *verdictTable) at(class, live, state int) string {
	return v.verdicts[v.cells[(class*(1+len(lives))+live)*tableWidth+state]]
}

// of is what is decided, by the liveness where that counts.
func (v *verdictTable) of(class, live, state int) string {
	if always := v.at(class, 0, state); always != "LOOK" {
		return always
	}
	return v.at(class, 1+live, state)
}

// Every cell says something, and by the liveness only where a line asks for it.
func TestVerdictTable(t *testing.T) {
	v := loadTable(t)
	for c, class := range v.classes {
		for s, state := range tableStates {
			for l, live := range lives {
				name := fmt.Sprintf("%s %s %s", class, state, live)
				require.NotEqual(t, "LOOK", v.of(c, l, s), name)
				if v.at(c, 0, s) != "LOOK" {
					require.Equal(t, "LOOK", v.at(c, 1+l, s), name)
				}
			}
		}
	}
}
