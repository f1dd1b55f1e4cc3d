package ebpf

import (
	"context"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// beginMany begins n connections to a service, on several threads, and returns
// how many were offered.
func beginMany(t *testing.T, h *host, d *Datapath, family int, to netip.AddrPort, n int) int {
	t.Helper()
	locals := make(chan netip.AddrPort, n)
	for range n {
		go func() {
			local, err := h.begin(family, to)
			if err != nil {
				t.Errorf("connect: %v", err)
			}
			locals <- local
		}()
	}
	offered := 0
	for range n {
		if _, err := d.Flow(Tuple{Local: <-locals, Remote: to}); err == nil {
			offered++
		}
	}
	return offered
}

func serviceOf(t *testing.T, d *Datapath, to netip.AddrPort) (found Service) {
	t.Helper()
	list, err := d.Services()
	require.NoError(t, err)
	for _, s := range list {
		if s.Addr == to.Addr() && s.Port == to.Port() {
			found = s
		}
	}
	return found
}

// Of many connections at once to an unknown service, no more than the samples
// are offered; what the gateway says holds for those that come after it.
func TestServicesAreSampled(t *testing.T) {
	requireRoot(t)
	h1, h2 := newHost(t), newHost(t)
	pair(t, h1, h2)
	h1.ghosts(h2)
	cfg := config([]Rule{{Ports: []uint16{1, 2}, Action: ActionAccelerate}, {Ports: []uint16{3}}, {Action: ActionAuto}})
	cfg.Samples = 3
	d := h1.open(cfg)
	for _, v := range []struct {
		family int
		addr   string
	}{{unix.AF_INET, ghost4}, {unix.AF_INET6, ghost6}} {
		to := netip.AddrPortFrom(netip.MustParseAddr(v.addr), 6000)
		begin := func(n int) int { return beginMany(t, h1, d, v.family, to, n) }
		require.Zero(t, serviceOf(t, d, to))
		require.Equal(t, 3, begin(50))
		s := serviceOf(t, d, to)
		require.Equal(t, Service{Addr: to.Addr(), Port: 6000, State: ServiceSampling, TTL: s.TTL, Passed: 47}, s)
		require.InDelta(t, 30*time.Second, s.TTL, float64(20*time.Second))
		require.Zero(t, begin(3))

		require.NoError(t, d.SetService(Service{Addr: to.Addr(), Port: to.Port(), State: ServiceCarry}))
		require.Equal(t, 20, begin(20))
		require.NoError(t, d.SetService(Service{Addr: to.Addr(), Port: to.Port(), State: ServiceCarry, Tokens: 4}))
		require.Equal(t, 6, begin(10), "four are to compare with")
		require.NoError(t, d.SetService(Service{Addr: to.Addr(), Port: to.Port(), State: ServiceNative, TTL: time.Hour}))
		require.Zero(t, begin(20))
		require.EqualValues(t, 74, serviceOf(t, d, to).Passed)
		// Sampled again when the time is over, by as many as at first.
		require.NoError(t, d.SetService(Service{Addr: to.Addr(), Port: to.Port(), State: ServiceNative}))
		require.Equal(t, 3, begin(20))
		require.NoError(t, d.SetService(Service{Addr: to.Addr(), Port: to.Port(), State: ServiceSampling, Tokens: 1, TTL: time.Hour}))
		require.Equal(t, 1, begin(2))

		// Another port is another service; rules with another action know none.
		require.Equal(t, 3, beginMany(t, h1, d, v.family, netip.AddrPortFrom(to.Addr(), 6001), 5))
		for port, want := range map[uint16]int{1: 5, 3: 0} {
			other := netip.AddrPortFrom(to.Addr(), port)
			require.Equal(t, want, beginMany(t, h1, d, v.family, other, 5))
			require.Zero(t, serviceOf(t, d, other))
		}
	}
	c, err := d.Counters()
	require.NoError(t, err)
	require.EqualValues(t, 2*(74+17+1+2), c.Native[SideClient][ReasonNotWorthIt])
	n, err := d.FlushServices()
	require.NoError(t, err)
	require.Equal(t, 4, n)
	require.Equal(t, 3, beginMany(t, h1, d, unix.AF_INET, addrPort(ghost4+":6000"), 5), "unknown again")
}

// A service that cannot be offered now loses no sample to it.
func TestServicesKeepTheirSamples(t *testing.T) {
	requireRoot(t)
	h1, h2 := newHost(t), newHost(t)
	pair(t, h1, h2)
	h1.ghosts(h2)
	d := h1.open(config([]Rule{{Action: ActionAuto}}))
	to := addrPort(ghost4 + ":6000")
	require.NoError(t, d.SetOff(true))
	require.Zero(t, beginMany(t, h1, d, unix.AF_INET, to, 5))
	require.NoError(t, d.SetOff(false))
	require.NoError(t, d.Remember(to.Addr(), to.Port(), ReasonAcceptLost, time.Hour))
	require.Zero(t, beginMany(t, h1, d, unix.AF_INET, to, 5))
	require.Zero(t, serviceOf(t, d, to))
	_, err := d.FlushPeers()
	require.NoError(t, err)
	require.Equal(t, 2, beginMany(t, h1, d, unix.AF_INET, to, 5))
}

func TestSetServiceErrors(t *testing.T) {
	d := &Datapath{}
	a := netip.MustParseAddr("10.0.0.1")
	for _, s := range []Service{
		{},
		{Addr: a, Port: 1},
		{Addr: a, State: ServiceCarry},
		{Addr: a, Port: 1, State: 4},
		{Addr: a, Port: 1, State: ServiceSampling, Tokens: 256},
		{Port: 1, State: ServiceCarry},
		{Addr: a, Port: 1, State: ServiceSampling, Tokens: -1},
	} {
		require.Error(t, d.SetService(s))
	}
	require.Equal(t, "native", ServiceNative.String())
	require.Equal(t, "service_state(9)", ServiceState(9).String())
}

// Native connections of a service that is sampled are watched: what they moved,
// and how long they were, is what carried ones are compared with.
func TestServicesAreWatched(t *testing.T) {
	requireRoot(t)
	h1, h2 := newHost(t), newHost(t)
	pair(t, h1, h2)
	d := h1.open(config([]Rule{{Action: ActionAuto}}))
	to := netip.AddrPortFrom(netip.MustParseAddr("10.77.0.2"), 6000)
	var ln net.Listener
	h2.do(func() {
		var err error
		ln, err = net.Listen("tcp", to.String())
		require.NoError(t, err)
	})
	defer ln.Close()
	send := func(size int) {
		t.Helper()
		h1.do(func() {
			c, err := net.Dial("tcp", to.String())
			if err != nil {
				t.Errorf("connect: %v", err)
				return
			}
			s, err := ln.Accept()
			if err != nil {
				t.Errorf("accept: %v", err)
				return
			}
			go func() {
				_, _ = c.Write(make([]byte, size))
				_ = c.Close()
			}()
			n, err := io.Copy(io.Discard, s)
			if err != nil || int(n) != size {
				t.Errorf("%d bytes, %v", n, err)
			}
			_ = s.Close()
		})
	}
	setTo := func(s ServiceState, tokens int) {
		t.Helper()
		require.NoError(t, d.SetService(Service{Addr: to.Addr(), Port: to.Port(), State: s, Tokens: tokens, TTL: time.Hour}))
	}
	ended := func(n int) Service {
		t.Helper()
		require.Eventually(t, func() bool { return serviceOf(t, d, to).Watched >= uint64(n) }, 10*time.Second, 5*time.Millisecond)
		return serviceOf(t, d, to) // bytes and time are added after the connection
	}
	setTo(ServiceSampling, 0)
	send(3 << 20)
	s := ended(1)
	require.InDelta(t, 3<<20, s.Bytes, 10)
	require.Positive(t, s.Lasted)
	require.EqualValues(t, 1, s.Ended)
	require.Equal(t, []any{s.Bytes, s.Lasted}, []any{s.Moved, s.Took})
	require.Greater(t, s.Segments, uint64(3<<20/65536))
	require.Less(t, s.Lasted, time.Minute)
	setTo(ServiceCarry, 1)
	send(2 << 20)
	send(2 << 20) // offered, and native because the peer has no gateway: not watched
	require.InDelta(t, 5<<20, ended(2).Bytes, 20)
	setTo(ServiceNative, 0)
	send(2 << 20)
	setTo(ServiceSampling, 0)
	send(1000) // too little
	send(1 << 20)
	s = ended(3)
	require.InDelta(t, 6<<20, s.Bytes, 30)
	require.EqualValues(t, 3, s.Watched)
	require.Eventually(t, func() bool { return serviceOf(t, d, to).Ended == 4 }, 10*time.Second, 5*time.Millisecond)
	require.InDelta(t, 6<<20+1000, serviceOf(t, d, to).Moved, 40)
}

// A connection that is refused has begun, and tells nothing: a server that is down is not one
// of small requests.
func TestRefusedConnectionsTellNothing(t *testing.T) {
	requireRoot(t)
	h1, h2 := newHost(t), newHost(t)
	pair(t, h1, h2)
	cfg := config([]Rule{{Action: ActionAuto}})
	cfg.LookFirst = true
	d1, d2 := h1.open(cfg), h2.openCounting(countingConfig([]Rule{{Action: ActionAuto}}))
	for range 3 {
		require.ErrorIs(t, h1.dial("10.77.0.2:6001", 5*time.Second), unix.ECONNREFUSED)
		require.ErrorIs(t, h2.dial("10.77.0.1:6001", 5*time.Second), unix.ECONNREFUSED)
	}
	s := serviceOf(t, d1, addrPort("10.77.0.2:6001"))
	require.Equal(t, []uint64{3, 0}, []uint64{s.Passed, s.Ended})
	require.Zero(t, s.Took)
	seen, err := d2.TakeSeen()
	require.NoError(t, err)
	require.Len(t, seen, 1)
	require.Equal(t, []uint64{3, 0}, []uint64{seen[0].Begun, seen[0].Ended})
}

// With LookFirst the connections of an unknown service are native and watched until the
// gateway says that there are samples.
func TestServicesAreLookedAtFirst(t *testing.T) {
	requireRoot(t)
	h1, h2 := newHost(t), newHost(t)
	pair(t, h1, h2)
	h1.ghosts(h2)
	cfg := config([]Rule{{Action: ActionAuto}})
	cfg.LookFirst, cfg.SamplePeriod = true, time.Millisecond
	d := h1.open(cfg)
	to := addrPort(ghost4 + ":6000")
	begin := func(n int) int { return beginMany(t, h1, d, unix.AF_INET, to, n) }
	require.Zero(t, begin(20))
	require.Equal(t, Service{Addr: to.Addr(), Port: 6000, State: ServiceSampling, Passed: 20}, serviceOf(t, d, to), "also after the period")
	require.NoError(t, d.SetService(Service{Addr: to.Addr(), Port: to.Port(), State: ServiceSampling, Tokens: 1}))
	require.Equal(t, 1, begin(20))
	require.NoError(t, d.SetService(Service{Addr: to.Addr(), Port: to.Port(), State: ServiceNative}))
	require.Zero(t, begin(5))
	require.Equal(t, ServiceSampling, serviceOf(t, d, to).State, "looked at again")
}

// Of many native connections the last ones need not be told; all are counted.
func TestNativeEventsAreBounded(t *testing.T) {
	requireRoot(t)
	h1, h2 := newHost(t), newHost(t)
	pair(t, h1, h2)
	h1.ghosts(h2)
	d := h1.open(config([]Rule{{Action: ActionAuto}}))
	to := addrPort(ghost4 + ":6000")
	require.NoError(t, d.SetService(Service{Addr: to.Addr(), Port: to.Port(), State: ServiceNative, TTL: time.Hour}))
	const many = 700
	h1.do(func() {
		for range many {
			fd, _, err := beginHere(unix.AF_INET, to)
			if fd >= 0 {
				_ = unix.Close(fd)
			}
			if err != nil {
				t.Errorf("connect: %v", err)
				return
			}
		}
	})
	c, err := d.Counters()
	require.NoError(t, err)
	require.EqualValues(t, many, c.Native[SideClient][ReasonNotWorthIt])
	require.EqualValues(t, many-512, c.Stats["event_lost"], "nobody reads")
	require.Equal(t, 512, unread(t, d))
}

// unread counts what is to be read of a datapath that has not been read.
func unread(t *testing.T, d *Datapath) (n int) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_ = d.Events(ctx, func(Event) { n++ })
	return n
}

// Nor do native tuples of UDP take the room of what must be told.
func TestNativeTuplesAreBounded(t *testing.T) {
	requireRoot(t)
	h1, h2 := newHost(t), newHost(t)
	pair(t, h1, h2)
	d := h1.open(config(udpRules(9000)))
	app := h1.udp("10.77.0.1:0", "")
	for port := range uint16(700) {
		_, err := app.WriteToUDPAddrPort([]byte("x"), netip.AddrPortFrom(netip.MustParseAddr("10.77.0.2"), 10000+port))
		if err != nil {
			require.ErrorIs(t, err, unix.ECONNREFUSED)
		}
	}
	require.EqualValues(t, 700, datagramCount(t, d, SideClient, ReasonPolicy))
	require.Equal(t, 512, unread(t, d))
}
