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
	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/shm"
)

// shmServer is the shm device of a gateway that others offer memory to.
type shmServer struct {
	*side
	t *testing.T
}

func newShmServer(t *testing.T, share config.Percent) *shmServer {
	t.Helper()
	return &shmServer{side: newSides(t, share)[1], t: t}
}

// other is another gateway's device under the same kernel.
func (s *shmServer) other(id byte) *shm.Device {
	s.t.Helper()
	d, err := shm.Open(shm.Config{
		Dir: s.Config.ShmDir, GatewayID: [16]byte{id, 1}, PeerQuota: 1 << 20, MaxPeers: 1000,
		Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(s.t, err)
	s.t.Cleanup(func() { require.NoError(s.t, d.Close()) })
	_, err = d.Listen()
	require.NoError(s.t, err)
	return d
}

func (s *shmServer) meet(d *shm.Device, a netip.Addr) (*shm.Peer, error) {
	s.t.Helper()
	p, err := d.Offer()
	require.NoError(s.t, err)
	_, err = s.shm.Attach(context.Background(), a, p.Name(), p.Key())
	if err != nil {
		_ = p.Close()
	}
	return p, err
}

func (s *shmServer) use(a netip.Addr) (n int) {
	for _, p := range s.shm.Peers() {
		if p.Of == a {
			n++
		}
	}
	return n
}

// An address that makes offer after offer gets its share of peers: then its own
// idle ones make room, and if none is idle there is no memory for it. Others meet
// as before.
func TestShmPeersShared(t *testing.T) {
	s := newShmServer(t, 2) // 5 of 256
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
	s.shm.mu.Lock()
	for _, p := range s.shm.peers {
		p.users++
		held = append(held, p)
	}
	s.shm.mu.Unlock()
	require.Len(t, held, 5)
	_, err := s.meet(d, addrA)
	require.ErrorIs(t, err, verbs.ErrNoMemory)
	require.Equal(t, uint64(1), s.Peers.Refusals()[peers.ResourceShmPeers])
	for range 5 {
		_, err = s.meet(d, addrB)
		require.NoError(t, err)
	}
	s.shm.Leave(held[0])
	_, err = s.meet(d, addrA)
	require.NoError(t, err)
	for _, p := range held[1:] {
		require.NoError(t, p.Err(), "a peer in use stays")
	}
}

// When there are as many peers as there may be, the one that has been idle for
// longest makes room for a new one.
func TestShmPeersEvicted(t *testing.T) {
	s := newShmServer(t, 100)
	d := s.other(8)
	var all []*shm.Peer
	for i := range shmPeersLimit {
		p, err := s.meet(d, netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}))
		require.NoError(t, err)
		all = append(all, p)
	}
	require.Eventually(t, func() bool { // the other device has as many peers itself, until it hears of the hang-up
		_, err := s.meet(d, addrA)
		return err == nil
	}, 30*time.Second, time.Millisecond)
	require.Eventually(t, func() bool { return all[0].Err() != nil }, 30*time.Second, time.Millisecond)
	for _, p := range all[1:] {
		require.NoError(t, p.Err())
	}
	// Our own offers make room, too.
	p, err := s.shm.PeerFor(addrB, true)
	require.NoError(t, err)
	require.False(t, p.Connected())
	require.Eventually(t, func() bool { return all[1].Err() != nil }, 30*time.Second, time.Millisecond)
	require.Eventually(t, func() bool { return len(s.shm.shm.Peers()) <= shmPeersLimit }, 30*time.Second, time.Millisecond)
}

// An offer that a link is using is not withdrawn for another.
func TestShmOffersInUseStay(t *testing.T) {
	s := newShmServer(t, 50)
	var all []*ShmPeer
	for i := range pendingLimit {
		p, err := s.shm.PeerFor(netip.AddrFrom4([4]byte{10, 2, 0, byte(i)}), true)
		require.NoError(t, err)
		all = append(all, p)
	}
	s.shm.Leave(all[13])
	_, err := s.shm.PeerFor(addrA, true)
	require.NoError(t, err)
	for i, p := range all {
		require.Equal(t, i == 13, p.Err() != nil, "%d", i)
	}
}

// Offers that are not in use make room, the oldest first: the next server may read the others just now.
func TestShmOldestOfferMakesRoom(t *testing.T) {
	s := newShmServer(t, 50)
	var all []*ShmPeer
	for i := range 2 * pendingLimit {
		p, err := s.shm.PeerFor(netip.AddrFrom4([4]byte{10, 2, 0, byte(i)}), false)
		require.NoError(t, err)
		all = append(all, p)
		for j, p := range all {
			require.Equal(t, j <= i-pendingLimit, p.Err() != nil, "%d of %d", j, i)
		}
	}
}

// A server that did not take an offer is believed to be under another kernel until it
// makes one itself that can be reached.
func TestShmElsewhereIsContradicted(t *testing.T) {
	sides := newSides(t, 50)
	of := sides[1].addr
	sides[0].Peers.Unreachable(of, time.Now(), time.Hour)
	_, err := sides[0].shm.PeerFor(of, false)
	require.ErrorIs(t, err, ErrNotHere)

	p, err := sides[1].shm.PeerFor(sides[0].addr, false)
	require.NoError(t, err)
	_, err = sides[0].shm.Attach(context.Background(), of, p.Name(), p.Key())
	require.NoError(t, err)
	_, err = sides[0].shm.PeerFor(of, false)
	require.NoError(t, err)
}

// Offers that are being attached to count for the share of their address, once each
// however many flows come with them.
func TestShmCallsShared(t *testing.T) {
	s := newShmServer(t, 2) // 5 of 256
	for i := range byte(5) {
		for range 3 {
			require.NoError(t, s.shm.call(addrA, [16]byte{i}))
		}
	}
	require.ErrorIs(t, s.shm.call(addrA, [16]byte{9}), verbs.ErrNoMemory)
	require.NoError(t, s.shm.call(addrB, [16]byte{10}))
	for i := range byte(5) {
		for range 3 {
			s.shm.called([16]byte{i})
		}
	}
	s.shm.called([16]byte{10})
	require.Empty(t, s.shm.calls)

	d := s.other(9)
	var all sync.WaitGroup
	for range 40 {
		p, err := d.Offer()
		require.NoError(t, err)
		all.Go(func() { _, _ = s.shm.Attach(context.Background(), addrA, p.Name(), p.Key()) })
	}
	all.Wait()
	require.LessOrEqual(t, s.use(addrA), 5)
	require.Empty(t, s.shm.calls)
}

// Gateways with much memory share as much of it as shared memory allows.
func TestShmMuchMemory(t *testing.T) {
	for _, memory := range []config.Bytes{64 * config.GiB, 16 * config.TiB} {
		dir := t.TempDir()
		var sides [2]*side
		for i, addr := range []netip.Addr{addrA, addrB} {
			cfg := config.Config{ShmDir: dir, Carriers: []config.DeviceKind{config.DeviceShm}}
			cfg.Limits.Memory = memory
			sides[i] = openSide(t, cfg, func() ([]netip.Addr, error) { return []netip.Addr{addr}, nil }, nil)
		}
		p, err := sides[0].shm.PeerFor(addrB, false)
		require.NoError(t, err)
		_, err = sides[1].shm.Attach(context.Background(), addrA, p.Name(), p.Key())
		require.NoError(t, err, memory)
	}
}
