package rsocket

import (
	"fmt"

	"github.com/smcgw/smcgw/verbs"
)

// Limits and defaults.
const (
	// MaxTargets is the maximum length of our target list, and of outstanding grants in either direction.
	MaxTargets = 16
	// StockTargets is the length of a stock rsocket's target list (RS_SGL_SIZE).
	StockTargets = 2
	// ControlSlots is the number of send-queue entries that data may never use (RS_QP_CTRL_SIZE).
	ControlSlots = 4

	// DefaultCredits and DefaultSendDepth are the default queue depths.
	DefaultCredits   = 256
	DefaultSendDepth = 256
	// MaxDepth is the maximum queue depth (RS_QP_MAX_SIZE).
	MaxDepth     = 0xfffe
	minDepth     = 2
	minSendDepth = 2 * ControlSlots
	// grantParts is the fraction of the ring that a grant covers if the peer's list has room for that many.
	grantParts = 8
	// ExtraRecvs is the number of receives posted beyond the credits, because control messages and probes use a receive
	// but no credit. At most the grants that the peer's list allows, two bare credit messages, one shutdown, one
	// disconnect and the probes can be unread at a time; and two early credit messages, if the peer handles what has
	// arrived before the next [Stream.ReturnCredits].
	ExtraRecvs = MaxTargets + 6 + maxProbes
)

// Dialect selects the protocol variant that both ends agreed to.
type Dialect uint8

// Dialects.
const (
	// Stock works with any rsocket version 1 peer: the first grant is half of the ring, and sent bytes are freed when the
	// transport has acknowledged them.
	Stock Dialect = iota
	// Gateway is for another gateway: the first grant is the whole ring, so each side can check the other's grants; sent
	// bytes are freed only when the peer has consumed them; probes are allowed.
	Gateway
)

// Config describes the local end of a stream. The peer can write to Ring and Targets.
type Config struct {
	// Dialect is [Stock] by default.
	Dialect Dialect
	// Ring is the receive ring; RingAddr and RingKey identify it to the peer.
	Ring     []byte
	RingAddr uint64
	RingKey  uint32
	// Targets is the target list, 16 bytes per entry, at least 2 and at most [MaxTargets] entries.
	Targets     []byte
	TargetsAddr uint64
	TargetsKey  uint32
	// IOMaps holds the slots for the peer's mappings, 24 bytes each, in the memory right after Targets. Their number must
	// be one that a scaled byte can express, see [IOMapSlots]. Without slots direct placement by us is refused; gateways
	// have none.
	IOMaps []byte
	// Credits is the number of data messages the peer may have outstanding; 0 = 256.
	Credits int
	// SendDepth is the number of send-queue entries of the queue pair; 0 = 256. Four of them are reserved for control
	// messages.
	SendDepth int
	// SignalBytes is the number of bytes after which a send is signaled at the latest; 0 = count entries only. It is
	// needed where send completions free bytes.
	SignalBytes int
	// Rings says that the peer may grant rings other than the first, see [Stream.SwitchRing]. It needs the dialect Gateway
	// and is for senders that keep no copy of what they sent.
	Rings bool
}

func (c Config) withDefaults() Config {
	if c.Credits == 0 {
		c.Credits = DefaultCredits
	}
	if c.SendDepth == 0 {
		c.SendDepth = DefaultSendDepth
	}
	return c
}

// RecvDepth returns the number of receives to keep posted, which is the receive depth that the queue pair needs.
func (c Config) RecvDepth() int { return c.withDefaults().Credits + ExtraRecvs }

func (c Config) validate() error {
	targets := len(c.Targets) / sgeSize
	switch {
	case c.Dialect > Gateway:
		return fmt.Errorf("dialect %d: %w", c.Dialect, ErrConfig)
	case len(c.Ring) < 2 || len(c.Ring) > MaxRing:
		return fmt.Errorf("ring of %d bytes: %w", len(c.Ring), ErrConfig)
	case len(c.Targets)%sgeSize != 0 || targets < StockTargets || targets > MaxTargets:
		return fmt.Errorf("target list of %d bytes: %w", len(c.Targets), ErrConfig)
	case len(c.IOMaps)%iomapSize != 0 || len(c.IOMaps)/iomapSize != IOMapSlots(len(c.IOMaps)/iomapSize) ||
		c.Dialect == Gateway && len(c.IOMaps) > 0:
		return fmt.Errorf("mappings of %d bytes: %w", len(c.IOMaps), ErrConfig)
	case c.Credits < minDepth || c.Credits > MaxDepth:
		return fmt.Errorf("credits %d: %w", c.Credits, ErrConfig)
	case c.SendDepth < minSendDepth || c.SendDepth > MaxDepth:
		return fmt.Errorf("send depth %d: %w", c.SendDepth, ErrConfig)
	case c.Rings && c.Dialect != Gateway:
		return fmt.Errorf("other rings with stock peers: %w", ErrConfig)
	case c.SignalBytes < 0:
		return fmt.Errorf("signal bytes %d: %w", c.SignalBytes, ErrConfig)
	}
	return nil
}

// settings is the part of the configuration that a stream keeps; its ring is in recvSide, its mappings in [maps].
type settings struct {
	dialect     Dialect
	rings       bool
	credits     uint16
	sendDepth   uint16
	signalBytes uint32
	targetsKey  uint32
	targetsAddr uint64
	targets     []byte
}

func (c Config) settings() settings {
	return settings{
		dialect: c.Dialect, rings: c.Rings, credits: uint16(c.Credits), sendDepth: uint16(c.SendDepth),
		signalBytes: uint32(min(c.SignalBytes, MaxRing)),
		targetsKey:  c.TargetsKey, targetsAddr: c.TargetsAddr, targets: c.Targets,
	}
}

// IOMapSlots rounds a number of slots down to one that connection data can express, at most 32512: beyond 128 they are
// counted in units of 256.
func IOMapSlots(n int) int { return int(scaleUp(scaleDown(uint16(max(0, min(n, 1<<15)))))) }

// CheckDevice refuses a device that no stream can run on: one that cannot write with immediate, such as an iWARP
// device.
func CheckDevice(attr verbs.DeviceAttr) error {
	if attr.Ops&verbs.OpRDMAWrite == 0 {
		return ErrMessageMode
	}
	return nil
}

// firstGrant returns the whole ring between gateways, and otherwise half of it, as every stock rsocket grants.
func (c *settings) firstGrant(ring int) int {
	if c.dialect == Gateway {
		return ring
	}
	return ring / 2
}
