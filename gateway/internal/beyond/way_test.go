package beyond

import (
	"encoding/binary"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/time/rate"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/inprocess/broker"
	"github.com/smcgw/smcgw/negotiate"
)

// attribute is one of netlink(7), padded.
func attribute(kind uint16, value ...byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
	b = append(binary.NativeEndian.AppendUint16(b, kind), value...)
	return append(b, make([]byte, -len(b)&3)...)
}

// tracked is what the connection tracking says of a connection from client whose packets go to server.
func tracked(client, server netip.Addr) []byte {
	source, destination := uint16(nl.CTA_IP_V4_SRC), uint16(nl.CTA_IP_V4_DST)
	if client.Is6() {
		source, destination = nl.CTA_IP_V6_SRC, nl.CTA_IP_V6_DST
	}
	tuple := func(kind uint16, from, to netip.Addr) []byte {
		ip := append(attribute(source, from.AsSlice()...), attribute(destination, to.AsSlice()...)...)
		return attribute(kind|1<<15, append(attribute(nl.CTA_TUPLE_PROTO|1<<15, attribute(nl.CTA_PROTO_NUM, 6)...), attribute(nl.CTA_TUPLE_IP|1<<15, ip...)...)...)
	}
	m := append([]byte{2, 0, 0, 0}, tuple(nl.CTA_TUPLE_ORIG, client, netip.MustParseAddr("192.0.2.1"))...)
	return append(m, tuple(nl.CTA_TUPLE_REPLY, server, client)...)
}

func TestTracked(t *testing.T) {
	t.Parallel()
	for _, of := range [][2]string{{"10.0.0.1", "10.0.0.2"}, {"fd00::1", "fd00::2"}} {
		client, server := netip.MustParseAddr(of[0]), netip.MustParseAddr(of[1])
		got, err := parseTracked(tracked(client, server))
		require.NoError(t, err)
		require.Equal(t, server, got)
	}
}

func TestTrackedTruncated(t *testing.T) {
	t.Parallel()
	client, server := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	m := tracked(client, server)
	for n := range m {
		_, err := parseTracked(m[:n])
		require.ErrorIs(t, err, errTracked, "%d bytes", n)
	}
}

func FuzzTracked(f *testing.F) {
	f.Add(tracked(netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")))
	f.Add(tracked(netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")))
	f.Fuzz(func(t *testing.T, m []byte) {
		a, err := parseTracked(m)
		require.Equal(t, err == nil, a.IsValid())
	})
}

// device is one of a kind, of which nothing else is asked.
type device struct {
	carrier.Provider
	kind negotiate.CarrierKind
}

func (d device) Kind() negotiate.CarrierKind { return d.kind }

// TestCarriersRest: a carrier that fails with a peer again and again is left alone with that peer, and no other is. What an
// operator or the peer ends has not failed, though it looks so until the peer has said it.
func TestCarriersRest(t *testing.T) {
	const failures = 3
	s := &Service{lines: rate.NewLimiter(0, 0), cfg: Config{
		Pays: func(*broker.Half, negotiate.CarrierKind) bool { return true }, Peers: peers.NewTable(config.Limits{}), Log: slog.New(slog.DiscardHandler),
	}}
	bad, good := s.newTalk(netip.MustParseAddr("10.0.0.1")), s.newTalk(netip.MustParseAddr("10.0.0.2"))
	left := s.newTalk(netip.MustParseAddr("10.0.0.3"))
	began := time.Now().Add(time.Hour) // so it rests yet, however slow the test is
	for i := range failures {
		for tk, why := range map[*talk]negotiate.Reason{bad: negotiate.ReasonDeviceFailed, good: negotiate.ReasonDrained, left: negotiate.ReasonDeviceFailed} {
			require.True(t, tk.admits(&end{}, device{kind: negotiate.CarrierHW}))
			tk.note(began.Add(time.Duration(i)*10*time.Second), &end{by: negotiate.CarrierHW, excused: tk == left}, why, nil)
		}
	}
	require.False(t, bad.admits(&end{}, device{kind: negotiate.CarrierHW}))
	require.True(t, bad.admits(&end{}, device{kind: negotiate.CarrierSoft}))
	require.True(t, good.admits(&end{}, device{kind: negotiate.CarrierHW}))
	require.True(t, left.admits(&end{}, device{kind: negotiate.CarrierHW}))
}
