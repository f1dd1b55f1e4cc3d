package ebpf

import (
	"fmt"
	"testing"
	"time"

	bpf "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"
)

// Offsets in struct __sk_buff, and a tag of redirect.h.
const (
	skbTag     = 44
	tagLegSYN  = 0x5313
	seenTagged = 1 // slots of what a look after our program sees
	seenBare   = 0
)

// attachAsm attaches a program to the ingress of w0.
func (h *host) attachAsm(where link.Anchor, code asm.Instructions) {
	h.t.Helper()
	p, err := bpf.NewProgram(&bpf.ProgramSpec{Type: bpf.SchedCLS, Instructions: code, License: "GPL"})
	require.NoError(h.t, err)
	h.t.Cleanup(func() { _ = p.Close() })
	h.do(func() {
		index, err := linkIndex("w0")
		require.NoError(h.t, err)
		l, err := attachTCX(p, index, bpf.AttachTCXIngress, where)
		require.NoError(h.t, err)
		h.t.Cleanup(func() { _ = l.Close() })
	})
}

// legSYNs makes everything that arrives on w0 a SYN of a leg, and returns the
// counters of what our program lets pass, with its tag and without.
func (h *host) legSYNs() *bpf.Map {
	h.t.Helper()
	seen, err := bpf.NewMap(&bpf.MapSpec{Type: bpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 2})
	require.NoError(h.t, err)
	h.t.Cleanup(func() { _ = seen.Close() })
	h.attachAsm(link.Head(), asm.Instructions{
		asm.Mov.Imm(asm.R2, tagLegSYN),
		asm.StoreMem(asm.R1, skbTag, asm.R2, asm.Word),
		asm.Mov.Imm(asm.R0, -1),
		asm.Return(),
	})
	h.attachAsm(link.Tail(), asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, skbTag, asm.Word),
		asm.StoreImm(asm.RFP, -4, seenBare, asm.Word),
		asm.JEq.Imm(asm.R2, 0, "look"),
		asm.StoreImm(asm.RFP, -4, seenTagged, asm.Word),
		asm.LoadMapPtr(asm.R1, seen.FD()).WithSymbol("look"),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, -1).WithSymbol("out"),
		asm.Return(),
	})
	return seen
}

// A SYN or SYN-ACK of a leg that was in a queue while its connection became
// native does not reach the application, whose own SYN is on its way. All others
// do, as if they had come from the network, and without the tag.
func TestLegSYN(t *testing.T) {
	t.Parallel()
	h1, h2 := newPair(t)
	d := h1.open(config(accelerate(7000)))
	seen := h1.legSYNs()
	count := func(slot uint32) (n uint64) {
		require.NoError(t, seen.Lookup(slot, &n))
		return n
	}
	for _, addrs := range [][2]string{{"10.77.0.2:7000", "10.77.0.1:5000"}, {"[fd77::2]:7000", "[fd77::1]:5000"}} {
		s := segment{src: addrPort(addrs[0]), dst: addrPort(addrs[1]), flags: flagSYN | flagACK, seq: 1, ack: 1001, options: timestamps()}
		k, err := Tuple{Local: s.dst, Remote: s.src}.key()
		require.NoError(t, err)
		for state, passes := range map[State]bool{
			StateNone: false, StateNegotiating: false, StateCompleting: true, StateCarrying: true, StateServing: true,
			StateRaw: true, StateWire: false, StateReleased: false, StateReturned: false, StateDead: true,
		} {
			name := fmt.Sprintf("%v of %v", state, s.src)
			_ = d.objs.Flows.Delete(k)
			if state != StateNone {
				now := Now()
				require.NoError(t, d.objs.Flows.Put(k, smcgwFlow{Word: 1000<<32 | uint64(state), OfferedAt: now, ChangedAt: now}))
			}
			passed, dropped := count(seenBare), stat(t, d, "leg_ingress_drop")
			h2.send(h1, s.bytes(t))
			require.Eventually(t, func() bool {
				if stat(t, d, "leg_ingress_drop") > dropped {
					return !passes
				}
				return passes && count(seenBare) > passed
			}, patience, time.Millisecond, name)
		}
	}
	require.Zero(t, count(seenTagged))
}
