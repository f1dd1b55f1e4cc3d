package cm

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/internal/golden"
	"go.uber.org/goleak"

	"github.com/smcgw/smcgw/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// captures returns the datagrams of testdata/captures.txt by name.
func captures(t testing.TB) map[string][]byte {
	text, err := os.ReadFile("testdata/captures.txt")
	require.NoError(t, err)
	all := map[string][]byte{}
	for line := range strings.Lines(string(text)) {
		name, digits, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || name == "#" {
			continue
		}
		b, err := hex.DecodeString(digits)
		require.NoError(t, err, name)
		all[name] = append(b, make([]byte, MADSize-len(b))...)
	}
	require.Equal(t, 21, len(all))
	return all
}

// What the kernel sent is encoded to the same bytes again.
func TestCapturesRoundTrip(t *testing.T) {
	for name, b := range captures(t) {
		tid, m, err := Parse(b)
		require.NoError(t, err, name)
		require.Equal(t, hex.EncodeToString(b), hex.EncodeToString(Append(nil, tid, m)), name)
	}
}

func TestREQ(t *testing.T) {
	tid, m, err := Parse(captures(t)["rstream-rxe-3"])
	require.NoError(t, err)
	require.EqualValues(t, 0x00000002c2878015, tid)
	private := m.(*REQ).PrivateData
	require.Len(t, private, MaxREQPrivate)
	require.Equal(t, &REQ{
		LocalID: 0x158087c2, Service: ServiceOf(PortSpaceTCP, 7471), CAGUID: 0x505400fffe770003, QPN: 0x11,
		RemoteTimeout: 20, Transport: TransportRC, FlowControl: true, PSN: 0x7763b7, LocalTimeout: 20, RetryCount: 7,
		PKey: 0xffff, MTU: verbs.MTU1024, RNRRetry: 7, MaxCMRetries: 15,
		Primary: Path{
			LocalLID: permissiveLID, RemoteLID: permissiveLID,
			LocalGID:  verbs.GIDOf(netip.MustParseAddr("10.77.0.3")),
			RemoteGID: verbs.GIDOf(netip.MustParseAddr("10.77.0.2")),
			FlowLabel: 0x1dc23, HopLimit: 64, AckTimeout: 17,
		},
		PrivateData: private,
	}, m)
	var h AddrHeader
	rest, err := h.Parse(private)
	require.NoError(t, err)
	require.Equal(t, AddrHeader{
		Source: netip.MustParseAddrPort("10.77.0.3:37516"), Destination: netip.MustParseAddr("10.77.0.2"),
	}, h)
	require.Equal(t, "0102018000000000"+"000055c7ff025000", hex.EncodeToString(rest[:16]), "the connection data of rsocket")
	require.Equal(t, private[:AddrHeaderSize], h.Append(nil))
}

func TestREQOverIPv6(t *testing.T) {
	_, m, err := Parse(captures(t)["rstream-rxe-ipv6-3"])
	require.NoError(t, err)
	var h AddrHeader
	_, err = h.Parse(m.(*REQ).PrivateData)
	require.NoError(t, err)
	require.Equal(t, netip.MustParseAddrPort("[fd77::3]:50120"), h.Source)
	require.Equal(t, netip.MustParseAddr("fd77::2"), h.Destination)
	require.Equal(t, m.(*REQ).PrivateData[:AddrHeaderSize], h.Append(nil))
}

func TestREP(t *testing.T) {
	_, m, err := Parse(captures(t)["rstream-rxe-4"])
	require.NoError(t, err)
	rep := m.(*REP)
	require.Len(t, rep.PrivateData, MaxREPPrivate)
	require.Equal(t, "0102018000000000"+"00007fe8b8003000", hex.EncodeToString(rep.PrivateData[:16]))
	rep.PrivateData = nil
	require.Equal(t, &REP{
		LocalID: 0x61b4d3cf, RemoteID: 0x158087c2, QPN: 0x11, PSN: 0x534b75, AckDelay: 15, FlowControl: true,
		RNRRetry: 7, CAGUID: 0x505400fffe770002,
	}, rep)
}

