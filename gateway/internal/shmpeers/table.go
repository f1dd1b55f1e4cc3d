package shmpeers

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/verbs/shm"
)

// ErrElsewhere means that no memory is shared with the peer: no failure.
var ErrElsewhere = errors.New("peer is under another kernel")

const (
	// peersLimit bounds the peers: each has tables and doorbells, and is looked
	// at by every loop. Beyond it the one that has been without a flow for longest
	// makes room. The device has room for as many again, which were sent away and have
	// not gone yet.
	peersLimit = 256
	// pendingLimit bounds the offers that no peer has taken yet.
	pendingLimit = 64
	// formerLimit bounds the gateways of one address that were replaced and still
	// serve flows: an upgrade leaves one, and a server that only says so gets no more.
	formerLimit = 4
)

// Env is what a table needs of the gateway.
type Env struct {
	Config    config.Config
	Log       *slog.Logger
	GatewayID [16]byte
	Vectors   int // of the device
	Pool      *rmb.Pool
	Peers     *peers.Table
	// PeerDown is called when a peer has hung up.
	PeerDown func(*shm.Peer)
}

// Table is the peers of the shared-memory device. Its methods may be called from any
// goroutine.
type Table struct {
	env Env
	shm *shm.Device

	mu     sync.Mutex // guards everything below
	offers map[netip.Addr]*Peer
	peers  map[*shm.Peer]*Peer
	calls  map[[16]byte]*call // by key: offers that are being attached to
}

// Open opens the device, and returns it with the table of its peers. The caller closes the
// device, and the table after it.
func Open(env Env) (*Table, *shm.Device, error) {
	t := &Table{
		env: env, offers: map[netip.Addr]*Peer{}, peers: map[*shm.Peer]*Peer{}, calls: map[[16]byte]*call{},
	}
	dev, err := shm.Open(shm.Config{
		Dir: env.Config.ShmDir, GatewayID: env.GatewayID, Vectors: env.Vectors,
		PeerQuota: min(uint64(env.Config.Limits.Memory), shm.MaxPeerQuota), MaxPeers: 2 * peersLimit, OnPeerDown: t.peerDown, Logger: env.Log,
		PushBytes: 1, // a loop that sleeps begins while the rest of the turn is still made
	})
	if err != nil {
		return nil, nil, err
	}
	t.shm = dev
	if _, err := dev.Listen(); err != nil {
		return nil, nil, errors.Join(err, dev.Close())
	}
	return t, dev, nil
}

// PeerFor returns the peer offered to a server address, or makes the offer. hold counts a
// user more, whose end Leave counts.
func (t *Table) PeerFor(a netip.Addr, hold bool) (*Peer, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.offers[a]
	if p == nil || p.Err() != nil || t.env.Peers.Elsewhere(a, time.Now()) {
		var err error
		if p, err = t.offerLocked(a); err != nil {
			return nil, err
		}
		t.offers[a] = p
	}
	if hold {
		p.users++
	}
	return p, nil
}

// ColdPeerFor makes an offer for one user, with which the peer goes.
func (t *Table) ColdPeerFor(a netip.Addr) (*Peer, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p, err := t.offerLocked(a)
	if err == nil {
		p.users, p.cold = 1, true
	}
	return p, err
}

func (t *Table) offerLocked(a netip.Addr) (*Peer, error) {
	if t.env.Peers.Elsewhere(a, time.Now()) {
		return nil, ErrElsewhere
	}
	t.dropPendingLocked()
	if err := t.makeRoomLocked(a); err != nil {
		return nil, err
	}
	peer, err := t.shm.Offer()
	if err != nil {
		return nil, fmt.Errorf("shm offer: %w", err)
	}
	return t.adoptLocked(peer, a), nil
}

// Ready reports whether PeerFor would not block: the offer to the address is there, or none
// is made.
func (t *Table) Ready(a netip.Addr) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.offers[a]
	return p != nil && p.Err() == nil || t.env.Peers.Elsewhere(a, time.Now())
}

// Replaced forgets the offer that p has taken; p goes on to serve its flows.
func (t *Table) Replaced(p *Peer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.offers[p.Of] == p && t.countLocked(func(o *Peer) bool { return o.Of == p.Of }) <= formerLimit {
		delete(t.offers, p.Of)
	}
}

func (t *Table) countLocked(among func(*Peer) bool) (n int) {
	for _, p := range t.peers {
		if among(p) {
			n++
		}
	}
	return n
}

func (t *Table) adoptLocked(peer *shm.Peer, of netip.Addr) *Peer {
	p := t.peers[peer]
	if p == nil {
		p = &Peer{Peer: peer, Of: of, Arena: t.env.Pool.ArenaOf(of, peer.PD()), idle: time.Now()}
		t.peers[peer] = p
	}
	return p
}

// Adopt enters a peer that has been attached to for an address.
func (t *Table) Adopt(peer *shm.Peer, of netip.Addr, hold bool) *Peer {
	t.mu.Lock()
	p := t.adoptLocked(peer, of)
	if hold {
		p.users++
	}
	t.mu.Unlock()
	t.env.Peers.Reached(of)
	if peer.Err() != nil {
		t.peerDown(peer) // it went before it was entered
	}
	return p
}

// Peers returns those there are.
func (t *Table) Peers() []*Peer {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Values(t.peers))
}

// Hold is for one user more of a peer.
func (t *Table) Hold(p *Peer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p.users++
}

// Leave is for one user less.
func (t *Table) Leave(p *Peer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.users--; p.users > 0 {
		return
	}
	if p.idle = time.Now(); p.cold {
		t.dropLocked(p)
	}
}

// Known returns the live peer of a key, whichever side made the offer, or nil.
func (t *Table) Known(key [16]byte) *Peer {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.knownLocked(key)
}

func (t *Table) knownLocked(key [16]byte) *Peer {
	for _, p := range t.peers {
		if p.Key() == key && p.Err() == nil {
			return p
		}
	}
	return nil
}

// peerDown is called by the device when a peer has hung up: its gateway is
// dead, and every flow it carried ends now.
func (t *Table) peerDown(peer *shm.Peer) {
	t.mu.Lock()
	p := t.peers[peer]
	t.forgetLocked(peer)
	t.mu.Unlock()
	t.env.PeerDown(peer)
	if p != nil {
		p.Reap()
	}
}

// forgetLocked takes a peer out of the table, and the offer that it is.
func (t *Table) forgetLocked(peer *shm.Peer) {
	delete(t.peers, peer)
	maps.DeleteFunc(t.offers, func(_ netip.Addr, p *Peer) bool { return p.Peer == peer })
}

// Close frees what offers that were not taken hold. The device is closed.
func (t *Table) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.peers {
		p.Reap()
	}
}
