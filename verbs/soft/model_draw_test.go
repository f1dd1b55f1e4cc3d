package soft

import (
	"time"

	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/verbs"
)

// drawPSN draws first packet sequence numbers, most of them so close to the
// wrap that the run crosses it.
func drawPSN(t *rapid.T) uint32 {
	return rapid.OneOf(rapid.Uint32Range(0xffffff-60, 0xffffff), rapid.Uint32Range(0, 0xffffff)).Draw(t, "psn")
}

// drawConfig draws a run.
func drawConfig(t *rapid.T) modelConfig {
	c := modelConfig{
		seed:     rapid.Uint64().Draw(t, "seed"),
		v6:       rapid.Bool().Draw(t, "IPv6"),
		vectors:  rapid.IntRange(1, 3).Draw(t, "vectors"),
		mtu:      verbs.MTU(rapid.IntRange(int(verbs.MTU256), int(verbs.MTU4096)).Draw(t, "mtu")),
		psn:      [2]uint32{drawPSN(t), drawPSN(t)},
		all:      rapid.Bool().Draw(t, "all signaled"),
		recvs:    rapid.IntRange(1, 8).Draw(t, "receives"),
		rdAtomic: uint8(rapid.IntRange(1, 4).Draw(t, "rd atomic")),
		rnrTimer: uint8(rapid.IntRange(1, 12).Draw(t, "rnr timer")),
		timeout:  uint8(rapid.IntRange(10, 13).Draw(t, "timeout")),
		oneCQ:    rapid.Bool().Draw(t, "one CQ"),
	}
	c.cap = verbs.QPCap{
		MaxSendWR: rapid.IntRange(1, 12).Draw(t, "send queue"), MaxRecvWR: c.recvs,
		MaxSendSGE: rapid.IntRange(1, 4).Draw(t, "send SGEs"), MaxRecvSGE: rapid.IntRange(1, 3).Draw(t, "receive SGEs"),
		MaxInline: 64 * rapid.IntRange(0, 3).Draw(t, "inline"),
	}
	if rapid.Bool().Draw(t, "late receives") {
		c.lazy = time.Duration(rapid.IntRange(1, 5000).Draw(t, "late")) * time.Microsecond
	}
	for i := range c.faults {
		c.faults[i] = drawFaults(t)
	}
	c.pauses = drawPauses(t, c.timeout)
	c.loopback = rapid.IntRange(0, 5).Draw(t, "loopback") == 5
	c.ecn = rapid.Bool().Draw(t, "ecn")
	c.noTrains = rapid.SampledFrom([]time.Duration{0, 0, 0, 1, 50 * time.Microsecond, time.Millisecond}).Draw(t, "no trains")
	return c
}

// drawPauses draws stretches that are too short for the peer's retries to run out.
func drawPauses(t *rapid.T, timeout uint8) []modelPause {
	var pauses []modelPause
	most := int(4096*time.Nanosecond<<timeout) * 2
	for range rapid.IntRange(0, 2).Draw(t, "pauses") {
		pauses = append(pauses, modelPause{
			node:  rapid.IntRange(0, 1).Draw(t, "side"),
			after: time.Duration(rapid.IntRange(0, 20_000_000).Draw(t, "after")),
			long:  time.Duration(rapid.IntRange(0, most).Draw(t, "long")),
		})
	}
	return pauses
}
