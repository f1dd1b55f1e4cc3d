package ebpf

import (
	"context"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// paced is a congestion control that paces.
const paced = "bbr"

// requirePaced skips where the kernel has no congestion control that paces.
func requirePaced(t *testing.T) {
	t.Helper()
	requireRoot(t)
	b, err := os.ReadFile("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
	require.NoError(t, err)
	if !strings.Contains(string(b), paced) {
		t.Skipf("SKIPPED: this kernel allows namespaces no %s: %s", paced, b)
	}
}

// congestion makes name the default of the host.
func (h *host) congestion(name string) {
	h.t.Helper()
	h.do(func() {
		if err := os.WriteFile("/proc/sys/net/ipv4/tcp_congestion_control", []byte(name), 0); err != nil {
			h.t.Errorf("congestion control %s: %v", name, err)
		}
	})
}

// chooses is the control function of sockets whose program chooses; empty: it does not.
func chooses(name string) func(_, _ string, rc syscall.RawConn) error {
	return func(_, _ string, rc syscall.RawConn) (err error) {
		if name == "" {
			return nil
		}
		if cerr := rc.Control(func(fd uintptr) {
			err = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, name)
		}); cerr != nil {
			return cerr
		}
		return err
	}
}

// ends are the congestion controls of both sockets of a connection.
type ends struct{ client, server string }

// meets makes a connection between programs that choose their congestion control, or do
// not, and returns what both sockets have.
func meets(t *testing.T, from, to *host, at netip.AddrPort, choice ends) (got ends) {
	t.Helper()
	var ln net.Listener
	var err error
	lc := net.ListenConfig{Control: chooses(choice.server)}
	lc.SetMultipathTCP(false)
	to.do(func() { ln, err = lc.Listen(context.Background(), "tcp", at.String()) })
	require.NoError(t, err)
	defer func() { _ = ln.Close() }()
	d := net.Dialer{Timeout: patience, Control: chooses(choice.client)}
	d.SetMultipathTCP(false)
	var c net.Conn
	from.do(func() { c, err = d.Dial("tcp", at.String()) })
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	require.NoError(t, ln.(*net.TCPListener).SetDeadline(time.Now().Add(patience)))
	s, err := ln.Accept()
	require.NoError(t, err)
	defer func() { _ = s.Close() }()
	go func() {
		_, _ = s.Write(make([]byte, 1<<20))
		_ = s.(*net.TCPConn).CloseWrite()
	}()
	n, err := io.Copy(io.Discard, c)
	require.NoError(t, err)
	require.EqualValues(t, 1<<20, n)
	got.client, err = congestionOf(c)
	require.NoError(t, err)
	got.server, err = congestionOf(s)
	require.NoError(t, err)
	return got
}

// nearPair are two hosts that pace by default, with the datapaths of gateways that have
// met under one kernel.
type nearPair struct {
	t        *testing.T
	h1, h2   *host
	d1, d2   *Datapath
	families []netip.Addr // of the second host
}

func newNearPair(t *testing.T, cfg Config) *nearPair {
	p := &nearPair{t: t, h1: newHost(t), h2: newHost(t), families: []netip.Addr{netip.MustParseAddr("10.77.0.2"), netip.MustParseAddr("fd77::2")}}
	pair(t, p.h1, p.h2)
	p.h1.congestion(paced)
	p.h2.congestion(paced)
	p.d1, p.d2 = p.h1.open(cfg), p.h2.open(cfg)
	for i, d := range []*Datapath{p.d2, p.d1} {
		for _, a := range [][]string{{"10.77.0.1", "fd77::1"}, {"10.77.0.2", "fd77::2"}}[i] {
			require.NoError(t, d.SetNear(netip.MustParseAddr(a), time.Hour))
		}
	}
	return p
}

// counts are the connections that were left native for it, at the client's and at the
// server's host.
func (p *nearPair) counts(reason uint8) [2]uint64 {
	return [2]uint64{nativeCount(p.t, p.d1, SideClient, reason), nativeCount(p.t, p.d2, SideServer, reason)}
}

// wants makes a connection and checks what its sockets have, and the reasons.
func (p *nearPair) wants(choice, want ends, reasons [2]uint64) {
	p.t.Helper()
	for _, a := range p.families {
		before := p.counts(ReasonSameKernel)
		require.Equal(p.t, want, meets(p.t, p.h1, p.h2, netip.AddrPortFrom(a, 6000), choice), a)
		after := p.counts(ReasonSameKernel)
		require.Equal(p.t, reasons, [2]uint64{after[0] - before[0], after[1] - before[1]}, a)
	}
}

// plain is the congestion control that the programs choose.
const plain = "reno"

// Connections of rules with action auto that stay native between hosts of one kernel do
// not pace, at both ends; a program that has chosen its congestion control keeps it.
func TestNearDoesNotPace(t *testing.T) {
	requirePaced(t)
	cfg := config([]Rule{{Action: ActionAuto}})
	cfg.LookFirst, cfg.nearRTT = true, int(patience.Microseconds())
	p := newNearPair(t, cfg)
	both, none := [2]uint64{1, 1}, [2]uint64{}
	for i := range 2 { // watched, and then not
		p.wants(ends{}, ends{plain, plain}, both)
		p.wants(ends{client: paced}, ends{paced, plain}, [2]uint64{0, 1})
		p.wants(ends{server: paced}, ends{plain, paced}, [2]uint64{1, 0})
		p.wants(ends{"reno", "reno"}, ends{"reno", "reno"}, none)
		for _, a := range p.families {
			s := serviceOf(t, p.d1, netip.AddrPortFrom(a, 6000))
			require.Equal(t, []ServiceState{ServiceSampling, ServiceNative}[i], s.State)
			require.EqualValues(t, 4*(i+1), s.Passed)
			require.False(t, s.Unpaced, "the last one had chosen")
			require.NoError(t, p.d1.SetService(Service{Addr: a, Port: 6000, State: ServiceNative, TTL: time.Hour}))
		}
	}
	p.wants(ends{}, ends{plain, plain}, both)
	require.True(t, serviceOf(t, p.d1, netip.AddrPortFrom(p.families[0], 6000)).Unpaced)
	require.EqualValues(t, 2*2*2, nativeCount(t, p.d1, SideClient, ReasonNotWorthIt))

	p.h1.congestion("reno")
	p.wants(ends{}, ends{"reno", plain}, [2]uint64{0, 1})
	p.h1.congestion(paced)
	for i, d := range []*Datapath{p.d1, p.d2} {
		left := ends{plain, paced}
		if i == 0 {
			left = ends{paced, plain}
		}
		others := [2]uint64{uint64(i), uint64(1 - i)}
		require.NoError(t, d.SetOff(true))
		p.wants(ends{}, left, others)
		require.NoError(t, d.SetOff(false))
		require.NoError(t, d.SetMode(ModeObserve))
		p.wants(ends{}, left, others)
		require.NoError(t, d.SetMode(ModeEnforce))
		require.NoError(t, d.SetPolicy([]Rule{{Ports: []uint16{6000}, Action: ActionPass}, {Action: ActionAuto}}))
		p.wants(ends{}, left, others)
		require.NoError(t, d.SetPolicy([]Rule{{Action: ActionAuto}}))
		p.wants(ends{}, ends{plain, plain}, both)
		_, err := d.FlushPeers()
		require.NoError(t, err)
		p.wants(ends{}, left, others)
		for _, a := range []string{"10.77.0.1", "fd77::1", "10.77.0.2", "fd77::2"} {
			require.NoError(t, d.SetNear(netip.MustParseAddr(a), time.Hour))
		}
	}
	p.wants(ends{}, ends{plain, plain}, both)
}

// An address whose connections take long to come up is none of a host of this kernel.
func TestNearIsForgotten(t *testing.T) {
	requirePaced(t)
	cfg := config([]Rule{{Action: ActionAuto}})
	cfg.LookFirst, cfg.nearRTT = true, 1
	p := newNearPair(t, cfg)
	for range 8 {
		p.wants(ends{}, ends{paced, paced}, [2]uint64{1, 0})
	}
	p.wants(ends{}, ends{paced, paced}, [2]uint64{})
}

// Without a gateway the host's own congestion control is what sockets get.
func TestNearEnds(t *testing.T) {
	requirePaced(t)
	cfg := config([]Rule{{Action: ActionAuto}})
	cfg.LookFirst, cfg.nearRTT = true, int(patience.Microseconds())
	p := newNearPair(t, cfg)
	p.wants(ends{}, ends{plain, plain}, [2]uint64{1, 1})
	for i, left := range []ends{{paced, plain}, {paced, paced}} {
		hand, err := []*Datapath{p.d1, p.d2}[i].Handover()
		require.NoError(t, err)
		require.NoError(t, StopHeartbeat(hand.Heartbeat))
		require.NoError(t, hand.Close())
		for _, a := range p.families {
			require.Equal(t, left, meets(t, p.h1, p.h2, netip.AddrPortFrom(a, 6000), ends{}))
		}
	}
	require.NoError(t, p.d2.Close())
	require.Equal(t, ends{paced, paced}, meets(t, p.h1, p.h2, netip.AddrPortFrom(p.families[0], 6000), ends{}))
}
