package rsocket

import (
	"fmt"

	"github.com/smcgw/smcgw/verbs"
)

// Limits and defaults.
const (
	// MaxTargets is the largest own target list; more grants than this are never outstanding in either direction.
	MaxTargets = 16
	// StockTargets is the length of a stock rsocket's target list (RS_SGL_SIZE).
	StockTargets = 2
	// ControlSlots is the number of send-queue entries that data may never use (RS_QP_CTRL_SIZE).
	ControlSlots = 4

	// DefaultCredits and DefaultSendDepth are the depths of the queues where nothing else is said.
	DefaultCredits   = 256
	DefaultSendDepth = 256
	// MaxDepth is the largest depth of a queue (RS_QP_MAX_SIZE).
	MaxDepth     = 0xfffe
	minDepth     = 2
	minSendDepth = 2 * ControlSlots
	// grantParts: grants are this fraction of the ring when the peer's list has room for as many.
	grantParts = 8
	// ExtraRecvs: control messages and probes take a posted receive and no credit. Unread at one time can be as many
	// grants as the peer's list allows, two bare credit messages, one shutdown, one disconnect and the probes.
	ExtraRecvs = MaxTargets + 4 + maxProbes
)

// Dialect selects the freedoms both ends agreed to.
type Dialect uint8

// Dialects.
const (
	// Stock speaks with any rsocket version 1 peer: the first grant is half of the ring, sent bytes are free when the
	// transport acknowledged them.
	Stock Dialect = iota
	// Gateway speaks with another gateway: the first grant is the whole ring, which lets each side check the other's
	// grants; sent bytes are free only when the peer has consumed them; probes are allowed.
	Gateway
)

// Config describes the local end of a stream. Ring and Targets are memory the peer can write to.
type Config struct {
	// Dialect is [Stock] by default.
	Dialect Dialect
	// Ring is the receive ring, RingAddr and RingKey name it to the peer.
	Ring     []byte
	RingAddr uint64
	RingKey  uint32
	// Targets is the target list, 16 bytes per entry, at least 2 and at most [MaxTargets] entries.
	Targets     []byte
	TargetsAddr uint64
	TargetsKey  uint32
	// IOMaps is the slots for the peer's mappings, 24 bytes each, in the memory right after Targets; a number that a
	// scaled byte can say, see [IOMapSlots]. None refuses direct placement by us; gateways have none.
	IOMaps []byte
	// Credits is the number of data messages the peer may have outstanding; 0 = 256.
	Credits int
	// SendDepth is the number of send-queue entries of the queue pair; 0 = 256. Four of them are for control messages.
	SendDepth int
	// SignalBytes makes a send signaled after at most this many bytes; 0 = count entries only. Needed where bytes are
	// freed by send completions.
	SignalBytes int
	// Rings says that the peer may grant other rings than the first, see [Stream.SwitchRing]; for the dialect Gateway and
	// senders that keep no copy of what they sent.
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

// RecvDepth returns the number of receives to keep posted, which is the receive depth the queue pair needs.
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

// settings is what a stream keeps of its configuration; its ring is with the receiving side, its mappings with [maps].
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

// IOMapSlots rounds a number of slots down to one that connection data can say, at most 32512: beyond 128 they are
// counted in units of 256.
func IOMapSlots(n int) int { return int(scaleUp(scaleDown(uint16(max(0, min(n, 1<<15)))))) }

// CheckDevice refuses a device no stream can run on: one that does not write with immediate, as iWARP devices do not.
func CheckDevice(attr verbs.DeviceAttr) error {
	if attr.Ops&verbs.OpRDMAWrite == 0 {
		return ErrMessageMode
	}
	return nil
}

// firstGrant is the whole ring between gateways and, as every stock rsocket does, half of it otherwise.
func (c *settings) firstGrant(ring int) int {
	if c.dialect == Gateway {
		return ring
	}
	return ring / 2
}
