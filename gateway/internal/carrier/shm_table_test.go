package carrier

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/lab/twohosts"
	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/shm"
)

// shmSide is the table of one gateway.
type shmSide struct {
	*shmTable
	t *testing.T
}

// newShmSide opens the table of a gateway, by its number.
func newShmSide(t *testing.T, dir string, id byte, limits config.Limits) shmSide {
	t.Helper()
	cfg := config.Config{ShmDir: dir, Limits: limits}.WithDefaults()
	pool, err := rmb.NewPool(rmb.PoolConfig{Limit: int64(cfg.Limits.Memory)})
	require.NoError(t, err)
	table, err := openShmTable(&Env{
		Config: cfg, Log: slog.New(slog.DiscardHandler), GatewayID: [16]byte{id}, Shards: make([]*loop.Shard, 1), Pool: pool, Peers: peers.NewTable(cfg.Limits),
		PeerDown: func(*shm.Peer) {},
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, table.shm.Close())
		table.free()
	})
	return shmSide{table, t}
}

// newShmSides opens the tables of two gateways; percent is of what one peer may have.
func newShmSides(t *testing.T, percent int) (sides [2]shmSide) {
	t.Helper()
	dir := twohosts.Dir(t)
	for i := range sides {
		sides[i] = newShmSide(t, dir, byte(i+1), config.Limits{PeerShare: config.Share(percent * 100)})
	}
	return sides
}

// other is another gateway's device under the same kernel.
func (s shmSide) other(id byte) *shm.Device {
	s.t.Helper()
	d, err := shm.Open(shm.Config{
		Dir: s.env.Config.ShmDir, GatewayID: [16]byte{id, 1}, PeerQuota: 1 << 20, MaxPeers: 1000,
		Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(s.t, err)
	s.t.Cleanup(func() { require.NoError(s.t, d.Close()) })
	_, err = d.Listen()
	require.NoError(s.t, err)
	return d
}

func (s shmSide) meet(d *shm.Device, a netip.Addr) (*shm.Peer, error) {
	s.t.Helper()
	p, err := d.Offer()
	require.NoError(s.t, err)
	_, err = s.Attach(context.Background(), a, p.Name(), p.Key())
	if err != nil {
		_ = p.Close()
	}
	return p, err
}

func (s shmSide) use(a netip.Addr) (n int) {
	for _, p := range s.Peers() {
		if p.Of == a {
			n++
		}
	}
	return n
}

// An address that makes offer after offer gets its share of peers: then its own
// idle ones make room, and if none is idle there is no memory for it. Others meet
// as before.
func TestPeersShared(t *testing.T) {
	s := newShmSides(t, 2)[1] // 5 of 256
	d := s.other(7)
	var first *shm.Peer
	for i := range 20 {
		p, err := s.meet(d, addrA)
		require.NoError(t, err)
		if i == 0 {
			first = p
		}
		require.LessOrEqual(t, s.use(addrA), 5)
	}
	require.Eventually(t, func() bool { return first.Err() != nil }, 30*time.Second, time.Millisecond)
	var held []*ShmPeer
	s.mu.Lock()
	for _, p := range s.peers {
		p.users++
		held = append(held, p)
	}
	s.mu.Unlock()
	require.Len(t, held, 5)
	_, err := s.meet(d, addrA)
	require.ErrorIs(t, err, verbs.ErrNoMemory)
	require.Equal(t, uint64(1), s.env.Peers.Refusals()[peers.ResourceShmPeers])
	for range 5 {
		_, err = s.meet(d, addrB)
		require.NoError(t, err)
	}
	s.Leave(held[0])
	_, err = s.meet(d, addrA)
	require.NoError(t, err)
	for _, p := range held[1:] {
		require.NoError(t, p.Err(), "a peer in use stays")
	}
}

// When there are as many peers as there may be, the one that has been idle for
// longest makes room for a new one.
func TestPeersEvicted(t *testing.T) {
	s := newShmSides(t, 100)[1]
	d := s.other(8)
	var all []*shm.Peer
	for i := range shmPeersLimit {
		p, err := s.meet(d, netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}))
		require.NoError(t, err)
		all = append(all, p)
	}
	_, err := s.meet(d, addrA)
	require.NoError(t, err, "the one that makes room may not have gone yet")
	require.Eventually(t, func() bool { return all[0].Err() != nil }, 30*time.Second, time.Millisecond)
	for _, p := range all[1:] {
		require.NoError(t, p.Err())
	}
	// Our own offers make room, too.
	p, err := s.PeerFor(addrB, true)
	require.NoError(t, err)
	require.False(t, p.Connected())
	require.Eventually(t, func() bool { return all[1].Err() != nil }, 30*time.Second, time.Millisecond)
	require.Eventually(t, func() bool { return len(s.shm.Peers()) <= shmPeersLimit }, 30*time.Second, time.Millisecond)

	for _, p := range s.Peers() { // none may be sent away
		s.Hold(p)
	}
	_, err = s.PeerFor(netip.MustParseAddr("10.0.0.9"), true)
	require.ErrorIs(t, err, verbs.ErrNoMemory)
	_, err = s.meet(d, addrA)
	require.ErrorIs(t, err, verbs.ErrNoMemory)
	require.Len(t, s.Peers(), shmPeersLimit)
	require.Empty(t, s.calls)
}