// The end of a connection, and of an attempt.
func TestShortMessages(t *testing.T) {
	all := captures(t)
	parsed := func(name string) Message {
		_, m, err := Parse(all[name])
		require.NoError(t, err)
		return m
	}
	rtu := parsed("rstream-rxe-5").(*RTU)
	require.Len(t, rtu.PrivateData, MaxRTUPrivate)
	require.Equal(t, [2]uint32{0x158087c2, 0x61b4d3cf}, [2]uint32{rtu.LocalID, rtu.RemoteID})
	dreq := parsed("rstream-rxe-64").(*DREQ)
	require.Len(t, dreq.PrivateData, MaxDREQPrivate)
	require.EqualValues(t, 0x11, dreq.RemoteQPN)
	drep := parsed("rstream-rxe-65").(*DREP)
	require.Len(t, drep.PrivateData, MaxDREPPrivate)
	require.Equal(t, [2]uint32{dreq.RemoteID, dreq.LocalID}, [2]uint32{drep.LocalID, drep.RemoteID})
	rej := parsed("guest-to-host-cm-14").(*REJ)
	require.Len(t, rej.PrivateData, MaxREJPrivate)
	require.Equal(t, RejectTimeout, rej.Reason)
	require.Equal(t, KindOther, rej.Message)
	require.Equal(t, "505400fffe770002", hex.EncodeToString(rej.ARI))
	require.EqualValues(t, 0x2da2aa0b, rej.LocalID)
	require.Zero(t, rej.RemoteID)
}

func TestSIDR(t *testing.T) {
	all := captures(t)
	parsed := func(name string) Message {
		_, m, err := Parse(all[name])
		require.NoError(t, err)
		return m
	}
	for name, source := range map[string]string{"udaddy-25": "10.77.0.2:41099", "udaddy-29": "[fd77::2]:57273"} {
		req := parsed(name).(*SIDRREQ)
		require.Len(t, req.PrivateData, MaxSIDRREQPrivate)
		require.Equal(t, ServiceOf(PortSpaceUDP, 7174), req.Service)
		require.EqualValues(t, 0xffff, req.PKey)
		var h AddrHeader
		_, err := h.Parse(req.PrivateData)
		require.NoError(t, err)
		require.Equal(t, source, h.Source.String())
	}
	rep := parsed("udaddy-17").(*SIDRREP)
	require.Len(t, rep.PrivateData, MaxSIDRREPPrivate)
	rep.PrivateData = nil
	require.Equal(t, &SIDRREP{
		RequestID: 0x908b9ed8, QPN: 0x14, Service: ServiceOf(PortSpaceUDP, 7174), QKey: 0x01234567, Info: []byte{},
	}, rep)
	require.Equal(t, SIDRRejected, parsed("udaddy-19").(*SIDRREP).Status)
	rej := parsed("ucmatose-12").(*REJ)
	require.Equal(t, RejectInvalidServiceID, rej.Reason)
	require.Equal(t, KindREQ, rej.Message)
	require.Zero(t, rej.LocalID)
}

