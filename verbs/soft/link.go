package soft

import "net/netip"

// link is the network as one vector sees it: UDP datagrams between the addresses of the device and its peers. It is
// sockets in production and a simulated wire in tests. Only the vector's loop calls it, except for sourcePort and close
// before and after the loop's life.
type link interface {
	// sourcePort returns the UDP source port of a lane's datagrams, which the ICRC covers. It may open a socket; 0 means
	// that it could not.
	sourcePort(local int, lane uint8) uint16
	// maxTrain returns how many datagrams a train may have now; 1 means that the kernel does not split trains, and each
	// datagram is sent with identification 0. It can fall to 1 in any send, so it must be asked for each train: longer
	// ones are dropped.
	maxTrain() int
	// send transmits trains in order and keeps no reference to them. A train that the network refuses is counted and
	// dropped, as any datagram may be; it sets tooLong in those that exceed what the path takes.
	send(trains []train)
	// receive delivers about budget datagrams that have arrived, at most, and reports whether there may be more. It never
	// blocks.
	receive(budget int, to receiver) (more bool)
	// fds returns descriptors that are readable when datagrams have arrived; they never change.
	fds() []int
	// stats returns a snapshot; any goroutine may call it.
	stats() linkStats
	close() error
}

// lanes is the number of source ports per address from which a vector sends. The low bits of the destination queue
// pair's number choose the lane, and identify the vector at a peer of our kind: what arrives from one lane is for one
// vector, and UDP_GRO can merge it.
const lanes = 16

// train is a sequence of datagrams to one destination, all of the same size except that the last may be shorter. The
// kernel splits it (UDP_SEGMENT), with consecutive IPv4 identifications from 0.
type train struct {
	local int            // index of the source address
	lane  uint8          // selects the source port
	ect   bool           // marked ECN capable
	dst   netip.AddrPort // UDP destination, with an unmapped address
	size  int            // UDP payload of each datagram
	count int            // datagrams
	total int            // total bytes of bufs
	bufs  [][]byte       // their payload, split anywhere

	tooLong bool // set by send: the kernel knows that datagrams of this size do not fit the path
}

// Limits of a train: what UDP_SEGMENT takes in one call (UDP_MAX_SEGMENTS of older kernels, and the size of an IP
// packet), with room for IPv6 headers.
const (
	maxTrainCount = 64
	maxTrainBytes = 65535 - 40 - 8
)

// datagram is one received UDP payload.
type datagram struct {
	local int            // index of the destination address
	src   netip.AddrPort // with an unmapped address
	ce    bool           // congestion experienced (ECN)
	data  []byte         // valid until deliver returns
}

// receiver gets a link's datagrams.
type receiver interface {
	deliver(d *datagram)
}

// linkStats counts the activity of a link.
type linkStats struct {
	SentPackets, SentBytes         uint64
	SentCalls                      uint64
	SendErrors                     uint64 // trains refused by the kernel
	ReceivedPackets, ReceivedBytes uint64
	ReceivedCalls                  uint64
}
