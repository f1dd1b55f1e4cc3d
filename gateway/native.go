package gateway

import (
	"github.com/smcgw/smcgw/ebpf"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

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