// examples are messages with every field set.
func examples() []Message {
	private := []byte("private data")
	return []Message{
		&REQ{
			LocalID: 1, Service: 2, CAGUID: 3, QKey: 4, QPN: 0xabcdef, ResponderResources: 5, InitiatorDepth: 6,
			RemoteTimeout: 31, Transport: TransportUC, FlowControl: true, PSN: 0xfedcba, LocalTimeout: 30, RetryCount: 7,
			PKey: 0x8001, MTU: verbs.MTU4096, RNRRetry: 6, MaxCMRetries: 15, SRQ: true, ExtTransport: 1,
			Primary: Path{
				LocalLID: 1, RemoteLID: 2, LocalGID: verbs.GID{3}, RemoteGID: verbs.GID{4}, FlowLabel: 0xfffff,
				PacketRate: 63, TrafficClass: 5, HopLimit: 6, SL: 15, SubnetLocal: true, AckTimeout: 31,
			},
			Alternate:   Path{LocalLID: 7, AckTimeout: 1},
			PrivateData: private,
		},
		&MRA{LocalID: 1, RemoteID: 2, Message: KindOther, ServiceTimeout: 31, PrivateData: private},
		&REJ{LocalID: 1, RemoteID: 2, Message: KindREP, Reason: RejectInvalidMTU, ARI: bytes.Repeat([]byte{7}, maxARI), PrivateData: private},
		&REP{
			LocalID: 1, RemoteID: 2, QKey: 3, QPN: 0xabcdef, PSN: 0xfedcba, ResponderResources: 4, InitiatorDepth: 5,
			AckDelay: 31, FailoverAccepted: 3, FlowControl: true, RNRRetry: 7, SRQ: true, CAGUID: 6, PrivateData: private,
		},
		&RTU{LocalID: 1, RemoteID: 2, PrivateData: private},
		&DREQ{LocalID: 1, RemoteID: 2, RemoteQPN: 0xabcdef, PrivateData: private},
		&DREP{LocalID: 1, RemoteID: 2, PrivateData: private},
		&SIDRREQ{RequestID: 1, PKey: 0xffff, Service: 2, PrivateData: private},
		&SIDRREP{RequestID: 1, Status: SIDRRejected, QPN: 0xabcdef, Service: 2, QKey: 0x01234567, Info: []byte{8}, PrivateData: private},
	}
}

func TestRoundTrip(t *testing.T) {
	for _, m := range examples() {
		b := Append(nil, 42, m)
		require.Len(t, b, MADSize)
		tid, got, err := Parse(b)
		require.NoError(t, err)
		require.EqualValues(t, 42, tid)
		require.Equal(t, m.Attr(), got.Attr())
		requireSame(t, m, got)
		for n := range b {
			_, _, err := Parse(b[:n])
			require.ErrorIs(t, err, ErrTruncated)
		}
	}
}

// requireSame compares messages but for the padding of private data.
func requireSame(t testing.TB, want, got Message) {
	t.Helper()
	p := private(got)
	*p = bytes.TrimRight(*p, "\x00")
	require.Equal(t, want, got)
}

func private(m Message) *[]byte {
	switch m := m.(type) {
	case *REQ:
		return &m.PrivateData
	case *MRA:
		return &m.PrivateData
	case *REJ:
		return &m.PrivateData
	case *REP:
		return &m.PrivateData
	case *RTU:
		return &m.PrivateData
	case *DREQ:
		return &m.PrivateData
	case *DREP:
		return &m.PrivateData
	case *SIDRREQ:
		return &m.PrivateData
	case *SIDRREP:
		return &m.PrivateData
	}
	return nil
}

func TestParseRefuses(t *testing.T) {
	good := Append(nil, 1, &RTU{})
	for name, c := range map[string]struct {
		change func(b []byte)
		want   error
	}{
		"base version":  {func(b []byte) { b[0] = 2 }, ErrNotCM},
		"class":         {func(b []byte) { b[1] = 3 }, ErrNotCM},
		"class version": {func(b []byte) { b[2] = 1 }, ErrNotCM},
		"method":        {func(b []byte) { b[3] = 1 }, ErrNotCM},
		"LAP":           {func(b []byte) { b[17] = 0x19 }, ErrUnknownMessage},
		"ClassPortInfo": {func(b []byte) { b[17] = 0x01 }, ErrUnknownMessage},
		"ARI":           {func(b []byte) { b[17], b[madHeader+9] = byte(AttrREJ), 73<<1 }, errARI},
		"SIDR info":     {func(b []byte) { b[17], b[madHeader+5] = byte(AttrSIDRREP), 73 }, errInfo},
	} {
		b := bytes.Clone(good)
		c.change(b)
		_, _, err := Parse(b)
		require.ErrorIs(t, err, c.want, name)
	}
}

