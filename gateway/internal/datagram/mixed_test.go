package datagram

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/verbs"
)

// newMixedHosts returns a host with soft and one whose soft device plays an adapter. allow
// tells which of both allow the other kind at the other end.
func newMixedHosts(t *testing.T, port uint16, allow [2]bool) *hosts {
	h := newHosts(t, report.DeviceSoft)
	for i := range h.g {
		h.stop(i)
	}
	h.soft = port
	h.edit = func(i int, list []Provider) {
		n := list[0].(fakeNetwork)
		n.kind, n.mixed = [2]negotiate.CarrierKind{negotiate.CarrierSoft, negotiate.CarrierHW}[i], allow[i]
		list[0] = n
	}
	for i := range h.g {
		h.start(i)
		h.forget(i)
	}
	return h
}

// TestDatagramsMixed: a host without an adapter and one that has nothing else carry
// datagrams between them, by the kind of its own device each.
func TestDatagramsMixed(t *testing.T) {
	h := newMixedHosts(t, verbs.RoCEUDPPort, [2]bool{true, true})
	h.meet()
	there, back := h.ends(0, 4000, 53), h.ends(1, 53, 4000)
	for _, n := range []int{0, 1, 511, 1472, 4081, 65507} {
		h.pass(0, there, randomBytes(n))
		h.pass(1, back, randomBytes(n))
	}
	for i, name := range []report.Carrier{report.CarrierSoft, report.CarrierHW} {
		s := h.stats(i)
		require.EqualValues(t, 6, s.Sent[name])
		require.EqualValues(t, 6, s.Received[name])
		require.Equal(t, name, h.g[i].flows()[0].Carrier)
	}
}

// TestDatagramsNotMixed: a host that does not want it, and one that receives elsewhere than
// adapters send to, have no kind in common with the other one.
func TestDatagramsNotMixed(t *testing.T) {
	for name, c := range map[string]struct {
		port  uint16
		allow [2]bool
	}{
		"soft":    {verbs.RoCEUDPPort, [2]bool{false, true}},
		"adapter": {verbs.RoCEUDPPort, [2]bool{true, false}},
		"port":    {verbs.RoCEUDPPort + 2, [2]bool{true, true}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newMixedHosts(t, c.port, c.allow)
			h.want(0)
			require.Equal(t, negotiate.ReasonNoCommonCarrier, h.native(0, 0))
		})
	}
}
