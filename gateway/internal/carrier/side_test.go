package carrier

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/rsocket"
	"github.com/smcgw/smcgw/verbs/shm"
)

var (
	addrA = netip.MustParseAddr("10.0.0.1")
	addrB = netip.MustParseAddr("fd00::1")
	// sideAddrs are those of the hosts of two sides.
	sideAddrs = [2]netip.Addr{netip.MustParseAddr("127.77.1.1"), netip.MustParseAddr("127.77.1.2")}
)

// side is the carriers of one gateway.
type side struct {
	*Env
	shm  *Shm
	soft *Soft
	addr netip.Addr
}

// newSide opens the carriers of a gateway; share is of what one peer may have.
func newSide(t *testing.T, dir string, addr netip.Addr, port uint16, share config.Percent) *side {
	t.Helper()
	cfg := config.Config{ShmDir: dir, Carriers: []config.DeviceKind{config.DeviceShm, config.DeviceSoft}}
	cfg.Soft.UDPPort, cfg.Limits.PeerShare = port, share
	cfg = cfg.WithDefaults()
	pool, err := rmb.NewPool(rmb.PoolConfig{Limit: int64(cfg.Limits.Memory)})
	require.NoError(t, err)
	log := slog.New(slog.DiscardHandler)
	s, err := loop.New(0, log, loop.Options{})
	require.NoError(t, err)
	env := &Env{
		Config: cfg, Log: log, GatewayID: addr.As16(), Shards: []*loop.Shard{s}, Pool: pool, Peers: peers.NewTable(cfg.Limits),
		Addrs:    func() ([]netip.Addr, error) { return []netip.Addr{addr}, nil },
		PeerDown: func(*shm.Peer) {}, Vacate: func(negotiate.CarrierKind, bool) {},
	}
	list, absent := Open(env)
	require.Empty(t, absent)
	s.Start()
	t.Cleanup(func() {
		s.Halt()
		s.Detach()
		for _, fb := range list {
			require.NoError(t, fb.Close())
		}
		s.CloseFDs()
	})
	return &side{Env: env, shm: list[0].(*Shm), soft: list[1].(*Soft), addr: addr}
}

func newSides(t *testing.T, share config.Percent) (sides [2]*side) {
	t.Helper()
	dir, err := os.MkdirTemp("", "smcgw") //nolint:usetesting // short: the rendezvous is a socket
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	port := c.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	require.NoError(t, c.Close())
	for i := range sides {
		sides[i] = newSide(t, dir, sideAddrs[i], port, share)
	}
	return sides
}

// on runs fn on the thread of the shard.
func (s *side) on(fn func()) { s.Shards[0].Call(fn) }

func (s *side) request(u User, remote netip.Addr) Request {
	return Request{User: u, Shard: s.Shards[0], Local: s.addr, Remote: remote}
}

// fakeUser is a connection that notes what its link says.
type fakeUser struct {
	ending                  bool
	asked, broken, violated atomic.Int32
	read, proved, keptAlive atomic.Int32
	failed                  atomic.Bool
}

func (u *fakeUser) Owner() loop.Owner { return u }
func (u *fakeUser) Panicked(r any)    { panic(r) }
func (u *fakeUser) Completed(ev rsocket.Events, ok bool) {
	if !ok {
		u.failed.Store(true)
	}
	if ev.Has(rsocket.EventReadable) {
		u.read.Add(1)
	}
	if ev.Has(rsocket.EventProved) {
		u.proved.Add(1)
	}
}
func (u *fakeUser) Broken()                      { u.broken.Add(1) }
func (u *fakeUser) Violated()                    { u.violated.Add(1) }
func (u *fakeUser) Ending() bool                 { return u.ending }
func (u *fakeUser) KeepAlive(time.Duration, int) { u.keptAlive.Add(1) }
func (u *fakeUser) Ask()                         { u.asked.Add(1) }

// linked is a link and its user on both sides.
type linked struct {
	link [2]*Link
	user [2]*fakeUser
	to   negotiate.CarrierOffer // the server's
}

// meet makes the links of a connection; the server's is connected.
func meet(t *testing.T, sides [2]*side, of func(*side) Fabric) *linked {
	t.Helper()
	c := &linked{user: [2]*fakeUser{{}, {}}}
	client, server := of(sides[0]), of(sides[1])
	var offer negotiate.CarrierOffer
	var err error
	c.link[0], offer, err = client.Offer(sides[0].request(c.user[0], sides[1].addr))
	require.NoError(t, err)
	p := &negotiate.Proposal{}
	if !server.Met(offer, p) {
		require.NoError(t, server.Meet(context.Background(), sides[0].addr, offer))
		require.True(t, server.Met(offer, p))
	}
	sides[1].on(func() {
		if c.link[1], c.to, err = server.Answer(sides[1].request(c.user[1], sides[0].addr), offer, p); err == nil {
			err = c.link[1].Connect(offer)
		}
	})
	require.NoError(t, err)
	return c
}

// fabrics are the devices of a side, by name.
var fabrics = map[string]func(*side) Fabric{
	"shm":  func(s *side) Fabric { return s.shm },
	"soft": func(s *side) Fabric { return s.soft },
}
