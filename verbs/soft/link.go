package soft

import "net/netip"

// link is the network as one vector sees it: UDP datagrams between the
// addresses of the device and its peers. Sockets in production, a simulated
// wire in tests. Only the vector's loop calls it, sourcePort and close before
// and after the loop's life excepted.
type link interface {
	// sourcePort is the UDP port that datagrams of a lane leave from, which the
	// ICRC covers. It may open a socket; 0 means that it could not.
	sourcePort(local int, lane uint8) uint16
	// maxTrain is how many datagrams a train may have now; 1 means that the
	// kernel cuts no trains, and each datagram leaves with identification 0. It
	// can fall to 1 at any time in send, so it is asked for each train: longer
	// ones are dropped.
	maxTrain() int
	// send transmits trains in order and keeps nothing of them. A train that
	// the network does not take is counted and dropped, as any datagram may be.
	send(trains []train)
	// receive hands over at most about budget datagrams that have arrived and
	// tells whether there may be more. It never blocks.
	receive(budget int, to receiver) (more bool)
	// fds are readable when datagrams have arrived; they never change.
	fds() []int
	// stats is a snapshot; any goroutine may ask.
	stats() linkStats
	close() error
}

// lanes is how many source ports a vector sends from per address. A lane is
// chosen by the low bits of the destination queue pair's number, which name the
// vector at a peer of our kind: what arrives from one lane is for one vector,
// and UDP_GRO can merge it.
const lanes = 16

// train is a number of datagrams to one destination, all of the same size, only
// the last may be shorter. The kernel cuts it (UDP_SEGMENT), with consecutive
// IPv4 identifications from 0.
type train struct {
	local int            // index of the address it leaves from
	lane  uint8          // whose source port it has
	ect   bool           // marked ECN capable
	dst   netip.AddrPort // UDP destination; the address unmapped
	size  int            // UDP payload of each datagram
	count int            // datagrams
	total int            // bytes of all bufs
	bufs  [][]byte       // their payload, cut anywhere
}

// Limits of a train: what UDP_SEGMENT takes in one call (UDP_MAX_SEGMENTS of
// older kernels, and an IP packet), with room for the headers of IPv6.
const (
	maxTrainCount = 64
	maxTrainBytes = 65535 - 40 - 8
)

// datagram is one received UDP payload.
type datagram struct {
	local int            // index of the address it came to
	src   netip.AddrPort // the address unmapped
	ce    bool           // congestion experienced (ECN)
	data  []byte         // valid until deliver returns
}

// receiver is what a link hands datagrams to.
type receiver interface {
	deliver(d *datagram)
}

// linkStats counts what happened in the link.
type linkStats struct {
	SentPackets, SentBytes         uint64
	SentCalls                      uint64
	SendErrors                     uint64 // trains the kernel did not take
	ReceivedPackets, ReceivedBytes uint64
	ReceivedCalls                  uint64
}
