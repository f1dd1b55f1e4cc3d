package e2e

import (
	endian "encoding/binary"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/negotiate/resolve"
	"github.com/smcgw/smcgw/packet"
)

// floods are the kinds of floods.
var floods = []struct {
	name    string
	next    func(a *attacker) []byte
	offers  bool // nothing but offers of strangers: the programs answer them
	answers bool // SYN-ACKs get half of a PROPOSAL
}{
	{name: "offers_from_anywhere", next: func(a *attacker) []byte { return a.offer(a.anywhere()) }, offers: true},
	{name: "offers_from_the_client", next: func(a *attacker) []byte { return a.offer(a.w.h1.Addr4) }},
	{name: "third_segments", next: func(a *attacker) []byte {
		if a.rng.IntN(2) == 0 {
			return a.offer(a.anywhere()) // so that the gateway has something to look for
		}
		return a.third(a.anywhere())
	}},
	{name: "half_proposals", next: func(a *attacker) []byte { return a.offer(a.anywhere()) }, answers: true},
	{name: "queries", next: func(a *attacker) []byte { return a.query(a.anywhere()) }},
}

// anywhere returns an address behind h3, where there is no host.
func (a *attacker) anywhere() netip.Addr {
	return netip.AddrFrom4([4]byte{10, 78, byte(a.rng.IntN(256)), byte(1 + a.rng.IntN(250))})
}

func (a *attacker) port() uint16 { return uint16(1024 + a.rng.IntN(60000)) }

func optionOf(role packet.Role, nonce uint16) packet.Option {
	return packet.Option{Version: packet.OptionVersion, Role: role, Nonce: nonce}
}

func (a *attacker) offer(from netip.Addr) []byte {
	return raw(segment{
		Src: netip.AddrPortFrom(from, a.port()), Dst: a.w.h2.AddrPort4(echoPort), Seq: a.rng.Uint32(), Flags: tcpSYN,
		Options: synOptions(optionOf(packet.RoleOffer, uint16(a.rng.Uint32())), a.rng.Uint32(), 0),
	})
}

// confirming returns the options of an answer to a SYN-ACK.
func confirming(stamp, echo uint32, nonce uint16) []byte {
	b := endian.BigEndian.AppendUint32([]byte{1, 1, 8, 10}, stamp)
	b = endian.BigEndian.AppendUint32(b, echo)
	return append(packet.AppendOption(b, optionOf(packet.RoleConfirm, nonce)), 1, 1)
}

// third returns a segment that would answer the SYN-ACK to an offer, if it were right.
func (a *attacker) third(from netip.Addr) []byte {
	return raw(segment{
		Src: netip.AddrPortFrom(from, a.port()), Dst: a.w.h2.AddrPort4(echoPort), Seq: a.rng.Uint32(), Ack: a.rng.Uint32(),
		Flags: tcpACK, Options: confirming(1, a.rng.Uint32(), uint16(a.rng.Uint32())),
	})
}

// query returns a request for a queue pair, as a gateway sends it.
func (a *attacker) query(from netip.Addr) []byte {
	r := resolve.Resolve{
		MinVersion: negotiate.MinVersion, MaxVersion: negotiate.Version, Target: a.w.h2.AddrPort4(queryPort),
		Offers: []resolve.UDOffer{{Kind: negotiate.CarrierSoft, MTU: 1024, QPN: 17, QKey: 1, UDPPort: rdmaPort}},
	}
	ip := netip.AddrFrom16(from.As16()).As16()
	copy(r.Offers[0].GID[:], ip[:])
	endian.BigEndian.PutUint64(r.Nonce[:], a.rng.Uint64())
	endian.BigEndian.PutUint64(r.GatewayID[:], a.rng.Uint64())
	body := resolve.AppendResolve(nil, &r)
	p := make([]byte, 28, 28+len(body))
	p[0], p[8], p[9] = 0x45, 64, unix.IPPROTO_UDP
	src, dst := from.As4(), a.w.h2.Addr4.As4()
	copy(p[12:], src[:])
	copy(p[16:], dst[:])
	endian.BigEndian.PutUint16(p[20:], queryPort)
	endian.BigEndian.PutUint16(p[22:], queryPort)
	endian.BigEndian.PutUint16(p[24:], uint16(8+len(body)))
	return append(p, body...) // the kernel fills in the rest, and UDP needs no checksum
}

const queryPort = 4790

// reply answers SYN-ACKs that accept as a client's gateway would, and does no more.
func (a *attacker) reply(t *testing.T) (stop func() int64) {
	t.Helper()
	var in int
	var end atomic.Bool
	var n atomic.Int64
	require.NoError(t, a.w.h3.Do(func() (err error) {
		in, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(htons(unix.ETH_P_IP)))
		return err
	}))
	require.NoError(t, unix.SetsockoptTimeval(in, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000}))
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 1<<16)
		for !end.Load() {
			m, err := unix.Read(in, buf)
			if err != nil {
				continue
			}
			s, ok := readSegment(buf[:m])
			if !ok || s.Flags&(tcpSYN|tcpACK) != tcpSYN|tcpACK || s.Src != a.w.h2.AddrPort4(echoPort) {
				continue
			}
			if o := packet.ParseTCPOptions(s.Options).Option; o.Role == packet.RoleAccept {
				n.Add(1)
				_ = sendRaw(a.fd, segment{
					Src: s.Dst, Dst: s.Src, Seq: s.Ack, Ack: s.Seq + 1, Flags: tcpACK,
					Options: confirming(2, tsValue(s), o.Nonce), Payload: []byte("SMGW\x01\x01"),
				})
			}
		}
	}()
	return func() int64 {
		end.Store(true)
		<-done
		_ = unix.Close(in)
		return n.Load()
	}
}
