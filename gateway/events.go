package gateway

import (
	"github.com/smcgw/smcgw/ebpf"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/gateway/internal/host"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
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

// nativeInfo describes a connection that the programs have left native.
func nativeInfo(id uint64, e ebpf.Event) report.ConnInfo {
	r := negotiate.Reason(e.Reason)
	return report.ConnInfo{
		ID: id, Proto: string(protoOf(e.Proto)), Side: sideOf(e.Side), Local: e.Tuple.Local, Remote: e.Tuple.Remote,
		State: life.Native.String(), Reason: r.String(), DecidedBy: report.DecidedBy(remoteReason(r)),
		End: report.EndNative, EndedAt: e.At,
	}
}

func protoOf(p ebpf.Proto) report.Proto {
	if p == ebpf.ProtoUDP {
		return report.ProtoUDP
	}
	return report.ProtoTCP
}

// sideOf returns the side of this host.
func sideOf(s ebpf.Side) report.Side {
	if s == ebpf.SideServer {
		return report.SideServer
	}
	return report.SideClient
}

// remoteReason reports whether the programs learned a reason from the peer or the path.
func remoteReason(r negotiate.Reason) bool {
	switch r {
	case negotiate.ReasonPeerNoOption, negotiate.ReasonOptionMirrored, negotiate.ReasonOptionBlackholed,
		negotiate.ReasonClientGone, negotiate.ReasonOptionRejected, negotiate.ReasonPeerRefused, negotiate.ReasonOfferUnanswered:
		return true
	default:
		return false
	}
}
