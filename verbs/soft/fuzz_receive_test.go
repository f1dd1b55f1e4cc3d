package soft

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/verbs/soft/wire"
)

// hostileScripts are conversations that reach deep states.
var hostileScripts = map[string][]byte{
	"send": slices.Concat(step(3, 0, 255), packetStep(0, 0, wire.RCSendFirst, 0x40, 0, 128, 0),
		packetStep(0, 0, wire.RCSendLast, 1, 0, 9, 0)),
	"write":       slices.Concat(packetStep(0, 0, wire.RCWriteFirst, 0x40, 0, 128, 0), packetStep(0, 0, wire.RCWriteLast, 1, 0, 255, 0)),
	"write twice": slices.Concat(packetStep(0, 0, wire.RCWriteOnly, 1, 0, 200, 0), packetStep(8, 0, wire.RCWriteOnly, 1, 8, 200, 0)),
	"read":        slices.Concat(packetStep(0, 0, wire.RCReadRequest, 0x41, 0, 255, 2), packetStep(0, 0, wire.RCReadRequest, 0x41, 8, 255, 2)),
	"atomics": slices.Concat(packetStep(0, 0, wire.RCFetchAdd, 1, 0, 8, 0), packetStep(0, 0, wire.RCCompareSwap, 1, 0, 8, 0),
		packetStep(0, 0, wire.RCFetchAdd, 1, 8, 8, 0)),
	"not readable": packetStep(0, 0, wire.RCReadRequest, 1, 0, 255, 3),
	"forbidden":    packetStep(0, 0, wire.RCWriteOnly, 1, 0, 64, 3),
	"foreign":      packetStep(0, 0, wire.RCWriteOnly, 1, 0, 64, 4),
	"victim": slices.Concat(packetStep(0, 240, wire.RCSendOnly, 1, 0, 64, 0),
		packetStep(0, 240, wire.RCAcknowledge, 1, 0, 0, 0)),
	"beyond":   packetStep(0x80, 0, wire.RCWriteOnly, 1, 0, 200, 0, 2, 130),
	"before":   packetStep(0x80, 0, wire.RCReadRequest, 1, 0, 200, 0, 2, 0),
	"stranger": packetStep(7, 0, wire.RCWriteOnly, 1, 0, 64, 0),
	"read responses": slices.Concat(step(1, 0, 200, 1), packetStep(0, 0, wire.RCReadResponseFirst, 0x40, 0, 128, 0),
		packetStep(0, 0, wire.RCReadResponseMiddle, 0x40, 10, 128, 0)),
	"atomic response": slices.Concat(step(1, 0, 1, 3), packetStep(0, 0, wire.RCAtomicAcknowledge, 0, 0, 0, 0)),
	"early ack":       slices.Concat(step(1, 0, 9, 0), packetStep(0, 0, wire.RCAcknowledge, 0, 11, 0, 0)),
	"rnr":             slices.Concat(step(1, 0, 9, 0), packetStep(0, 0, wire.RCAcknowledge, 0x30, 0, 0, 0)),
	"gap":             slices.Concat(step(1, 0, 9, 0), packetStep(0, 0, wire.RCAcknowledge, 0x40, 0, 0, 0)),
	"unconnected": slices.Concat(packetStep(0, 1, wire.UCWriteFirst, 0x40, 0, 128, 0), packetStep(0, 1, wire.UCWriteLast, 0, 0, 4, 0),
		packetStep(0, 1, wire.UCSendOnly, 0, 0, 4, 0)),
	"datagram": slices.Concat(step(3, 2, 100), packetStep(0, 2, wire.UDSendOnly, 0, 0, 99, 0),
		packetStep(0, 2, wire.UDSendOnlyImm, 0, 0, 255, 0)),
	"notify": packetStep(0, 0, wire.CNP, 8, 0, 0, 0),
	"invalidate": slices.Concat(step(3, 0, 9), packetStep(0, 0, wire.RCSendOnlyInv, 1, 0, 4, 0),
		packetStep(0, 0, wire.RCWriteOnly, 1, 0, 4, 0)),
	"raw": slices.Concat(step(0, 0x80, 20), make([]byte, 20)),
}

// Whatever arrives, the device lives, no memory but the granted changes, and
// the connection with another peer goes on.
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

// The same with scripts that keep to the rules for a while.
func TestHostile(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b []byte
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			b = append(b, drawStep(t)...)
		}
		attack(t, b)
	})
}

// drawStep draws a step: anything, a request that is due, or work of the device
// with an answer to it.
func drawStep(t *rapid.T) []byte {
	qp := rapid.SampledFrom([]byte{0, 0, 0, 1, 2, 3, 7, 8}).Draw(t, "queue pair")
	length := rapid.SampledFrom([]byte{128, 128, 0, 1, 4, 100, 200, 255}).Draw(t, "length")
	region := rapid.SampledFrom([]byte{0, 0, 0, 0, 2, 3, 4, 5, 6}).Draw(t, "region")
	bits := rapid.Byte().Draw(t, "bits")
	if length == 128 {
		bits = bits&0x3f | 0x40 // a whole MTU
	}
	switch rapid.IntRange(0, 4).Draw(t, "kind") {
	case 0:
		return rapid.SliceOfN(rapid.Byte(), stepLen, stepLen).Draw(t, "step")
	case 1:
		op := rapid.SampledFrom(hostileOpcodes[13:19]).Draw(t, "response")
		index := byte(rapid.IntRange(0, 15).Draw(t, "of packet")) << 4
		return slices.Concat(step(1, qp, length, rapid.Byte().Draw(t, "work")), packetStep(0, qp, op, bits, index, length, 0))
	case 2:
		return step(3, qp, length)
	default:
		ops := map[byte][]wire.Opcode{1: hostileOpcodes[23:35], 2: hostileOpcodes[35:37], 7: hostileOpcodes[23:35]}[qp]
		if ops == nil {
			ops = slices.Concat(hostileOpcodes[:13], hostileOpcodes[19:23])
		}
		return packetStep(0, qp, rapid.SampledFrom(ops).Draw(t, "request"), bits|1, 0, length, region)
	}
}
