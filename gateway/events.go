package gateway

import (
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/host"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/negotiate"
)

// onEvent is called for every decision of the programs.
func (g *gateway) onEvent(e ebpf.Event) {
	t := host.Tuple(e.Tuple)
	switch e.Kind {
	case ebpf.EventReplaced:
		if f := g.find(t); f != nil && f.ISN == e.ISN {
			f.GivenBack(e.Reason != 0)
		}
	case ebpf.EventNative:
		g.nativeDecision(t, e)
	case ebpf.EventDatagram:
		g.dgrams.Load().Asked(e.Tuple)
	case ebpf.EventProbe, ebpf.EventTimeout:
		if f := g.find(t); f != nil && f.ISN == e.ISN {
			f.Watched(e)
		}
	}
}

// nativeDecision records a connection that stayed native.
func (g *gateway) nativeDecision(t host.Tuple, e ebpf.Event) {
	g.mu.Lock()
	g.nextID++
	id := g.nextID
	g.mu.Unlock()
	r := negotiate.Reason(e.Reason)
	past := g.env.Native
	if e.Proto == ebpf.ProtoUDP {
		g.env.Counters.NativeDatagrams(r, sideOf(e.Side))
		past = g.udp.native
	}
	info := admin.ConnInfo{
		ID: id, Proto: string(protoOf(e.Proto)), Side: sideOf(e.Side), Local: t.Local, Remote: t.Remote,
		State: life.Native.String(), Reason: r.String(), DecidedBy: admin.DecidedBy(remoteReason(r)),
		AgeSeconds: max(0, time.Since(e.At).Seconds()), End: admin.EndNative, EndedAt: e.At,
	}
	past.Add(info)
	g.env.Lines.Native(info)
}

func protoOf(p ebpf.Proto) config.Proto {
	if p == ebpf.ProtoUDP {
		return config.ProtoUDP
	}
	return config.ProtoTCP
}

func sideOf(s ebpf.Side) config.Side {
	if s == ebpf.SideServer {
		return config.SideServer
	}
	return config.SideClient
}

// remoteReason reports whether the programs learned a reason from the peer or
// the path.
func remoteReason(r negotiate.Reason) bool {
	switch r {
	case negotiate.ReasonPeerNoOption, negotiate.ReasonOptionMirrored, negotiate.ReasonOptionBlackholed,
		negotiate.ReasonClientGone, negotiate.ReasonOptionRejected, negotiate.ReasonPeerRefused, negotiate.ReasonOfferUnanswered:
		return true
	default:
		return false
	}
}
