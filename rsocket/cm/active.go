package cm

import "time"

// dial begins a connection: it fills in the REQ's ids and GUID and sends it.
func (c *core) dial(now time.Time, to route, req *REQ, addr AddrHeader) (*conn, error) {
	if c.full() {
		return nil, ErrNoResources
	}
	x := c.newConn(to, 0, req)
	x.tid = uint64(c.newID())<<32 | uint64(x.id)
	x.active, x.addr = true, addr
	req.LocalID, req.CAGUID = x.id, c.CAGUID
	x.to(stateReqSent)
	x.ask(now, x.tid, req, c.patience(req.RemoteTimeout), c.Retries)
	return x, nil
}

// receiveREP handles the acceptance of our REQ.
func (c *core) receiveREP(now time.Time, from route, tid uint64, m *REP) {
	x := c.conns[m.RemoteID]
	if x == nil || x.route.remote != from.remote || !x.active {
		// The peer accepted a request that we have given up: tell it, so that it need not wait.
		c.stats.Unknown++
		c.send(from, tid, &REJ{LocalID: m.RemoteID, RemoteID: m.LocalID, Message: KindREP, Reason: RejectInvalidCommID})
		return
	}
	if x.state == stateReqSent {
		x.replied(now, m)
		return
	}
	if x.remoteID != m.LocalID || x.guid != m.CAGUID {
		c.stats.Unknown++
		return
	}
	switch x.state {
	case stateRepRcvd:
		c.send(x.route, x.tid, &MRA{LocalID: x.id, RemoteID: x.remoteID, Message: KindREP, ServiceTimeout: c.ServiceTimeout})
	case stateEstablished:
		c.send(x.route, x.tid, x.rtu)
	default:
	}
}

func (x *conn) replied(now time.Time, m *REP) {
	c := x.core
	x.remoteID, x.guid, x.rep = m.LocalID, m.CAGUID, m
	x.answered()
	x.to(stateRepRcvd)
	if c.qps[x.remoteQP()] != nil || c.peers[x.peer()] != nil {
		c.stats.Stale++
		x.reject(RejectStaleConn, nil, nil)
		x.finish(now, &RejectError{Reason: RejectStaleConn})
		return
	}
	c.qps[x.remoteQP()] = x
	c.peers[x.peer()] = x
}

// ready tells the peer that our queue pair is connected.
func (x *conn) ready(private []byte) error {
	if x.state != stateRepRcvd {
		return x.gone()
	}
	x.rtu = &RTU{LocalID: x.id, RemoteID: x.remoteID, PrivateData: private}
	x.core.send(x.route, x.tid, x.rtu)
	x.to(stateEstablished)
	return nil
}

// gone returns why an operation came too late.
func (x *conn) gone() error {
	if x.err != nil {
		return x.err
	}
	return ErrAnswered
}

// receiveMRA gives the peer more time for its answer, up to the limit.
func (c *core) receiveMRA(now time.Time, from route, m *MRA) {
	x := c.conns[m.RemoteID]
	if x == nil || x.route.remote != from.remote {
		c.stats.Unknown++
		return
	}
	switch {
	case x.state == stateReqSent && m.Message == KindREQ,
		x.state == stateRepSent && m.Message == KindREP && x.remoteID == m.LocalID:
		at := now.Add(c.patience(m.ServiceTimeout))
		if at.After(x.limit) {
			at = x.limit
		}
		if at.After(x.timer.At()) {
			c.timers.Set(&x.timer, at)
		}
	}
}

// receiveREJ ends an attempt, or a connection that the peer does not know.
func (c *core) receiveREJ(now time.Time, from route, m *REJ) {
	x := c.rejected(from, m)
	if x == nil {
		c.stats.Unknown++
		return
	}
	why := &RejectError{Reason: m.Reason, ARI: m.ARI, PrivateData: m.PrivateData}
	switch x.state {
	case stateReqSent, stateRepRcvd, stateReqRcvd, stateRepSent:
		x.finish(now, why)
	case stateEstablished:
		x.over(why)
		x.enterTimeWait(now, c.TimeWait)
	case stateDreqSent:
		x.enterTimeWait(now, c.TimeWait)
	case stateTimeWait, stateClosed:
	}
}

// rejected returns the connection that a REJ is about.
func (c *core) rejected(from route, m *REJ) *conn {
	if m.RemoteID == 0 {
		// The sender of a REQ gave up before it learned our id.
		if m.Reason != RejectTimeout || len(m.ARI) < 8 {
			return nil
		}
		x := c.peers[peerID{from.remote, get64(m.ARI), m.LocalID}]
		if x != nil && x.active {
			return nil
		}
		return x
	}
	x := c.conns[m.RemoteID]
	if x == nil || x.route.remote != from.remote {
		return nil
	}
	if x.state != stateReqSent && x.remoteID != m.LocalID {
		return nil
	}
	return x // a refusal of a REQ may lack the peer's id
}
