package rdmacm

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
)

// TestCommands compares the commands with the structs of rdma_user_cm.h: their sizes, where the answer goes, and where
// the fields are. The interface is that of little-endian hosts in this test.
func TestCommands(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("vectors are little-endian")
	}
	const answer = 0x1122334455667788
	where := "8877665544332211"
	zeros := func(n int) string { return strings.Repeat("00", n) }
	in := "02001d2f0a4d0003" + zeros(120)
	in6 := "0a001d2f00000000" + "fe800000000000000000000000000001" + "07000000" + zeros(100)
	plain := Sockaddr{AddrPort: netip.MustParseAddrPort("10.77.0.3:7471")}
	scoped := Sockaddr{AddrPort: netip.MustParseAddrPort("[fe80::1]:7471"), Scope: 7}
	for _, c := range []struct {
		command Command
		want    string // head and body
	}{
		{CreateID{UID: 5, Space: portSpaceTCP, QP: verbs.QPTRC}, "00000000" + "1800" + "0400" + "0500000000000000" + where + "0601" + "02" + zeros(5)},
		{
			ResolveAddr{9, 2000, Sockaddr{}, scoped},
			"15000000" + "1001" + "0000" + "09000000" + "d0070000" + "0000" + "1c00" + zeros(4) + zeros(128) + in6,
		},
		{
			ResolveAddr{9, 2000, plain, plain},
			"15000000" + "1001" + "0000" + "09000000" + "d0070000" + "1000" + "1000" + zeros(4) + in + in,
		},
		{ResolveRoute{9, 2000}, "04000000" + "0800" + "0000" + "09000000" + "d0070000"},
		{Query{9, QueryAddr}, "13000000" + "1000" + "1801" + where + "09000000" + "00000000"},
		{Query{9, QueryPath}, "13000000" + "1000" + "a000" + where + "09000000" + "01000000"},
		{Query{9, QueryGID}, "13000000" + "1000" + "1801" + where + "09000000" + "02000000"},
		{InitQPAttr{9, verbs.QPSRTR}, "0b000000" + "1000" + "9000" + where + "09000000" + "02000000"},
		{GetEvent{}, "0c000000" + "0800" + "5001" + where},
	} {
		require.Equal(t, c.want, hex.EncodeToString(Encode(c.command, answer)), "%v", c.command.Number())
	}
}

// TestNames: numbers that the kernel adds have names, too.
func TestNames(t *testing.T) {
	require.Equal(t, "RESOLVE_ADDR", NumResolveAddr.String())
	require.Equal(t, "ADDR_CHANGE", AddrChange.String())
	require.Equal(t, "event 77", EventKind(77).String())
}

// ibPath is an answer to QueryPath as a kernel on InfiniBand makes it: no adapter of that kind was at hand, so it is
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

// ibQPAttr is an answer to InitQPAttr as a kernel on InfiniBand makes it, built by hand from struct ib_uverbs_qp_attr.
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
	var a QPAttr
	require.NoError(t, a.Parse(ibQPAttr()))
	require.Equal(t, QPAttr{
		Mask: verbs.RTRMask,
		QPAttr: verbs.QPAttr{
			State: verbs.QPSRTR, PathMTU: verbs.MTU2048, RQPSN: 0x111111, SQPSN: 0x222222, DestQPNum: 0x777, Access: verbs.AccessRemoteWrite,
			AH: verbs.AHAttr{DLID: 7, SL: 3, SrcPathBits: 1, Port: 2}, PKeyIndex: 4, MaxRDAtomic: 5, MaxDestRDAtomic: 6,
			MinRNRTimer: 9, Port: 2, Timeout: 18, RetryCnt: 7, RNRRetry: 6,
		},
	}, a)
	bad := ibQPAttr()
	native.PutUint32(bad[4:], 9)
	require.ErrorIs(t, a.Parse(bad), ErrMalformed)
	bad = ibQPAttr()
	native.PutUint32(bad[12:], 6)
	require.ErrorIs(t, a.Parse(bad), ErrMalformed)
}

// TestRecordedPath reads paths that Linux 6.12 has given on rxe.
func TestRecordedPath(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "Path.txt"))
	require.NoError(t, err)
	want := []string{"10.77.0.2", "fd77::2"}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if f[0] != "QUERY" || f[2] != "answer" {
			continue
		}
		require.NotEmpty(t, want)
		b, err := hex.DecodeString(f[3])
		require.NoError(t, err)
		p, err := parsePath(b)
		require.NoError(t, err)
		require.Equal(t, verbs.GIDOf(netip.MustParseAddr(want[0])), p.DGID)
		require.Equal(t, verbs.MTU1024, p.MTU)
		require.EqualValues(t, 64, p.HopLimit)
		require.EqualValues(t, 0xffff, p.PKey)
		require.True(t, p.Global())
		want = want[1:]
	}
	require.Empty(t, want)
}

// parsers are all that reads what the kernel writes.
var parsers = map[string]func(b []byte) error{
	"event":   func(b []byte) error { _, err := new(Event).Parse(b); return err },
	"qp attr": func(b []byte) error { return new(QPAttr).Parse(b) },
	"path":    func(b []byte) error { _, err := parsePath(b); return err },
	"record":  func(b []byte) error { return new(Path).parse(b) },
}

// whole are answers that are as short as may be.
func whole() map[string][]byte {
	return map[string][]byte{
		"event":   make([]byte, eventMinSize),
		"qp attr": ibQPAttr(),
		"path":    ibPath(0),
		"record":  ibPath(0)[8+pathSize+8:],
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

// FuzzParse: no answer of the kernel leads astray.
func FuzzParse(f *testing.F) {
	for _, b := range whole() {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, parse := range parsers {
			_ = parse(b)
		}
		var ev Event
		if _, err := ev.Parse(b); err == nil {
			_ = ev.Failure()
		}
	})
}
