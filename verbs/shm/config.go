package shm

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/smcgw/smcgw/verbs"
)

const (
	// MaxPeerQuota is the most memory that a device shares with one peer: half a megabyte for each queue pair of a device.
	MaxPeerQuota = 32 << 30
	// maxPeerMemory is the largest peer memory that a device maps; mapping costs only address space. A device with
	// MaxPeerQuota announces less.
	maxPeerMemory = 64 << 30
)

// Config configures a device. Only GatewayID must be set.
type Config struct {
	// Dir is the rendezvous directory, shared with the peers by mount. It is created with mode 0700 if it does not exist.
	// Default /run/smcgw/shm.
	Dir string
	// GatewayID identifies this device to its peers: random per start.
	GatewayID [16]byte
	// Vectors is the number of event loops that drive the device. Default 1.
	Vectors int
	// PeerQuota bounds the memory that this device shares with one peer; memory is allocated when it is touched. Default
	// 256 MiB, at most MaxPeerQuota.
	PeerQuota uint64
	// MaxPeers bounds the number of peers, pending ones included. Default 256.
	MaxPeers int
	// HandshakeTimeout bounds a rendezvous. Default 1 s.
	HandshakeTimeout time.Duration
	// OnPeer is called for every peer that becomes connected. May be nil; must not block.
	OnPeer func(*Peer)
	// OnPeerDown is called when a connected peer is down, in a goroutine of the device. May be nil; must not block.
	OnPeerDown func(*Peer)
	// Logger receives events of peers. Default: discard.
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	c.Dir = cmp.Or(c.Dir, "/run/smcgw/shm")
	c.Vectors = cmp.Or(c.Vectors, 1)
	c.PeerQuota = cmp.Or(c.PeerQuota, 256<<20)
	c.MaxPeers = cmp.Or(c.MaxPeers, 256)
	c.HandshakeTimeout = cmp.Or(c.HandshakeTimeout, time.Second)
	if c.OnPeer == nil {
		c.OnPeer = func(*Peer) {}
	}
	if c.OnPeerDown == nil {
		c.OnPeerDown = func(*Peer) {}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Validate reports all problems at once.
func (c Config) Validate() error {
	var errs []error
	bad := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format+": %w", append(args, verbs.ErrInvalid)...))
		}
	}
	bad(c.GatewayID != [16]byte{}, "gateway id: zero")
	bad(c.Vectors >= 0 && c.Vectors <= maxVectors, "vectors: %d, want 1 to %d", c.Vectors, maxVectors)
	bad(c.PeerQuota == 0 || c.PeerQuota >= 1<<20 && c.PeerQuota <= MaxPeerQuota, "peer quota: %d, want 1 MiB to 32 GiB", c.PeerQuota)
	bad(c.MaxPeers >= 0, "max peers: negative")
	bad(c.HandshakeTimeout >= 0, "handshake timeout: negative")
	return errors.Join(errs...)
}
