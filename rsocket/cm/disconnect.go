package cm

import "time"

// disconnect begins the end of a connection. Our queue pair must be in ERR.
func (x *conn) disconnect(now time.Time, why error) {
	if x.state != stateEstablished && x.state != stateRepSent {
		return
	}
	m := &DREQ{LocalID: x.id, RemoteID: x.remoteID, RemoteQPN: x.remoteQP().qpn}
	x.over(why)
	x.leaveQP()
	x.to(stateDreqSent)
	tid := uint64(x.core.newID())<<32 | uint64(x.id)
	x.ask(now, tid, m, x.core.patience(x.core.ResponseTimeout), x.core.Retries)
}

// receiveDREQ ends a connection and answers, even if there is no connection: the peer repeats the request until it is
// answered, and our answer may have been lost.
func (c *core) receiveDREQ(now time.Time, from route, tid uint64, m *DREQ) {
	x := c.find(from, m.RemoteID, m.LocalID)
	if x == nil {
		c.stats.Unknown++
		c.send(from, tid, &DREP{LocalID: m.RemoteID, RemoteID: m.LocalID})
		return
	}
	qpn, ok := x.localQPN()
	if !ok || qpn != m.RemoteQPN {
		c.stats.Unknown++
		return
	}
	c.send(x.route, tid, &DREP{LocalID: x.id, RemoteID: x.remoteID})
	switch x.state {
	case stateRepRcvd, stateRepSent, stateEstablished, stateDreqSent:
		// A DREQ instead of the RTU proves that the REP arrived.
		x.establish()
		x.over(ErrDisconnected)
		x.enterTimeWait(now, x.core.TimeWait)
	default:
	}
}

// receiveDREP ends the disconnection.
func (x *conn) receiveDREP(now time.Time) {
	if x.state == stateDreqSent {
		x.enterTimeWait(now, x.core.TimeWait)
	}
}
