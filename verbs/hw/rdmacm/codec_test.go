package rdmacm

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/cm"
)

func at(s string) sockaddr { return sockaddr{AddrPort: netip.MustParseAddrPort(s)} }

// TestCommands compares the commands with the structs of rdma_user_cm.h: their sizes, where the answer goes, and where
// the fields are. The interface is that of little-endian hosts in this test.
func TestCommands(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("vectors are little-endian")
	}
	const answer = 0x1122334455667788
	param := connParam{qpn: 0x123456, private: []byte{0xaa, 0xbb}, srq: true, responderResources: 1, initiatorDepth: 2, retryCount: 6, rnrRetryCount: 7}
	where := "8877665544332211"
	zeros := func(n int) string { return strings.Repeat("00", n) }
	wireParam := "56341200" + zeros(4) + "aabb" + zeros(254) + "0201010200060701"
	in := "02001d2f0a4d0003" + zeros(120)
	in6 := "0a001d2f00000000" + "fe800000000000000000000000000001" + "07000000" + zeros(100)
	scoped := at("[fe80::1]:7471")
	scoped.scope = 7
	for _, c := range []struct {
		command command
		want    string // head and body
	}{
		{createID{uid: 5, space: cm.PortSpaceTCP, qp: verbs.QPTRC}, "00000000" + "1800" + "0400" + "0500000000000000" + where + "0601" + "02" + zeros(5)},
		{destroyID{9}, "01000000" + "1000" + "0400" + where + "09000000" + zeros(4)},
		{bind{9, at("10.77.0.3:7471")}, "14000000" + "8800" + "0000" + "09000000" + "1000" + "0000" + in},
		{
			resolveAddr{9, 2000, sockaddr{}, scoped},
			"15000000" + "1001" + "0000" + "09000000" + "d0070000" + "0000" + "1c00" + zeros(4) + zeros(128) + in6,
		},
		{resolveRoute{9, 2000}, "04000000" + "0800" + "0000" + "09000000" + "d0070000"},
		{query{9, queryAddr}, "13000000" + "1000" + "1801" + where + "09000000" + "00000000"},
		{query{9, queryPath}, "13000000" + "1000" + "a000" + where + "09000000" + "01000000"},
		{query{9, queryGID}, "13000000" + "1000" + "1801" + where + "09000000" + "02000000"},
		{initQPAttr{9, verbs.QPSRTR}, "0b000000" + "1000" + "9000" + where + "09000000" + "02000000"},
		{listen{9, 128}, "07000000" + "0800" + "0000" + "09000000" + "80000000"},
		{connect{9, param}, "06000000" + "2001" + "0000" + wireParam + "09000000" + zeros(12)},
		{accept{9, 5, &param}, "08000000" + "2801" + "0000" + "0500000000000000" + wireParam + "09000000" + zeros(12)},
		{accept{9, 5, nil}, "08000000" + "2801" + "0000" + "0500000000000000" + zeros(272) + "09000000" + zeros(12)},
		{reject{9, []byte{0xcc}}, "09000000" + "0801" + "0000" + "09000000" + "01" + "1c" + "0000" + "cc" + zeros(255)},
		{disconnect{9}, "0a000000" + "0400" + "0000" + "09000000"},
		{notify{9}, "0f000000" + "0800" + "0000" + "09000000" + "04000000"},
		{getEvent{}, "0c000000" + "0800" + "5001" + where},
	} {
		require.Equal(t, c.want, hex.EncodeToString(encode(c.command, answer)), "%v", c.command.number())
	}
}

// TestCommandsBounded: what does not fit is cut, and numbers the kernel adds have names.
func TestCommandsBounded(t *testing.T) {
	long := bytes.Repeat([]byte{1}, 1000)
	require.Len(t, encode(reject{1, long}, 0), headerSize+264)
	require.Len(t, encode(connect{1, connParam{private: long}}, 0), headerSize+288)
	require.Equal(t, "RESOLVE_ADDR", numResolveAddr.String())
	require.Equal(t, "ADDR_CHANGE", addrChange.String())
	require.Equal(t, "event 77", eventKind(77).String())
}

