package gateway

import (
	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/internal/host"
)

// onEvent is called for every decision of the programs.
func (g *gateway) onEvent(e ebpf.Event) {
	t := host.Tuple(e.Tuple)
	switch e.Kind {
	case ebpf.EventReplaced:
		if f := g.engine().find(t); f != nil && f.ISN == e.ISN {
			f.GivenBack(e.Reason != 0)
		}
	case ebpf.EventNative:
		g.nativeDecision(e)
	case ebpf.EventDatagram:
		g.engine().datagrams().Asked(e.Tuple)
	case ebpf.EventProbe, ebpf.EventOptions:
		if f := g.engine().find(t); f != nil && f.ISN == e.ISN {
			f.Watched(e)
		}
	}
}

// nativeDecision records a connection that stayed native.
func (g *gateway) nativeDecision(e ebpf.Event) {
	past := g.native
	if e.Proto == ebpf.ProtoUDP {
		past = g.udp.native
	}
	info := nativeInfo(g.nextID.Add(1), e)
	past.Add(info)
	g.lines.Native(info)
}

// tellMissed reports how many native connections the programs could not report.
func (g *gateway) tellMissed() {
	c, err := g.steer.Counters()
	if err != nil {
		g.log.Warn("read counters", "error", err)
	}
	g.lines.Missed(g.feed.Missed(c.Stats["event_lost"]))
}
