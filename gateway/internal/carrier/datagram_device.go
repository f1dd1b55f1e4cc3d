package carrier

import (
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/verbs"
)

// DatagramDevice is a verbs device on which queue pairs for datagrams are made, at a local
// address.
type DatagramDevice struct {
	verbs.Device
	Port verbs.PortAttr
	// GID is the index of the local address among the GIDs of Port; 0 where memory is shared.
	GID uint8
	// TrafficClass and ServiceLevel are the markings of outgoing packets.
	TrafficClass, ServiceLevel uint8
	// Mixed allows devices of the other RoCEv2 kind at the other end, if this one receives on
	// the port that adapters send to.
	Mixed bool
	// Hold returns the queue of a shard for one more queue pair that needs room for that many
	// completions. The device stays open, and the queue keeps the room, until leave is called,
	// which must follow the close of the queue pair and its domain.
	Hold func(s *loop.Shard, need int) (q *loop.Queue, leave func(), err error)
}
