package conn

import (
	"sync"
	"time"

	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/rsocket"
)

// broken handles an error of the queue pair or of the peer's protocol. If the peer is alive,
// the flow continues over the relay; the core first lets the peer say why.
func (c *carry) broken() {
	if c.Closed() || !c.f.core.MindsLink(c.EP.ReceivedOffset()) {
		return
	}
	err := c.EP.Err()
	if err == nil {
		err = rsocket.ErrConnection // the stream ended with bytes still in flight
	}
	c.failure = err
	reason := c.Reason(err)
	c.unanswered = reason == negotiate.ReasonCarrierUnreachable
	c.f.do(c.f.core.LinkFails(reason, c.Survives(err)))
}

// drain takes what the link still holds before the flow leaves it because of cause. It gives
// the application as much of what has arrived as it takes now; the peer retransmits the rest.
func (c *carry) drain(cause string) {
	if c.Closed() || c.Halfway {
		return
	}
	c.Shard.Collect()
	if !c.f.core.Ended() && !c.f.core.LegDone {
		c.pumpRx()
	}
	c.f.do(c.f.core.LinkDrained(life.Drained{
		Cause: cause, Sent: c.EP.SentOffset(), Freed: c.EP.FreedOffset(), Consumed: c.EP.ConsumedOffset(),
		Convicted: cause == report.DemotedByPeer && c.Convicted(), Reset: c.failed,
	}))
}

// linkPatience is a lower bound on how long a link waits for its peer before it fails. If
// this gateway was late within that time, the peer may have answered.
const linkPatience = 5 * time.Second

// leave hands the flow over to the relay. Bytes carried so far stay counted for the old
// carrier.
func (c *carry) leave(cause string) {
	f := c.f
	from := f.view().carrier
	f.relay, f.carries = newRelay(f, f.ctl), nil
	f.env.Counters.demoted(f, from, cause)
	f.tell(report.EventDemoted)
	c.Shard.SetTimer(&c.patience, time.Time{})
	sent, written := c.Depart()
	f.relay.resume(c, &origin{tail: c.EP.Tail, sent: sync.OnceFunc(sent), written: written})
	f.env.Lines.Demoted(f.Info(time.Now()), from, cause, c.failure)
	if now := time.Now(); c.failure != nil && (!c.unanswered || !f.env.Pulse.WasLate(now.Add(-linkPatience), now, linkPatience)) {
		f.env.Peers.Failed(f.Peer(), c.Kind, now)
	}
}
