package cm

import (
	"net/netip"
	"time"

	"github.com/smcgw/smcgw/internal/due"
)

// route is the path of the datagrams between us and a peer.
type route struct {
	local  int // SGID index of our address
	remote netip.Addr
}

// datagram is a message on its way out.
type datagram struct {
	to  route
	tid uint64
	msg Message
}

// codeTime returns the time that a 5-bit code stands for (IBTA vol. 1, 12.7.34).
func codeTime(code uint8) time.Duration {
	return 4096 * time.Nanosecond << (code & 31)
}

// core is the protocol without I/O: arrivals go into receive, outgoing datagrams are collected in out, and timers are
// run by expire. It has no lock.
type core struct {
	Config               // with its defaults; Do and Vector are not the protocol's
	newID  func() uint32 // random numbers
	addrs  func() []netip.Addr

	conns     map[uint32]*conn        // by our communication id
	peers     map[peerID]*conn        // by the peer's communication id
	qps       map[peerQP]*conn        // by the peer's queue pair, while connected to it
	listeners map[listenKey]*listener // by service and address
	timers    due.Timers[*conn]
	out       []datagram
	stats     Stats
}

// peerID is a communication id of a peer. The peer's address and GUID distinguish it from the same number at other
// peers.
type peerID struct {
	addr netip.Addr
	guid uint64
	id   uint32
}

type peerQP struct {
	addr netip.Addr
	guid uint64
	qpn  uint32
}

func newCore(cfg Config, newID func() uint32, addrs func() []netip.Addr) *core {
	return &core{
		Config: cfg, newID: newID, addrs: addrs,
		conns: map[uint32]*conn{}, peers: map[peerID]*conn{}, qps: map[peerQP]*conn{},
		listeners: map[listenKey]*listener{},
	}
}

// Stats counts the activity of a manager.
type Stats struct {
	Sent, Received  uint64 // datagrams
	Repeated        uint64 // repeated because there was no answer
	Malformed       uint64 // received but malformed
	Unknown         uint64 // received for no known connection
	Stale           uint64 // REQs and REPs of a queue pair that was believed connected
	Refused         uint64 // requests refused without an application: no listener, full, or invalid
	Timeouts        uint64 // unanswered attempts and disconnections
	Dropped         uint64 // not sent because there was no buffer or address handle
	Connections     int    // current, including those being made or in TIMEWAIT
	Listeners       int    // now
	EstablishedEver uint64 // connections
}

// full reports whether the bound on objects is reached.
func (c *core) full() bool { return len(c.conns) >= c.Objects }

func (c *core) send(to route, tid uint64, m Message) {
	c.stats.Sent++
	c.out = append(c.out, datagram{to, tid, m})
}

// patience returns how long to wait for an answer that should come within a code: the code's time plus the round trip.
func (c *core) patience(code uint8) time.Duration {
	return codeTime(code) + 2*codeTime(c.PacketLifetime)
}

// freshID returns an unused communication id.
func (c *core) freshID() uint32 {
	for {
		id := c.newID()
		if _, used := c.conns[id]; id != 0 && !used {
			return id
		}
	}
}

// receive handles a datagram. It keeps references into b, which the caller must not reuse.
func (c *core) receive(now time.Time, from route, b []byte) {
	c.stats.Received++
	tid, m, err := Parse(b)
	if err != nil {
		c.stats.Malformed++
		return
	}
	switch m := m.(type) {
	case *REQ:
		c.receiveREQ(now, from, tid, m)
	case *REP:
		c.receiveREP(now, from, tid, m)
	case *RTU:
		c.with(from, m.RemoteID, m.LocalID, func(x *conn) { x.receiveRTU(m) })
	case *MRA:
		c.receiveMRA(now, from, m)
	case *REJ:
		c.receiveREJ(now, from, m)
	case *DREQ:
		c.receiveDREQ(now, from, tid, m)
	case *DREP:
		c.with(from, m.RemoteID, m.LocalID, func(x *conn) { x.receiveDREP(now) })
	case *SIDRREQ:
		c.stats.Refused++
		c.send(from, tid, &SIDRREP{RequestID: m.RequestID, Status: SIDRUnsupported, Service: m.Service})
	case *SIDRREP:
		c.stats.Unknown++
	}
}

// find returns the connection with our id and the peer's id remote, if from is its peer.
func (c *core) find(from route, id, remote uint32) *conn {
	x := c.conns[id]
	if x == nil || x.route.remote != from.remote || x.remoteID != remote {
		return nil
	}
	return x
}

func (c *core) with(from route, id, remote uint32, do func(x *conn)) {
	if x := c.find(from, id, remote); x != nil {
		do(x)
		return
	}
	c.stats.Unknown++
}
