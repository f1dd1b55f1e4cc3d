package ebpf

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	bpf "github.com/cilium/ebpf"
)

// Peer is what is remembered about a destination (client) or a source (server).
type Peer struct {
	// Addr and Port identify the peer; port 0 stands for the whole address.
	Addr netip.Addr
	Port uint16
	// Reason is why connections with it stay native.
	Reason uint8
	// TTL is for how much longer they do; 0 if the entry has only a count.
	TTL time.Duration
	// Count is how many offers in a row were lost or rejected. Backoff is how many times in a row the peer stayed
	// native for that, or for refusing.
	Count, Backoff int
}

// peerKey returns the map key of a peer.
func peerKey(addr netip.Addr, port uint16) (smcgwPeerKey, error) {
	var k smcgwPeerKey
	if !addr.IsValid() {
		return k, errors.New("peer: invalid address")
	}
	k.Addr, k.Family = addr16(addr)
	k.Port = wirePort(port)
	return k, nil
}

// Remember keeps connections with a peer native for ttl: no offers are made to it and, for reason accept_lost, its
// offers are not accepted either. It overwrites an entry of the same address and port. When the map is full, the least
// recently used peers are evicted.
func (d *Datapath) Remember(addr netip.Addr, port uint16, reason uint8, ttl time.Duration) error {
	k, err := peerKey(addr, port)
	if err != nil {
		return err
	}
	if reason == 0 || ttl <= 0 {
		return fmt.Errorf("peer %v: reason %d for %v", addr, reason, ttl)
	}
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	if err := d.objs.Peers.Put(k, smcgwPeer{Until: Now() + uint64(ttl), Reason: reason}); err != nil {
		return fmt.Errorf("peer %v: %w", addr, err)
	}
	return nil
}

// Forget removes one remembered peer, if it is there.
func (d *Datapath) Forget(addr netip.Addr, port uint16) error {
	return d.forget(func(o *objects) *bpf.Map { return o.Peers }, "peer", addr, port)
}

// forget deletes an entry from one of the maps of peers, if there is one.
func (d *Datapath) forget(from func(*objects) *bpf.Map, what string, addr netip.Addr, port uint16) error {
	k, err := peerKey(addr, port)
	if err != nil {
		return err
	}
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	if err := ignoreMissing(from(d.objs).Delete(k)); err != nil {
		return fmt.Errorf("%s %v: %w", what, addr, err)
	}
	return nil
}

// Peers returns the remembered peers, including expired ones that still have a count.
func (d *Datapath) Peers() ([]Peer, error) {
	if err := d.enter(); err != nil {
		return nil, err
	}
	defer d.leave()
	var out []Peer
	var k smcgwPeerKey
	var v smcgwPeer
	now := Now()
	it := d.objs.Peers.Iterate()
	for it.Next(&k, &v) {
		p := Peer{
			Addr: addrFrom(k.Addr, k.Family), Port: wirePort(k.Port), Reason: v.Reason,
			Count: int(v.Count), Backoff: int(v.Backoff),
		}
		if v.Until > now {
			p.TTL = time.Duration(v.Until - now)
		}
		if p.TTL > 0 || p.Count > 0 {
			out = append(out, p)
		}
	}
	if err := it.Err(); err != nil && !errors.Is(err, bpf.ErrIterationAborted) {
		return out, fmt.Errorf("peers: %w", err)
	}
	return out, nil
}

// FlushPeers forgets all peers, and which of them have answered offers. It returns how many peers there were.
func (d *Datapath) FlushPeers() (int, error) {
	if err := d.enter(); err != nil {
		return 0, err
	}
	defer d.leave()
	all := func(smcgwPeerKey) bool { return true }
	n, err := deleteWhere(d.objs.Peers, all)
	if err = errors.Join(err, dropWhere(d.objs.Passed, all)); err != nil {
		return n, fmt.Errorf("flush peers: %w", err)
	}
	return n, nil
}