func TestAddrHeaderRefuses(t *testing.T) {
	h := AddrHeader{Source: netip.MustParseAddrPort("10.0.0.1:1"), Destination: netip.MustParseAddr("10.0.0.2")}
	b := h.Append(nil)
	require.Len(t, b, AddrHeaderSize)
	for n := range b {
		_, err := new(AddrHeader).Parse(b[:n])
		require.ErrorIs(t, err, errAddrHeader)
	}
	for _, v := range []byte{0x00, 0x50, 0x60, 0xf0} { // 6: the address is an IPv4 one after all
		c := bytes.Clone(b)
		c[1] = v
		if v == 0x60 {
			c[14], c[15] = 0xff, 0xff
		}
		_, err := new(AddrHeader).Parse(c)
		require.ErrorIs(t, err, errAddrHeader)
	}
	b[0] = 1
	_, err := new(AddrHeader).Parse(b)
	require.ErrorIs(t, err, errAddrHeader)
}

func TestServiceID(t *testing.T) {
	s := ServiceOf(PortSpaceTCP, 20000)
	require.EqualValues(t, 0x0000000001064e20, s)
	require.Equal(t, PortSpaceTCP, s.PortSpace())
	require.EqualValues(t, 20000, s.Port())
	require.EqualValues(t, 0x0000000001114e20, ServiceOf(PortSpaceUDP, 20000))
	require.EqualValues(t, 0x00000000013f4e20, ServiceOf(PortSpaceIB, 20000))
	require.EqualValues(t, 0x0000000000024e20, ServiceOf(PortSpaceIPoIB, 20000))
}

func TestNames(t *testing.T) {
	require.Equal(t, "REQ", AttrREQ.String())
	require.Equal(t, "SIDR_REP", AttrSIDRREP.String())
	require.Equal(t, "ATTR(1)", AttrID(1).String())
	require.Equal(t, "invalid service ID", RejectInvalidServiceID.String())
	require.Equal(t, "consumer defined", RejectConsumerDefined.String())
	require.Equal(t, "invalid RNR retry", RejectInvalidRNRRetry.String())
	require.Equal(t, "REJ(0)", RejectReason(0).String())
}

func TestMessagesTruncated(t *testing.T) {
	for _, m := range examples() {
		whole := Append(nil, 7, m)
		for n := range whole {
			_, _, err := Parse(whole[:n])
			require.ErrorIs(t, err, ErrTruncated, "%v cut to %d", m.Attr(), n)
		}
	}
}

// Whatever can be parsed is the same after being encoded and parsed again.
func FuzzParse(f *testing.F) {
	for _, b := range captures(f) {
		f.Add(b)
	}
	for _, m := range examples() {
		f.Add(Append(nil, 7, m))
	}
	type mad struct {
		tid uint64
		m   Message
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		golden.RoundTrip(t, b, func(b []byte) (v mad, err error) {
			v.tid, v.m, err = Parse(b)
			return v, err
		}, func(v mad) []byte { return Append(nil, v.tid, v.m) })
	})
}

func FuzzAddrHeader(f *testing.F) {
	_, m, err := Parse(captures(f)["rstream-rxe-3"])
	require.NoError(f, err)
	f.Add(m.(*REQ).PrivateData)
	f.Fuzz(func(t *testing.T, b []byte) {
		var h, h2 AddrHeader
		if _, err := h.Parse(b); err != nil {
			return
		}
		rest, err := h2.Parse(h.Append(nil))
		require.NoError(t, err)
		require.Empty(t, rest)
		require.Equal(t, h, h2)
	})
}
