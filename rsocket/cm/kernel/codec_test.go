package kernel

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

	"github.com/smcgw/smcgw/rsocket/cm"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/rdmacm"
)

func at(s string) rdmacm.Sockaddr { return rdmacm.Sockaddr{AddrPort: netip.MustParseAddrPort(s)} }

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
	for _, c := range []struct {
		command rdmacm.Command
		want    string // head and body
	}{
		{destroyID{9}, "01000000" + "1000" + "0400" + where + "09000000" + zeros(4)},
		{bind{9, at("10.77.0.3:7471")}, "14000000" + "8800" + "0000" + "09000000" + "1000" + "0000" + in},
		{listen{9, 128}, "07000000" + "0800" + "0000" + "09000000" + "80000000"},
		{connect{9, param}, "06000000" + "2001" + "0000" + wireParam + "09000000" + zeros(12)},
		{accept{9, 5, &param}, "08000000" + "2801" + "0000" + "0500000000000000" + wireParam + "09000000" + zeros(12)},
		{accept{9, 5, nil}, "08000000" + "2801" + "0000" + "0500000000000000" + zeros(272) + "09000000" + zeros(12)},
		{reject{9, []byte{0xcc}}, "09000000" + "0801" + "0000" + "09000000" + "01" + "1c" + "0000" + "cc" + zeros(255)},
		{disconnect{9}, "0a000000" + "0400" + "0000" + "09000000"},
		{notify{9}, "0f000000" + "0800" + "0000" + "09000000" + "04000000"},
	} {
		require.Equal(t, c.want, hex.EncodeToString(rdmacm.Encode(c.command, answer)), "%v", c.command.Number())
	}
}

// TestCommandsBounded: what does not fit is cut.
func TestCommandsBounded(t *testing.T) {
	long := bytes.Repeat([]byte{1}, 1000)
	require.Len(t, rdmacm.Encode(reject{1, long}, 0), 8+264)
	require.Len(t, rdmacm.Encode(connect{1, connParam{private: long}}, 0), 8+288)
}

func TestSockaddr(t *testing.T) {
	for _, s := range []string{"10.77.0.3:7471", "[fd77::1]:1", "[::]:0", "0.0.0.0:65535"} {
		a := at(s)
		got, err := parseSockaddr(a.Append(nil))
		require.NoError(t, err)
		require.Equal(t, a.AddrPort, got)
	}
	scoped := at("[fe80::1]:7471")
	scoped.Scope = 7
	got, err := parseSockaddr(scoped.Append(nil))
	require.NoError(t, err)
	require.Equal(t, "[fe80::1%7]:7471", got.String())
	got, err = parseSockaddr(make([]byte, rdmacm.SockaddrSize))
	require.NoError(t, err)
	require.False(t, got.IsValid())
	_, err = parseSockaddr(append(native.AppendUint16(nil, syscall.AF_UNIX), make([]byte, 126)...))
	require.ErrorIs(t, err, rdmacm.ErrMalformed)
	_, err = parseSockaddrIB(scoped.Append(nil))
	require.ErrorIs(t, err, rdmacm.ErrMalformed)
}

// ibGIDs is an answer to rdmacm.QueryGID on InfiniBand, built by hand from struct sockaddr_ib.
func ibGIDs() []byte {
	ib := func(last byte) []byte {
		s := binary.BigEndian.AppendUint16(native.AppendUint16(nil, familyIB), 0x8005)
		s = append(pad(s, 4), 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 2, 0xc9, 3, 0, 0, 0, last)
		return pad(s, rdmacm.SockaddrSize-len(s))
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
	var kinds []rdmacm.EventKind
	for _, b := range all["GET_EVENT"] {
		var ev event
		require.NoError(t, ev.parse(b))
		require.Zero(t, ev.Status)
		kinds = append(kinds, ev.Kind)
		switch ev.Kind {
		case rdmacm.ConnectRequest:
			require.Equal(t, "hello", strings.TrimRight(string(ev.param.private), "\x00"))
			require.Len(t, ev.param.private, cm.MaxDialPrivate)
			require.EqualValues(t, 6, ev.param.retryCount)
		case rdmacm.ConnectResponse:
			require.Equal(t, "welcome", strings.TrimRight(string(ev.param.private), "\x00"))
			require.Len(t, ev.param.private, cm.MaxREPPrivate)
			require.EqualValues(t, 5, ev.param.rnrRetryCount)
		default:
		}
	}
	for _, want := range []rdmacm.EventKind{rdmacm.AddrResolved, rdmacm.RouteResolved, rdmacm.ConnectRequest, rdmacm.ConnectResponse, rdmacm.Established, rdmacm.Disconnected} {
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
			var a rdmacm.QPAttr
			require.NoError(t, a.Parse(b))
			require.Equal(t, mask, a.Mask)
			if mask == verbs.RTRMask {
				require.True(t, a.Global)
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

// parsers are all that reads what the kernel writes.
var parsers = map[string]func(b []byte) error{
	"event":      func(b []byte) error { return new(event).parse(b) },
	"conn param": func(b []byte) error { return new(connParam).parse(b) },
	"addrs":      func(b []byte) error { return new(addrAnswer).parse(b) },
	"gids":       func(b []byte) error { _, _, err := parseGIDs(b); return err },
	"sockaddr":   func(b []byte) error { _, err := parseSockaddr(b); return err },
	"sockaddrIB": func(b []byte) error { _, err := parseSockaddrIB(b); return err },
}

// whole are answers that are as short as may be.
func whole() map[string][]byte {
	param := connParam{qpn: 1, private: []byte("x")}
	gids := ibGIDs()
	addrs := append(append(gids[:16:16], at("10.0.0.1:1").Append(nil)...), append(at("10.0.0.2:2").Append(nil), make([]byte, 8)...)...)
	return map[string][]byte{
		"event":      pad(param.append(pad(nil, 20)), 304-connParamSize),
		"conn param": param.append(nil),
		"addrs":      addrs,
		"gids":       gids,
		"sockaddr":   at("10.0.0.1:1").Append(nil),
		"sockaddrIB": gids[16 : 16+sockaddrIBLen],
	}
}

// TestTruncated: of an answer that is cut short nothing is taken.
func TestTruncated(t *testing.T) {
	for name, b := range whole() {
		parse := parsers[name]
		require.NoError(t, parse(b), name)
		for n := range b {
			require.ErrorIs(t, parse(bytes.Clone(b[:n])), rdmacm.ErrMalformed, "%s of %d bytes", name, n)
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