func TestSockaddr(t *testing.T) {
	for _, s := range []string{"10.77.0.3:7471", "[fd77::1]:1", "[::]:0", "0.0.0.0:65535"} {
		a := at(s)
		got, err := parseSockaddr(a.append(nil))
		require.NoError(t, err)
		require.Equal(t, a.AddrPort, got)
	}
	scoped := at("[fe80::1]:7471")
	scoped.scope = 7
	got, err := parseSockaddr(scoped.append(nil))
	require.NoError(t, err)
	require.Equal(t, "[fe80::1%7]:7471", got.String())
	got, err = parseSockaddr(make([]byte, sockaddrSize))
	require.NoError(t, err)
	require.False(t, got.IsValid())
	_, err = parseSockaddr(append(native.AppendUint16(nil, syscall.AF_UNIX), make([]byte, 126)...))
	require.ErrorIs(t, err, ErrMalformed)
	_, err = parseSockaddrIB(scoped.append(nil))
	require.ErrorIs(t, err, ErrMalformed)
}

// ibPath is an answer to queryPath as a kernel on InfiniBand makes it: no adapter of that kind was at hand, so it is
// built by hand from struct rdma_ucm_query_path_resp and IBTA vol. 1, 15.2.5.16. An alternate path is in front.
func ibPath(hops byte) []byte {
	b := native.AppendUint32(native.AppendUint32(nil, 2), 0)
	b = native.AppendUint32(native.AppendUint32(b, 1|1<<2|1<<3), 0) // GMP, ALTERNATE, OUTBOUND
	b = pad(b, 64)
	b = native.AppendUint32(native.AppendUint32(b, 1|1<<1|1<<3|1<<5), 0) // GMP, PRIMARY, BIDIRECTIONAL
	b = pad(b, 8)                                                        // service
	b = append(b, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 2, 0xc9, 3, 0, 0, 0, 2)
	b = append(b, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 2, 0xc9, 3, 0, 0, 0, 1)
	b = append(b, 0, 7, 0, 3)             // DLID 7, SLID 3
	b = append(b, 0, 0x12, 0x34, hops)    // flow label 0x00123.4, hop limit
	b = append(b, 0x20, 0x81, 0x80, 0x05) // traffic class, reversible and 1 path, P_Key 0x8005
	b = append(b, 0x00, 0xf3, 0x84, 0x87) // QoS class and SL 3, exactly MTU 2048, exactly rate 7
	b = append(b, 0x92, 0)                // exactly 4.096 us << 18, preference
	return pad(b, 6)
}

func TestPathOnInfiniBand(t *testing.T) {
	p, err := parsePath(ibPath(0))
	require.NoError(t, err)
	require.Equal(t, Path{
		SGID: verbs.GIDOf(netip.MustParseAddr("fe80::2:c903:0:1")), DGID: verbs.GIDOf(netip.MustParseAddr("fe80::2:c903:0:2")),
		SLID: 3, DLID: 7, PKey: 0x8005, SL: 3, MTU: verbs.MTU2048, Rate: 7, FlowLabel: 0x1234, TrafficClass: 0x20, PacketLifetime: 18,
	}, p)
	require.False(t, p.Global())
	p, err = parsePath(ibPath(64))
	require.NoError(t, err)
	require.True(t, p.Global())

	_, err = parsePath(make([]byte, pathAnswerSize))
	require.ErrorIs(t, err, ErrMalformed)
	bad := ibPath(0)
	bad[8+pathSize+8+54] = 0x80 // MTU 0
	_, err = parsePath(bad)
	require.ErrorIs(t, err, ErrMalformed)
}

// ibQPAttr is an answer to initQPAttr as a kernel on InfiniBand makes it, built by hand from struct ib_uverbs_qp_attr.
func ibQPAttr() []byte {
	b := native.AppendUint32(nil, uint32(verbs.RTRMask)|1<<14|1<<18|0xe00000)
	for _, v := range []uint32{2, 0, 4, 1, 0, 0x111111, 0x222222, 0x000777, 2} {
		b = native.AppendUint32(b, v)
	}
	ah := pad(nil, 24)                                        // no global header
	ah = append(native.AppendUint16(ah, 7), 3, 1, 0, 0, 2, 0) // DLID, SL, path bits, rate, global, port
	b = append(append(b, ah...), pad(nil, ahSize)...)
	b = pad(b, 20)
	b = native.AppendUint16(native.AppendUint16(b, 4), 0) // P_Key index
	return append(b, 0, 0, 5, 6, 9, 2, 18, 7, 6, 0, 0, 0, 0, 0, 0, 0)
}

