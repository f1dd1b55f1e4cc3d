package socket

import (
	"errors"
	"fmt"

	"github.com/smcgw/smcgw/rsocket"
)

const (
	defaultPacketBuffer       = 256 << 10
	defaultPacketSlots        = 128
	defaultPacketDestinations = 4096
	maxPacketSlots            = 1 << 14
	maxPacketBuffer           = 1 << 30

	// packetLimit is the largest message between datagram rsockets, header included, over UDP and by queue pair: stock
	// ones receive into slots of this size (RS_SNDLOWAT).
	packetLimit = 2048
)

// PacketListenConfig makes datagram sockets. The zero value makes sockets without devices, which reach every peer over
// UDP.
type PacketListenConfig struct {
	// Stacks are the devices. Each serves the destinations that are reached from one of its addresses.
	Stacks []*Stack
	// Plain is for peers that are not rsockets: a destination that has sent no message with a header gets datagrams
	// without headers. Otherwise a new destination is assumed to be an rsocket until it sends a datagram without a header.
	Plain bool
	// RecvBuffer bounds the bytes that wait to be read. Further datagrams are dropped. 0: 256 KiB.
	RecvBuffer int
	// RecvSlots and SendSlots are the numbers of datagrams that a device has room for: received but not processed, and
	// sent but not completed. 0: 128.
	RecvSlots, SendSlots int
	// Destinations bounds the table of peers. 0: 4096.
	Destinations int
}

func (c PacketListenConfig) withDefaults() PacketListenConfig {
	orDefault := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	orDefault(&c.RecvBuffer, defaultPacketBuffer)
	orDefault(&c.RecvSlots, defaultPacketSlots)
	orDefault(&c.SendSlots, defaultPacketSlots)
	orDefault(&c.Destinations, defaultPacketDestinations)
	return c
}

// Validate reports all problems at once.
func (c PacketListenConfig) Validate() error {
	var errs []error
	bad := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format+": %w", append(args, rsocket.ErrConfig)...))
		}
	}
	for i, s := range c.Stacks {
		bad(s != nil, "stacks[%d]: none", i)
	}
	bad(c.RecvBuffer >= 0 && c.RecvBuffer <= maxPacketBuffer, "recv buffer: %d", c.RecvBuffer)
	bad(c.RecvSlots >= 0 && c.RecvSlots <= maxPacketSlots, "recv slots: %d", c.RecvSlots)
	bad(c.SendSlots >= 0 && c.SendSlots <= maxPacketSlots, "send slots: %d", c.SendSlots)
	bad(c.Destinations >= 0, "destinations: %d", c.Destinations)
	return errors.Join(errs...)
}
