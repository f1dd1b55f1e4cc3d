package e2e

import (
	endian "encoding/binary"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/lab/testnet"
	"github.com/smcgw/smcgw/packet"
)

// rawSocket returns a socket that sends packets unchanged from a host.
func rawSocket(t *testing.T, h *testnet.Host) (fd int) {
	t.Helper()
	require.NoError(t, h.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		return err
	}))
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

func sendRaw(fd int, s segment) error {
	return unix.Sendto(fd, raw(s), 0, &unix.SockaddrInet4{Addr: s.Dst.Addr().As4()})
}

// mute is a gateway that accepts offers to one port of its host and then sends nothing, or next to nothing. The
// kernel of its host serves everything else on that port.
type mute struct {
	to      netip.AddrPort
	trickle bool // it sends a byte now and then
	offers  atomic.Int64
	raw, in int
	stop    atomic.Bool
	all     sync.WaitGroup
}

// startMute starts a mute. The kernel of the host must not see segments with the option, nor reset what it does not
// know.
func startMute(t *testing.T, h *testnet.Host, port uint16, trickle bool) *mute {
	t.Helper()
	require.NoError(t, h.NFT("table inet mute {\n chain input {\n type filter hook input priority 0; policy accept;\n"+
		fmt.Sprintf("tcp dport %d tcp option 254 exists drop\n }\n", port)+
		" chain output {\n type filter hook output priority 0; policy accept;\n"+
		fmt.Sprintf("tcp sport %d tcp flags & rst == rst drop\n }\n}", port)))
	m := &mute{to: h.AddrPort4(port), trickle: trickle, raw: rawSocket(t, h)}
	require.NoError(t, h.Do(func() (err error) {
		m.in, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(htons(unix.ETH_P_IP)))
		return err
	}))
	require.NoError(t, unix.SetsockoptTimeval(m.in, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000}))
	m.all.Go(m.run)
	t.Cleanup(func() {
		m.stop.Store(true)
		m.all.Wait()
		_ = unix.Close(m.in)
		_ = h.FlushNFT()
	})
	return m
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

func (m *mute) run() {
	buf := make([]byte, 1<<16)
	for !m.stop.Load() {
		n, err := unix.Read(m.in, buf)
		if err != nil {
			continue
		}
		s, ok := readSegment(buf[:n])
		if !ok || s.Dst != m.to {
			continue
		}
		o := packet.ParseTCPOptions(s.Options).Option
		switch {
		case s.Flags&(tcpSYN|tcpACK) == tcpSYN && o.Role == packet.RoleOffer:
			m.accept(s, o)
		case s.Flags&tcpACK != 0 && o.Role != 0 && len(s.Payload) > 0: // the PROPOSAL
			m.acknowledge(s)
		}
	}
}

func (m *mute) accept(s segment, o packet.Option) {
	m.offers.Add(1)
	o.Role = packet.RoleAccept
	_ = sendRaw(m.raw, segment{
		Src: s.Dst, Dst: s.Src, Seq: 1000, Ack: s.Seq + 1, Flags: tcpSYN | tcpACK, Options: synOptions(o, 77, tsValue(s)),
	})
}

func (m *mute) acknowledge(s segment) {
	options := append([]byte{1, 1, 8, 10}, 0, 0, 0, 78)
	options = endian.BigEndian.AppendUint32(options, tsValue(s))
	answer := segment{
		Src: s.Dst, Dst: s.Src, Seq: 1001, Ack: s.Seq + uint32(len(s.Payload)), Flags: tcpACK, Options: options,
	}
	if !m.trickle {
		_ = sendRaw(m.raw, answer)
		return
	}
	m.all.Go(func() {
		for i, b := range []byte("SMGW\x02\x01") {
			answer.Seq, answer.Payload = 1001+uint32(i), []byte{b}
			if m.stop.Load() || sendRaw(m.raw, answer) != nil {
				return
			}
			time.Sleep(30 * time.Millisecond)
		}
	})
}

// faultSilentPeers has a gateway accept and then never speak, or so slowly that it might as well not. Connections
// must be native after the deadline, and further ones at once.
func faultSilentPeers(t *testing.T, c *tally) {
	w := newServed(t)
	w.serve(w.h3)
	g1 := w.up(w.h1, settings{Handshake: quick})
	w.up(w.h2, settings{})
	done := w.watchLeaks(t)
	to := w.h3.AddrPort4(transferPort).String()
	for _, trickle := range []bool{false, true} {
		t.Run(fmt.Sprintf("trickle=%v", trickle), func(t *testing.T) {
			m := startMute(t, w.h3, transferPort, trickle)
			w.flush()
			before := g1.status().FallbacksTotal["handshake_timeout"]
			const conns = 60
			e, err := w.app(w.h1, 2*time.Minute, "churn", "-count", itoa(conns), "-parallel", itoa(conns), "-size", "30000", "-limit", "30s", "-to", to)
			c.tried(t, e, err, conns)
			offers := m.offers.Load()
			c.faults(offers)
			require.Positive(t, offers)
			require.EqualValues(t, offers, g1.status().FallbacksTotal["handshake_timeout"]-before, "%v", g1.status().FallbacksTotal)
			e, err = w.app(w.h1, 2*time.Minute, "churn", "-count", itoa(conns), "-parallel", "10", "-size", "30000", "-limit", "30s", "-to", to)
			c.tried(t, e, err, conns)
			require.Equal(t, offers, m.offers.Load(), "remembered: no offer any more")
			require.Less(t, time.Duration(e.MedianMicros)*time.Microsecond, 200*time.Millisecond, "and nobody waits")
		})
	}
	w.carriedAgain(t, c, 20)
	done()
}