func TestQPAttrOnInfiniBand(t *testing.T) {
	var a qpAttr
	require.NoError(t, a.parse(ibQPAttr()))
	require.Equal(t, qpAttr{
		mask: verbs.RTRMask,
		QPAttr: verbs.QPAttr{
			State: verbs.QPSRTR, PathMTU: verbs.MTU2048, RQPSN: 0x111111, SQPSN: 0x222222, DestQPNum: 0x777, Access: verbs.AccessRemoteWrite,
			AH: verbs.AHAttr{DLID: 7, SL: 3, SrcPathBits: 1, Port: 2}, PKeyIndex: 4, MaxRDAtomic: 5, MaxDestRDAtomic: 6,
			MinRNRTimer: 9, Port: 2, Timeout: 18, RetryCnt: 7, RNRRetry: 6,
		},
	}, a)
	bad := ibQPAttr()
	native.PutUint32(bad[4:], 9)
	require.ErrorIs(t, a.parse(bad), ErrMalformed)
	bad = ibQPAttr()
	native.PutUint32(bad[12:], 6)
	require.ErrorIs(t, a.parse(bad), ErrMalformed)
}

// ibGIDs is an answer to queryGID on InfiniBand, built by hand from struct sockaddr_ib.
func ibGIDs() []byte {
	ib := func(last byte) []byte {
		s := binary.BigEndian.AppendUint16(native.AppendUint16(nil, familyIB), 0x8005)
		s = append(pad(s, 4), 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 2, 0xc9, 3, 0, 0, 0, last)
		return pad(s, sockaddrSize-len(s))
	}
	b := append(pad(nil, 8), 1, 0, 0x80, 0x05)
	b = native.AppendUint16(native.AppendUint16(b, sockaddrIBLen), sockaddrIBLen)
	return pad(append(append(b, ib(1)...), ib(2)...), 8)
}

func TestGIDsOnInfiniBand(t *testing.T) {
	src, dst, err := parseGIDs(ibGIDs())
	require.NoError(t, err)
	require.Equal(t, "fe80::2:c903:0:1", src.String())
	require.Equal(t, "fe80::2:c903:0:2", dst.String())
}

// answers are what a kernel has said, by command.
func answers(t testing.TB, file string) map[string][][]byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	require.NoError(t, err)
	all := map[string][][]byte{}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 4 || f[2] != "answer" {
			continue
		}
		name := f[0]
		if name == "QUERY" || name == "INIT_QP_ATTR" {
			name += " " + f[1][len(f[1])-8:] // what is asked for
		}
		b, err := hex.DecodeString(f[3])
		require.NoError(t, err)
		all[name] = append(all[name], b)
	}
	return all
}

// TestRecordedConnection reads what Linux 6.12 said to the two ends of a connection on rxe.
func TestRecordedConnection(t *testing.T) {
	all := answers(t, "Connection.txt")
	var kinds []eventKind
	for _, b := range all["GET_EVENT"] {
		var ev event
		require.NoError(t, ev.parse(b))
		require.Zero(t, ev.status)
		kinds = append(kinds, ev.kind)
		switch ev.kind {
		case connectRequest:
			require.Equal(t, "hello", strings.TrimRight(string(ev.param.private), "\x00"))
			require.Len(t, ev.param.private, cm.MaxDialPrivate)
			require.EqualValues(t, 6, ev.param.retryCount)
		case connectResponse:
			require.Equal(t, "welcome", strings.TrimRight(string(ev.param.private), "\x00"))
			require.Len(t, ev.param.private, cm.MaxREPPrivate)
			require.EqualValues(t, 5, ev.param.rnrRetryCount)
		default:
		}
	}
	for _, want := range []eventKind{addrResolved, routeResolved, connectRequest, connectResponse, established, disconnected} {
		require.Contains(t, kinds, want)
	}
	for _, b := range all["QUERY 02000000"] {
		src, dst, err := parseGIDs(b)
		require.NoError(t, err)
		require.Equal(t, src, dst)
	}
	listeners, ends := 0, 0
	for _, b := range all["QUERY 00000000"] {
		var a addrAnswer
		require.NoError(t, a.parse(b))
		require.EqualValues(t, 1, a.port)
		require.Zero(t, a.pkey, "of an InfiniBand interface only")
		require.EqualValues(t, 0x505400fffe770002, a.nodeGUID)
		if a.dst.Addr().IsUnspecified() {
			listeners++
			require.EqualValues(t, 7471, a.src.Port())
			continue
		}
		ends++
		require.Equal(t, a.src.Addr(), a.dst.Addr())
	}
	require.Equal(t, []int{2, 4}, []int{listeners, ends})
	for state, mask := range map[string]verbs.QPAttrMask{"02000000": verbs.RTRMask, "03000000": verbs.RTSMask} {
		require.NotEmpty(t, all["INIT_QP_ATTR "+state])
		for _, b := range all["INIT_QP_ATTR "+state] {
			var a qpAttr
			require.NoError(t, a.parse(b))
			require.Equal(t, mask, a.mask)
			if mask == verbs.RTRMask {
				require.True(t, a.global)
				require.Equal(t, verbs.MTU1024, a.PathMTU)
				require.EqualValues(t, 64, a.AH.HopLimit)
			}
		}
	}
}

