package soft

import (
	"time"

	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/verbs"
)

// modelOp is a work request as drawn, before it has memory.
type modelOp struct {
	op       verbs.WROpcode
	n        int
	remote   int // offset in the peer's region, to be reduced to what fits
	local    int
	sges     int
	flags    verbs.SendFlags
	imm      uint32
	a, b     uint64        // operands of atomics
	gap      time.Duration // between the post before and this one
	fromRead bool          // its payload is what an earlier READ brings
}

var modelOpcodes = []verbs.WROpcode{
	verbs.WRSend, verbs.WRSend, verbs.WRSendWithImm, verbs.WRSendWithInv,
	verbs.WRRDMAWrite, verbs.WRRDMAWrite, verbs.WRRDMAWriteWithImm,
	verbs.WRRDMARead, verbs.WRRDMARead, verbs.WRAtomicCmpAndSwp, verbs.WRAtomicFetchAndAdd, verbs.WRLocalInv,
}

// modelMaxPackets is the longest message in packets.
const modelMaxPackets = 5

// drawLength draws message lengths around the multiples of the MTU.
func drawLength(t *rapid.T, mtu int) int {
	n := rapid.IntRange(0, modelMaxPackets).Draw(t, "packets") * mtu
	n += rapid.OneOf(rapid.SampledFrom([]int{0, -1, 1, -3, 4}), rapid.IntRange(-mtu, mtu)).Draw(t, "more")
	return min(max(n, 0), modelMaxPackets*mtu)
}

func drawOp(t *rapid.T, mtu int, ops []verbs.WROpcode) modelOp {
	o := modelOp{
		op:     rapid.SampledFrom(ops).Draw(t, "op"),
		remote: rapid.IntRange(0, 1<<20).Draw(t, "remote"),
		local:  rapid.IntRange(0, 1<<20).Draw(t, "local"),
		sges:   rapid.IntRange(1, 4).Draw(t, "sges"),
	}
	switch o.op {
	case verbs.WRAtomicCmpAndSwp, verbs.WRAtomicFetchAndAdd:
		o.n = 8
		o.a = rapid.Uint64Range(0, 3).Draw(t, "a")
		o.b = rapid.Uint64().Draw(t, "b")
	case verbs.WRLocalInv:
	default:
		o.n = drawLength(t, mtu)
		o.imm = rapid.Uint32().Draw(t, "imm")
	}
	bits := rapid.IntRange(0, 31).Draw(t, "flags")
	for i, f := range []verbs.SendFlags{verbs.SendSignaled, verbs.SendFence, verbs.SendInline} {
		if bits>>i&1 != 0 {
			o.flags |= f
		}
	}
	o.fromRead = bits>>3 == 3
	if rapid.IntRange(0, 7).Draw(t, "wait") == 0 {
		o.gap = time.Duration(rapid.IntRange(1, 2000).Draw(t, "gap")) * time.Microsecond
	}
	return o
}

// drawFaults draws what a route does. Loss is low enough for 7 retries: what
// retries cannot mend is the subject of other tests.
func drawFaults(t *rapid.T) simFaults {
	var f simFaults
	rate := func(name string, most int) float64 {
		return float64(rapid.OneOf(rapid.Just(0), rapid.IntRange(0, most)).Draw(t, name)) / 100
	}
	f.loss = rate("loss %", 3)
	f.burst = rapid.IntRange(1, 3).Draw(t, "burst")
	f.duplicate = rate("duplicate %", 15)
	f.reorder = rate("reorder %", 10)
	f.late = time.Duration(rapid.IntRange(1, 500).Draw(t, "late")) * time.Microsecond
	f.jitter = time.Duration(rapid.IntRange(0, 100).Draw(t, "jitter")) * time.Microsecond
	f.corrupt = rate("corrupt %", 2)
	f.mark = rate("mark %", 20)
	return f
}
