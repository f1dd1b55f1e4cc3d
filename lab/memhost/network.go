package memhost

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
)

// Config configures a Network.
type Config struct {
	// Seed decides all faults. Default: 1.
	Seed uint64
	// MTU of every wire. Default: 1500.
	MTU int
	// Dir is where gateways keep their sockets and files; it should be short,
	// since unix sockets have short names. Default: a temporary directory that
	// Close removes.
	Dir string
}

// Network is a switch with hosts on it.
type Network struct {
	cfg    Config
	id     [16]byte // of the one kernel all hosts pretend to share
	remove bool

	mu     sync.RWMutex // guards everything below
	hosts  []*Host
	byAddr map[netip.Addr]*Host
	closed bool
}

// NewNetwork makes an empty network.
func NewNetwork(cfg Config) (*Network, error) {
	if cfg.Seed == 0 {
		cfg.Seed = 1
	}
	if cfg.MTU == 0 {
		cfg.MTU = 1500
	}
	n := &Network{cfg: cfg, byAddr: map[netip.Addr]*Host{}}
	_, _ = rand.Read(n.id[:])
	if cfg.Dir != "" {
		return n, nil
	}
	dir, err := os.MkdirTemp("", "smcgw-mem-")
	if err != nil {
		return nil, fmt.Errorf("network directory: %w", err)
	}
	n.cfg.Dir, n.remove = dir, true
	return n, nil
}

// Dir is the directory of the gateways' files.
func (n *Network) Dir() string { return n.cfg.Dir }

// ShmDir is the rendezvous directory that all gateways share by default.
func (n *Network) ShmDir() string { return filepath.Join(n.cfg.Dir, "shm") }

// AddHost joins a host with the next free addresses, 10.0.0.k and fd00::k.
func (n *Network) AddHost(name string) (*Host, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, errClosed
	}
	k := byte(len(n.hosts) + 1)
	if k == 255 {
		return nil, errors.New("network: 254 hosts are enough")
	}
	v6 := [16]byte{0: 0xfd, 15: k}
	h, err := newHost(n, name, netip.AddrFrom4([4]byte{10, 0, 0, k}), netip.AddrFrom16(v6), n.cfg.Seed+uint64(k))
	if err != nil {
		return nil, fmt.Errorf("host %s: %w", name, err)
	}
	n.hosts = append(n.hosts, h)
	n.byAddr[h.v4], n.byAddr[h.v6] = h, h
	return h, nil
}

// errClosed is what a closed network, host or model answers.
var errClosed = fmt.Errorf("memhost: %w", os.ErrClosed)

// forward is the switch: it sends a packet down to the host it is for. A packet
// for no host is lost, as with a host that is down.
func (n *Network) forward(pkt []byte) {
	s, ok := parseSegment(pkt, outbound)
	if !ok {
		return
	}
	n.mu.RLock()
	h := n.byAddr[s.tuple.Remote.Addr()]
	n.mu.RUnlock()
	if h != nil {
		h.wire.B().Send(pkt)
	}
}

// Close stops every gateway and host.
func (n *Network) Close() error {
	n.mu.Lock()
	n.closed = true
	hosts := n.hosts
	n.mu.Unlock()
	var errs []error
	for _, h := range hosts {
		errs = append(errs, h.stopGateway())
	}
	for _, h := range hosts {
		h.close()
	}
	for _, h := range hosts {
		h.wire.Close()
	}
	if n.remove {
		errs = append(errs, os.RemoveAll(n.cfg.Dir))
	}
	return errors.Join(errs...)
}
