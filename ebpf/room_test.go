package ebpf

import (
	"slices"
	"strings"
	"testing"
	"time"

	bpf "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/lab/testnet"
)

// Connections beyond those that may be set up at a time are native at once. One that is
// not answered soon gives its place to others, and so does one whose set-up has ended.
func TestRoomForSetUps(t *testing.T) {
	h1, h2 := newPair(t)
	h1.ghosts(h2)
	cfg := config([]Rule{{Action: ActionAccelerate}})
	cfg.SetUps = 2
	d := h1.open(cfg)
	offered := func() (n int) { // of a burst
		for range 64 {
			local, err := h1.begin(unix.AF_INET, addrPort(ghost4+":6379"))
			require.NoError(t, err)
			if _, err := d.Flow(Tuple{Local: local, Remote: addrPort(ghost4 + ":6379")}); err == nil {
				n++
			}
		}
		return n
	}
	const soon = 10 * time.Millisecond // OFFERED_NS
	refused := uint64(0)
	for range 3 {
		start := time.Now()
		n := offered()
		took := time.Since(start)
		require.GreaterOrEqual(t, n, 2)
		require.LessOrEqual(t, n, 2*(1+int(took/soon)), "in %v", took)
		refused += uint64(64 - n)
		require.Equal(t, refused, nativeCount(t, d, SideClient, ReasonRateLimit))
		time.Sleep(2 * soon)
	}
	require.Positive(t, refused)
}

// While a step of set-ups takes too long on this host, an eighth of them is left.
func TestRoomWhileBusy(t *testing.T) {
	h1, h2 := newPair(t)
	h1.ghosts(h2)
	cfg := config([]Rule{{Action: ActionAccelerate}})
	cfg.SetUps = 16
	d := h1.open(cfg)
	begin := func() (Tuple, Flow, bool) {
		local, err := h1.begin(unix.AF_INET, addrPort(ghost4+":6379"))
		require.NoError(t, err)
		tuple := Tuple{Local: local, Remote: addrPort(ghost4 + ":6379")}
		f, err := d.Flow(tuple)
		return tuple, f, err == nil
	}
	// setUp sets one up, and returns what its steps took.
	setUp := func(late bool) time.Duration {
		_, err := d.FlushPeers() // so slow a machine that a first SYN counts as unanswered
		require.NoError(t, err)
		tuple, f, ok := begin()
		require.True(t, ok)
		began := time.Now()
		require.NoError(t, d.Transition(tuple, f.ISN, StateNegotiating, StateOffered))
		require.NoError(t, d.Transition(tuple, f.ISN, StateCompleting, StateNegotiating))
		if late {
			time.Sleep(30 * time.Millisecond) // STEP_NS and more
		}
		require.NoError(t, d.Transition(tuple, f.ISN, StateCarrying, StateCompleting))
		return time.Since(began)
	}
	for _, late := range []bool{false, true} {
		for end := time.Now().Add(patience); setUp(late) >= 20*time.Millisecond && !late; { // STEP_NS: this host is busy
			require.True(t, time.Now().Before(end), "no step is in time")
			time.Sleep(5 * time.Second) // BUSY_NS
		}
		n := 0
		start := time.Now()
		for range 64 {
			if _, _, ok := begin(); ok {
				n++
			}
		}
		took := time.Since(start)
		if late {
			require.LessOrEqual(t, n, 2*(1+int(took/(10*time.Millisecond))), "in %v", took)
		} else {
			require.GreaterOrEqual(t, n, 15, "but for the one that was set up")
		}
		time.Sleep(20 * time.Millisecond) // OFFERED_NS and more
	}
}

// An entry is deleted while a program looks at it, and the kernel makes the next one in its
// memory. What the program does after that is done to no other connection.
func TestRecycledEntry(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	for _, tc := range []struct {
		class, at string // the function of the program that comes after the look
		state     State
	}{
		{"OUT_SEGMENT", "stacked", StateCarrying}, // with another mark
		{"OUT_OTHER_SYN", "syn_out", StateDead},
		{"IN_SYN", "syn_in", StateDead},
	} {
		t.Run(tc.class, func(t *testing.T) {
			addrs := cellAddrs[0]
			k, err := Tuple{Local: addrs[0], Remote: addrs[1]}.key()
			require.NoError(t, err)
			pkt := slices.Concat(make([]byte, 12), []byte{8, 0}, cellPacket(t, tc.class, addrs[0], addrs[1]))
			recycle(t, strings.HasPrefix(tc.class, "IN"), tc.at, k, tc.state, pkt)
		})
	}
}

// recycling is what a program finds in its map where it deletes an entry and makes another.
type recycling struct {
	Old, New smcgwFlowKey
	Value    smcgwFlow
	Done     uint32
	Same     uint32 // the new entry is where the old one was
}

const (
	recycleNew   = 40
	recycleValue = 2 * recycleNew
	recycleDone  = recycleValue + 192
	recycleSame  = recycleDone + 4
)

