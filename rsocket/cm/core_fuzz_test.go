package cm

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// FuzzCore feeds the MADs of an unknown host, and those of the peer of a
// connection, in any order and number, with time between them. Nothing panics,
// and everything stays within the bound of objects. When all deadlines have
// passed, what the unknown host began is gone. A host that is not the peer of a
// connection does not touch it.
func FuzzCore(f *testing.F) {
	for _, m := range examples() {
		f.Add(Append(nil, 7, m), Append(nil, 8, m), false)
		f.Add(Append(nil, 7, m), Append(nil, 8, m), true)
	}
	for _, b := range captures(f) {
		f.Add(b, b, true)
	}
	f.Fuzz(func(t *testing.T, first, second []byte, peer bool) {
		w := newWorld(t)
		_, y := w.connected()
		from := route{0, netip.MustParseAddr("10.0.0.3")}
		if peer {
			from = route{0, w.a.addr}
		}
		for i := range 2 * w.b.Objects {
			for _, b := range [][]byte{first, second} {
				b = append([]byte(nil), b...)
				vary(b, i)
				w.b.receive(w.now, from, b)
			}
			w.b.out = nil
			require.LessOrEqual(t, len(w.b.conns), w.b.Objects)
		}
		if !peer {
			require.Equal(t, stateEstablished, y.state)
		}
		for range 64 {
			w.pass(time.Minute)
			w.b.out = nil
			for _, l := range w.b.listeners {
				for l.take() != nil { // the application looks, and does nothing
				}
			}
		}
		require.LessOrEqual(t, len(w.b.conns), w.b.Objects)
	})
}

// vary makes a MAD one of many: another transaction, communication id and queue pair.
func vary(b []byte, i int) {
	for _, at := range []int{15, 27, 31, 55} {
		if at < len(b) {
			b[at] += byte(i)
		}
	}
}
