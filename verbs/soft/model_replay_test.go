package soft

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/soft/wire"
)

// watch lets f decide about every packet that a side sends.
func (m *model) watch(side int, f func(h *wire.Header) simVerdict) {
	m.w.net.route(m.nodes[side].addr, m.nodes[1-side].addr).tap = func(_ netip.AddrPort, b []byte) simVerdict {
		var h wire.Header
		_, err := h.Parse(b)
		require.NoError(m.t, err)
		return f(&h)
	}
}

// countRNR counts the RNR NAKs that a side sends.
func (m *model) countRNR(side int) *int {
	n := new(int)
	m.watch(side, func(h *wire.Header) simVerdict {
		*n += btoi(h.Opcode == wire.RCAcknowledge && h.Syndrome.IsRNR())
		return simPass
	})
	return n
}

// Operations are executed once, whichever of their packets is lost or comes
// twice: a repeated SEND consumes no second receive, a repeated WRITE does not
// undo a later one, a READ is answered again, an atomic operation from what is
// stored.
func TestModelReplay(t *testing.T) {
	for _, op := range []verbs.WROpcode{
		verbs.WRSend, verbs.WRRDMAWrite, verbs.WRRDMAWriteWithImm, verbs.WRRDMARead,
		verbs.WRAtomicFetchAndAdd, verbs.WRAtomicCmpAndSwp,
	} {
		for side, name := range []string{"request", "response"} {
			for nth := range 4 {
				for _, v := range []simVerdict{simDrop, simTwice} {
					t.Run(fmt.Sprintf("%v/%s %d/%v", op, name, nth, []string{"", "lost", "twice"}[v]), func(t *testing.T) {
						m := newModel(t, plainConfig())
						e := m.connect([2]int{})[0]
						for i := range 5 {
							o := modelOp{op: op, n: 3000, sges: 2, b: 1, remote: 7, local: 100 * i}
							if op == verbs.WRAtomicFetchAndAdd || op == verbs.WRAtomicCmpAndSwp {
								o.n = 8
							}
							e.todo = append(e.todo, o)
						}
						seen := 0
						m.watch(side, func(*wire.Header) simVerdict {
							if seen++; seen-1 == nth {
								return v
							}
							return simPass
						})
						m.finish(10 * time.Second)
						require.Greater(t, seen, 0)
						if stats := m.w.net.stats; seen > nth {
							require.Equal(t, stats.sent+map[simVerdict]int{simDrop: -1, simTwice: 1}[v], stats.delivered)
						}
					})
				}
			}
		}
	}
}

// A whole exchange whose requests all come again much later changes nothing.
func TestModelOldPackets(t *testing.T) {
	m := newModel(t, plainConfig())
	e := m.connect([2]int{})
	type packet struct {
		src  netip.AddrPort
		data []byte
	}
	var old []packet
	r := m.w.net.route(m.nodes[0].addr, m.nodes[1].addr)
	r.tap = func(src netip.AddrPort, b []byte) simVerdict {
		old = append(old, packet{src, bytes.Clone(b)})
		return simPass
	}
	for i := range 40 {
		o := modelOp{op: modelOpcodes[i%len(modelOpcodes)], n: 100 * i, sges: 1, remote: i, b: 3}
		if o.op == verbs.WRAtomicCmpAndSwp || o.op == verbs.WRAtomicFetchAndAdd {
			o.n = 8
		}
		e[0].todo = append(e[0].todo, o)
	}
	m.finish(10 * time.Second)
	r.tap = nil
	for _, p := range old {
		m.w.net.transmit(p.src, simSocket(m.nodes[1]), false, p.data)
		m.w.run(time.Millisecond, nil)
	}
	m.finish(time.Second)
}