// recycle runs a program on a packet whose entry becomes another one's.
func recycle(t *testing.T, inbound bool, at string, k smcgwFlowKey, state State, pkt []byte) {
	entry := func(isn uint64) smcgwFlow {
		now, of := Now(), func(v uint64) uint64 { return isn<<32 | v }
		return smcgwFlow{
			Word: of(uint64(state)), OfferedAt: now, ChangedAt: now,
			Ifindex: of(77), Out: of(78), Mark: of(79), Bound: of(80), Options: of(81),
		}
	}
	r := recycling{Old: k, New: k, Value: entry(2 * cellISN)}
	r.New.Rport++
	m, err := bpf.NewMap(&bpf.MapSpec{Type: bpf.Array, KeySize: 4, ValueSize: recycleSame + 4, MaxEntries: 1})
	require.NoError(t, err)
	defer m.Close()
	require.NoError(t, m.Put(uint32(0), &r))

	spec, err := loadSmcgw()
	require.NoError(t, err)
	name := map[bool]string{true: "smcgw_in_l2", false: "smcgw_eg_l2"}[inbound]
	p := spec.Programs[name]
	p.Instructions = recycler(t, p.Instructions, at, m)
	spec.Programs = map[string]*bpf.ProgramSpec{name: p}
	all, err := bpf.NewCollection(spec)
	require.NoError(t, err)
	defer all.Close()
	flows := all.Maps["smcgw_flows"]
	require.NoError(t, flows.Put(k, entry(cellISN)))
	_, err = all.Programs[name].Run(&bpf.RunOptions{Data: pkt, DataOut: make([]byte, 512)})
	require.NoError(t, err)

	require.NoError(t, m.Lookup(uint32(0), &r))
	require.EqualValues(t, 1, r.Done, "the program does not call %s", at)
	require.EqualValues(t, 1, r.Same, "the kernel does not reuse the memory")
	var got smcgwFlow
	require.NoError(t, flows.Lookup(r.New, &got))
	require.Equal(t, r.Value, got)
}

// recycler has a function, of three arguments at most, begin with the end of the old entry
// and the new one.
func recycler(t *testing.T, prog asm.Instructions, at string, m *bpf.Map) asm.Instructions {
	t.Helper()
	i := slices.IndexFunc(prog, func(in asm.Instruction) bool { return in.Symbol() == at })
	require.Positive(t, i, at)
	flows := asm.LoadMapPtr(asm.R1, 0).WithReference("smcgw_flows")
	hook := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.Mov.Reg(asm.R7, asm.R2),
		asm.Mov.Reg(asm.R8, asm.R3),
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, m.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "go_on"),
		asm.Mov.Reg(asm.R9, asm.R0),
		asm.StoreImm(asm.R9, recycleDone, 1, asm.Word),
		flows,
		asm.Mov.Reg(asm.R2, asm.R9),
		asm.FnMapLookupElem.Call(),
		asm.StoreMem(asm.RFP, -16, asm.R0, asm.DWord),
		flows,
		asm.Mov.Reg(asm.R2, asm.R9),
		asm.FnMapDeleteElem.Call(),
		flows,
		asm.Mov.Reg(asm.R2, asm.R9),
		asm.Add.Imm(asm.R2, recycleNew),
		asm.Mov.Reg(asm.R3, asm.R9),
		asm.Add.Imm(asm.R3, recycleValue),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnMapUpdateElem.Call(),
		flows,
		asm.Mov.Reg(asm.R2, asm.R9),
		asm.Add.Imm(asm.R2, recycleNew),
		asm.FnMapLookupElem.Call(),
		asm.LoadMem(asm.R1, asm.RFP, -16, asm.DWord),
		asm.JNE.Reg(asm.R0, asm.R1, "go_on"),
		asm.StoreImm(asm.R9, recycleSame, 1, asm.Word),
		asm.Mov.Reg(asm.R1, asm.R6).WithSymbol("go_on"),
		asm.Mov.Reg(asm.R2, asm.R7),
		asm.Mov.Reg(asm.R3, asm.R8),
	}
	hook[0].Metadata, prog[i].Metadata = prog[i].Metadata, asm.Metadata{}
	return slices.Insert(prog, i, hook...)
}

// A map whose keys go during the walk is walked again, until nothing is left that matches.
func TestDeleteWhileKeysGo(t *testing.T) {
	testnet.Require(t, "root", "bpf")
	const entries = 8
	m, err := bpf.NewMap(&bpf.MapSpec{Type: bpf.Hash, KeySize: 4, ValueSize: 4, MaxEntries: entries})
	require.NoError(t, err)
	defer m.Close()
	for k := range uint32(entries) {
		require.NoError(t, m.Put(k, k))
	}
	replaced := uint32(0)
	n, err := deleteWhere(m, func(k uint32) bool {
		if replaced < 3*entries { // as a full LRU map does
			replaced++
			require.NoError(t, m.Delete(k))
			require.NoError(t, m.Put(entries+replaced, k))
		}
		return true
	})
	require.NoError(t, err)
	require.GreaterOrEqual(t, n, entries)
	var k, v uint32
	require.False(t, m.Iterate().Next(&k, &v))

	require.NoError(t, m.Put(uint32(1), uint32(1)))
	_, err = deleteWhere(m, func(k uint32) bool {
		replaced++
		require.NoError(t, m.Delete(k))
		require.NoError(t, m.Put(entries+replaced, k))
		return true
	})
	require.ErrorIs(t, err, bpf.ErrIterationAborted, "a map that does not come to rest")
}
