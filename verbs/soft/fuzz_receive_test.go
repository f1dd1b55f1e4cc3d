package soft

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/verbs/soft/wire"
)

// hostileScripts are conversations that reach deep states.
var hostileScripts = map[string][]byte{
	"send": slices.Concat(step(3, 0, 255), packetStep(0, 0, wire.RCSendFirst, 1, 0, 255),
		packetStep(0, 0, wire.RCSendLast, 1, 0, 9)),
	"write":       slices.Concat(packetStep(0, 0, wire.RCWriteFirst, 0xc0, 0, 64), packetStep(0, 0, wire.RCWriteLast, 1, 0, 255)),
	"write twice": slices.Concat(packetStep(0, 0, wire.RCWriteOnly, 1, 0, 200), packetStep(8, 0, wire.RCWriteOnly, 1, 8, 200)),
	"read":        slices.Concat(packetStep(0, 0, wire.RCReadRequest, 0x21, 0, 255), packetStep(0, 0, wire.RCReadRequest, 0x21, 8, 255)),
	"atomics": slices.Concat(packetStep(0, 0, wire.RCFetchAdd, 1, 0, 8), packetStep(0, 0, wire.RCCompareSwap, 1, 0, 8),
		packetStep(0, 0, wire.RCFetchAdd, 1, 8, 8)),
	"forbidden": packetStep(0, 0, wire.RCWriteOnly, 0x31, 0, 64),
	"foreign":   packetStep(0, 0, wire.RCWriteOnly, 0x41, 0, 64),
	"victim":    slices.Concat(packetStep(0, 240, wire.RCSendOnly, 1, 0, 64), packetStep(0, 240, wire.RCAcknowledge, 1, 0, 0)),
	"stranger":  packetStep(7, 0, wire.RCWriteOnly, 1, 0, 64),
	"responses": slices.Concat(step(1, 0, 200, 1), packetStep(0, 0, wire.RCReadResponseFirst, 0, 0, 255),
		packetStep(0, 0, wire.RCReadResponseLast, 0, 10, 255)),
	"early ack": slices.Concat(step(1, 0, 9, 0), packetStep(0, 0, wire.RCAcknowledge, 0, 11, 0),
		packetStep(0x80, 0, wire.RCAcknowledge, 0, 0, 0, 5, 0x61)),
	"unconnected": slices.Concat(packetStep(0, 1, wire.UCWriteFirst, 0, 0, 255), packetStep(0, 1, wire.UCWriteLast, 0, 0, 4),
		packetStep(0, 1, wire.UCSendOnly, 0, 0, 4)),
	"datagram":   slices.Concat(step(3, 2, 100), packetStep(0, 2, wire.UDSendOnly, 0, 0, 99), packetStep(0, 2, wire.UDSendOnlyImm, 0, 0, 255)),
	"notify":     packetStep(0, 0, wire.CNP, 8, 0, 0),
	"invalidate": slices.Concat(step(3, 0, 9), packetStep(0, 0, wire.RCSendOnlyInv, 1, 0, 4), packetStep(0, 0, wire.RCWriteOnly, 1, 0, 4)),
	"raw":        slices.Concat(step(0, 0x80, 20), make([]byte, 20)),
}

// Whatever arrives, the device lives, nobody's memory but the granted changes,
// and the connection with somebody else goes on.
func FuzzReceive(f *testing.F) {
	for _, s := range hostileScripts {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, b []byte) { attack(t, b) })
}

func attack(t simTB, b []byte) *hostile {
	h := newHostile(t, 1)
	for i := range 12 {
		for _, e := range h.victim {
			e.todo = append(e.todo, modelOp{op: modelOpcodes[i%8], n: 100 * i, sges: 1, remote: i})
		}
	}
	h.play(b)
	h.check()
	return h
}

// The same with scripts that are longer and less blind than a fuzzer's first ones.
func TestHostile(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b []byte
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			step := rapid.SliceOfN(rapid.Byte(), stepLen, stepLen).Draw(t, "step")
			if rapid.Bool().Draw(t, "in order") {
				step[0], step[1], step[5] = 5, step[1]&0x18, step[5]&0xf0 // from the peer, intact, with the PSN that is expected
			}
			b = append(b, step...)
		}
		attack(t, b)
	})
}
