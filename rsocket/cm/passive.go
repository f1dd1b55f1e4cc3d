package cm

import (
	"net/netip"
	"slices"
	"time"

	"github.com/smcgw/smcgw/verbs"
)

// listenKey is what is listened on; an invalid address stands for all addresses.
type listenKey struct {
	service ServiceID
	addr    netip.Addr
}

// listener is a service and its requests that were not taken yet.
type listener struct {
	key     listenKey
	backlog int
	queue   []*conn
	closed  bool
	changed chan struct{}
}

func (c *core) listen(key listenKey, backlog int) (*listener, error) {
	if c.listeners[key] != nil {
		return nil, ErrAddrInUse
	}
	l := &listener{key: key, backlog: backlog, changed: make(chan struct{}, 1)}
	c.listeners[key] = l
	return l, nil
}

// unlisten removes the listener and refuses its waiting requests.
func (c *core) unlisten(l *listener) {
	if c.listeners[l.key] == l {
		delete(c.listeners, l.key)
	}
	for _, x := range slices.Clone(l.queue) {
		x.turnAway(RejectInvalidServiceID, nil, nil, ErrClosed)
	}
	l.closed = true
	signal(l.changed)
}

// listenerOf returns the listener of a service at one of our addresses.
func (c *core) listenerOf(service ServiceID, addr netip.Addr) *listener {
	if l := c.listeners[listenKey{service, addr}]; l != nil {
		return l
	}
	return c.listeners[listenKey{service: service}]
}

func (l *listener) add(x *conn) {
	l.queue = append(l.queue, x)
	signal(l.changed)
}

func (l *listener) remove(x *conn) {
	if i := slices.Index(l.queue, x); i >= 0 {
		l.queue = slices.Delete(l.queue, i, i+1)
	}
}

// take returns the oldest request, or nil.
func (l *listener) take() *conn {
	if len(l.queue) == 0 {
		return nil
	}
	x := l.queue[0]
	l.queue = slices.Delete(l.queue, 0, 1)
	x.queued = false
	if len(l.queue) > 0 {
		signal(l.changed)
	}
	return x
}

// receiveREQ passes a new request to its listener and answers a repeated one again.
func (c *core) receiveREQ(now time.Time, from route, tid uint64, m *REQ) {
	refuse := func(reason RejectReason) {
		c.stats.Refused++
		c.send(from, tid, &REJ{RemoteID: m.LocalID, Message: KindREQ, Reason: reason})
	}
	key := peerID{from.remote, m.CAGUID, m.LocalID}
	if x := c.peers[key]; x != nil {
		if !x.active && x.tid == tid && x.req.QPN == m.QPN && x.req.PSN == m.PSN {
			x.repeatedREQ()
			return
		}
		c.stale(now, x)
		refuse(RejectStaleConn)
		return
	}
	if x := c.qps[peerQP{from.remote, m.CAGUID, m.QPN}]; x != nil {
		c.stale(now, x)
		refuse(RejectStaleConn)
		return
	}
	var addr AddrHeader
	private, reason := acceptable(m, from, c.addrs(), &addr)
	if reason != 0 {
		refuse(reason)
		return
	}
	l := c.listenerOf(m.Service, addr.Destination)
	if l == nil {
		refuse(RejectInvalidServiceID)
		return
	}
	if len(l.queue) >= l.backlog || c.full() {
		refuse(RejectNoResources)
		return
	}
	m.PrivateData = private
	x := c.newConn(from, tid, m)
	x.addr, x.listener, x.remoteID, x.guid, x.queued = addr, l, m.LocalID, m.CAGUID, true
	c.peers[key] = x
	c.qps[x.remoteQP()] = x
	x.to(stateReqRcvd)
	c.timers.Set(&x.timer, now.Add(codeTime(c.ServiceTimeout)))
	l.add(x)
}

// acceptable checks a REQ and returns the application's part of its private data. The addresses in it must match those
// of the datagram: a host may act only for itself.
func acceptable(m *REQ, from route, addrs []netip.Addr, h *AddrHeader) ([]byte, RejectReason) {
	if m.Transport > TransportUC || m.ExtTransport != 0 {
		return nil, RejectInvalidTransportType
	}
	if m.MTU < verbs.MTU256 || m.MTU > verbs.MTU4096 {
		return nil, RejectInvalidMTU
	}
	private, err := h.Parse(m.PrivateData)
	if err != nil {
		return nil, RejectUnsupported
	}
	if from.local >= len(addrs) || h.Destination != addrs[from.local] || h.Source.Addr() != from.remote ||
		m.Primary.LocalGID.Addr() != from.remote || m.Primary.RemoteGID.Addr() != h.Destination {
		return nil, RejectInvalidGID
	}
	return private, 0
}

// stale ends a connection that its peer evidently no longer knows.
func (c *core) stale(now time.Time, x *conn) {
	c.stats.Stale++
	switch x.state {
	case stateEstablished:
		x.disconnect(now, ErrDisconnected)
	case stateReqRcvd, stateRepSent, stateRepRcvd:
		x.finish(now, ErrDisconnected)
	default:
	}
}

// repeatedREQ answers a repeated REQ.
func (x *conn) repeatedREQ() {
	switch x.state {
	case stateReqRcvd:
		x.core.send(x.route, x.tid, &MRA{
			LocalID: x.id, RemoteID: x.remoteID, Message: KindREQ, ServiceTimeout: x.core.ServiceTimeout,
		})
	case stateRepSent:
		x.core.send(x.route, x.tid, x.rep)
	case stateTimeWait:
		x.core.send(x.route, x.tid, &REJ{RemoteID: x.remoteID, Message: KindREQ, Reason: RejectStaleConn})
	default:
	}
}

// accept answers a request by a REP, and fills in its ids and GUID. Our queue pair must be connected.
func (x *conn) accept(now time.Time, rep *REP) error {
	if x.state != stateReqRcvd {
		return x.gone()
	}
	rep.LocalID, rep.RemoteID, rep.CAGUID = x.id, x.remoteID, x.core.CAGUID
	x.rep = rep
	x.to(stateRepSent)
	x.ask(now, x.tid, rep, x.core.patience(x.req.LocalTimeout), int(x.req.MaxCMRetries))
	return nil
}

// refuse answers a request by a REJ.
func (x *conn) refuse(reason RejectReason, ari, private []byte) error {
	if x.state != stateReqRcvd {
		return x.gone()
	}
	x.turnAway(reason, ari, private, ErrClosed)
	return nil
}

// receiveRTU completes a connection on the passive side. Data does so too: see establish.
func (x *conn) receiveRTU(m *RTU) {
	if x.state != stateRepSent {
		return
	}
	x.rtu = m
	x.establish()
}

// establish completes a connection for a caller that knows otherwise that the REP arrived.
func (x *conn) establish() {
	if x.state == stateRepSent {
		x.answered()
		x.to(stateEstablished)
	}
}