// An offer that a link is using is not withdrawn for another.
func TestOffersInUseStay(t *testing.T) {
	s := newShmSides(t, 50)[1]
	var all []*ShmPeer
	for i := range shmPendingLimit {
		p, err := s.PeerFor(netip.AddrFrom4([4]byte{10, 2, 0, byte(i)}), true)
		require.NoError(t, err)
		all = append(all, p)
	}
	s.Leave(all[13])
	_, err := s.PeerFor(addrA, true)
	require.NoError(t, err)
	for i, p := range all {
		require.Equal(t, i == 13, p.Err() != nil, "%d", i)
	}
}

// Offers that are not in use make room, the oldest first: the next server may read the others just now.
func TestOldestOfferMakesRoom(t *testing.T) {
	s := newShmSides(t, 50)[1]
	var all []*ShmPeer
	for i := range 2 * shmPendingLimit {
		p, err := s.PeerFor(netip.AddrFrom4([4]byte{10, 2, 0, byte(i)}), false)
		require.NoError(t, err)
		all = append(all, p)
		for j, p := range all {
			require.Equal(t, j <= i-shmPendingLimit, p.Err() != nil, "%d of %d", j, i)
		}
	}
}

// A server that did not take an offer is believed to be under another kernel until it
// makes one itself that can be reached.
func TestElsewhereIsContradicted(t *testing.T) {
	sides := newShmSides(t, 50)
	of := addrB
	sides[0].env.Peers.Unreachable(of, time.Now(), time.Hour)
	_, err := sides[0].PeerFor(of, false)
	require.ErrorIs(t, err, ErrNotHere)

	p, err := sides[1].PeerFor(addrA, false)
	require.NoError(t, err)
	_, err = sides[0].Attach(context.Background(), of, p.Name(), p.Key())
	require.NoError(t, err)
	_, err = sides[0].PeerFor(of, false)
	require.NoError(t, err)
}

// Offers that are being attached to count for the share of their address, once each
// however many flows come with them.
func TestCallsShared(t *testing.T) {
	s := newShmSides(t, 2)[1] // 5 of 256
	for i := range byte(5) {
		for range 3 {
			require.NoError(t, s.call(addrA, [16]byte{i}))
		}
	}
	require.ErrorIs(t, s.call(addrA, [16]byte{9}), verbs.ErrNoMemory)
	require.NoError(t, s.call(addrB, [16]byte{10}))
	for i := range byte(5) {
		for range 3 {
			s.called([16]byte{i})
		}
	}
	s.called([16]byte{10})
	require.Empty(t, s.calls)

	d := s.other(9)
	var all sync.WaitGroup
	for range 40 {
		p, err := d.Offer()
		require.NoError(t, err)
		all.Go(func() { _, _ = s.Attach(context.Background(), addrA, p.Name(), p.Key()) })
	}
	all.Wait()
	require.LessOrEqual(t, s.use(addrA), 5)
	require.Empty(t, s.calls)
}

// Connections that come with one offer attach one after the other: the second needs no room,
// and does not make any by the peer that the first is about to use.
func TestAttachedPeerStays(t *testing.T) {
	s := newShmSides(t, 1)[1] // 2 of 256
	d := s.other(7)
	_, err := s.meet(d, addrA)
	require.NoError(t, err)
	s.Hold(s.Peers()[0])
	offer, err := d.Offer()
	require.NoError(t, err)
	first, err := s.Attach(context.Background(), addrA, offer.Name(), offer.Key())
	require.NoError(t, err)
	second, err := s.Attach(context.Background(), addrA, offer.Name(), offer.Key())
	require.NoError(t, err)
	require.Same(t, first, second)
	require.NoError(t, first.Err())
}

// Gateways with much memory share as much of it as shared memory allows.
func TestMuchMemory(t *testing.T) {
	for _, memory := range []config.Bytes{64 * config.GiB, 16 * config.TiB} {
		dir := twohosts.Dir(t)
		var sides [2]shmSide
		for i := range sides {
			sides[i] = newShmSide(t, dir, byte(i+1), config.Limits{Memory: memory})
		}
		p, err := sides[0].PeerFor(addrB, false)
		require.NoError(t, err)
		_, err = sides[1].Attach(context.Background(), addrA, p.Name(), p.Key())
		require.NoError(t, err, memory)
	}
}

// A cold peer is of one user, and goes with it. What others were offered stays.
func TestColdPeers(t *testing.T) {
	s := newShmSides(t, 50)[0]
	warm, err := s.PeerFor(addrA, true)
	require.NoError(t, err)
	for range 3 {
		cold, err := s.coldPeerFor(addrA)
		require.NoError(t, err)
		require.NotSame(t, warm, cold)
		require.NoError(t, cold.Err())
		again, err := s.PeerFor(addrA, false)
		require.NoError(t, err)
		require.Same(t, warm, again)
		require.Len(t, s.Peers(), 2)
		s.Leave(cold)
		require.Error(t, cold.Err())
		require.Equal(t, []*ShmPeer{warm}, s.Peers())
	}
	require.NoError(t, warm.Err())
	s.env.Peers.Unreachable(addrA, time.Now(), time.Hour)
	_, err = s.coldPeerFor(addrA)
	require.ErrorIs(t, err, ErrNotHere)
}