// TestRecordedRefusals reads how Linux 6.12 tells of refusals.
func TestRecordedRefusals(t *testing.T) {
	var reasons []cm.RejectReason
	for _, b := range answers(t, "Refusals.txt")["GET_EVENT"] {
		var ev event
		require.NoError(t, ev.parse(b))
		var r *cm.RejectError
		if err := ev.failure(); err != nil {
			require.ErrorAs(t, err, &r)
			reasons = append(reasons, r.Reason)
		}
	}
	require.Equal(t, []cm.RejectReason{cm.RejectInvalidServiceID, cm.RejectConsumerDefined, cm.RejectConsumerDefined}, reasons)
}

// TestRecordedPath reads paths on rxe.
func TestRecordedPath(t *testing.T) {
	all := answers(t, "Path.txt")["QUERY 01000000"]
	require.Len(t, all, 2)
	for i, addr := range []string{"10.77.0.2", "fd77::2"} {
		p, err := parsePath(all[i])
		require.NoError(t, err)
		require.Equal(t, verbs.GIDOf(netip.MustParseAddr(addr)), p.DGID)
		require.Equal(t, verbs.MTU1024, p.MTU)
		require.EqualValues(t, 64, p.HopLimit)
		require.EqualValues(t, 0xffff, p.PKey)
		require.True(t, p.Global())
	}
}

// parsers are all that reads what the kernel writes.
var parsers = map[string]func(b []byte) error{
	"event":      func(b []byte) error { return new(event).parse(b) },
	"conn param": func(b []byte) error { return new(connParam).parse(b) },
	"qp attr":    func(b []byte) error { return new(qpAttr).parse(b) },
	"addrs":      func(b []byte) error { return new(addrAnswer).parse(b) },
	"gids":       func(b []byte) error { _, _, err := parseGIDs(b); return err },
	"path":       func(b []byte) error { _, err := parsePath(b); return err },
	"record":     func(b []byte) error { return new(Path).parse(b) },
	"sockaddr":   func(b []byte) error { _, err := parseSockaddr(b); return err },
	"sockaddrIB": func(b []byte) error { _, err := parseSockaddrIB(b); return err },
}

// whole are answers that are as short as may be.
func whole() map[string][]byte {
	param := connParam{qpn: 1, private: []byte("x")}
	gids := ibGIDs()
	addrs := append(append(gids[:16:16], at("10.0.0.1:1").append(nil)...), append(at("10.0.0.2:2").append(nil), make([]byte, 8)...)...)
	return map[string][]byte{
		"event":      pad(param.append(pad(nil, eventHeadSize)), eventUDSize-connParamSize),
		"conn param": param.append(nil),
		"qp attr":    ibQPAttr(),
		"addrs":      addrs,
		"gids":       gids,
		"path":       ibPath(0),
		"record":     ibPath(0)[8+pathSize+8:],
		"sockaddr":   at("10.0.0.1:1").append(nil),
		"sockaddrIB": gids[16 : 16+sockaddrIBLen],
	}
}

// TestTruncated: of an answer that is cut short nothing is taken.
func TestTruncated(t *testing.T) {
	for name, b := range whole() {
		parse := parsers[name]
		require.NoError(t, parse(b), name)
		for n := range b {
			require.ErrorIs(t, parse(bytes.Clone(b[:n])), ErrMalformed, "%s of %d bytes", name, n)
		}
	}
	require.Len(t, whole(), len(parsers))
}

// FuzzParse: no answer of the kernel leads astray, and what is read of an event can be written again.
func FuzzParse(f *testing.F) {
	for _, b := range whole() {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, parse := range parsers {
			_ = parse(b)
		}
		var ev event
		if ev.parse(b) != nil {
			return
		}
		_ = ev.failure()
		var again connParam
		require.NoError(t, again.parse(ev.param.append(nil)))
		require.Equal(t, ev.param, again)
	})
}
