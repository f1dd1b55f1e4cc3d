package policy

import (
	"log/slog"
	"slices"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
)

// Translate translates a configuration for the datapath. adapters tells whether an RDMA adapter carries here, or would.
func Translate(c config.Config, adapters bool, log *slog.Logger) ebpf.Config {
	out := ebpf.Config{
		Devices: c.Devices, InfiniBand: slices.Contains(c.Carriers, report.DeviceIB), CgroupPath: c.CgroupPath, Mode: Mode(c.Mode),
		NeverPorts: c.NeverPorts(), Retry: c.Fallback.Blackholed(), DatagramPort: c.DatagramPort.Port(), Logger: log,
		Rollout: rollout(c.Rollout.Percent), Compare: c.Guard.Compares(), Handshake: c.Limits.HandshakeTimeout + handshakeSlack,
		MaxFlows: max(65536, 4*c.Limits.MaxFlows), SetUps: c.Limits.NewFlowsAtOnce,
	}
	out.MaxDatagrams = max(64, 2*c.Limits.MaxFlows) // the map evicts entries before it is full
	for _, r := range c.Policy {
		out.Policy = append(out.Policy, ebpf.Rule{
			Peers: r.Match.Peers, Cgroups: r.Match.Cgroups, Direction: steeringDirection(r.Match.Direction), Share: share(r.Percent),
			UIDs: r.Match.UIDs(), Action: steeringAction(r, adapters), Proto: steeringProto(r.Match.Proto),
		})
		last := &out.Policy[len(out.Policy)-1]
		for _, p := range r.Match.Ports {
			if p.Single() {
				last.Ports = append(last.Ports, p.First())
			} else {
				last.Ranges = append(last.Ranges, ebpf.PortRange{First: p.First(), Last: p.Last()})
			}
		}
	}
	return out
}

// handshakeSlack is how late a negotiation may end on a busy machine before the programs treat it as one that the
// gateway does not know.
const handshakeSlack = 500 * time.Millisecond

// rollout translates the share of a configuration.
func rollout(s config.Share) ebpf.Rollout { return ebpf.Rollout{Share: share(s)} }

// share translates a share; 0 stays the default.
func share(s config.Share) ebpf.Share {
	if s == 0 {
		return ebpf.ShareDefault
	}
	return ebpf.ShareOf(s.Percent())
}

func steeringDirection(d report.Direction) ebpf.Direction {
	switch d {
	case report.DirectionClient:
		return ebpf.DirectionClient
	case report.DirectionServer:
		return ebpf.DirectionServer
	default:
		return ebpf.DirectionBoth
	}
}

func steeringProto(p report.Proto) ebpf.Proto {
	if p == report.ProtoUDP {
		return ebpf.ProtoUDP
	}
	return ebpf.ProtoTCP
}

// Mode translates a mode.
func Mode(m report.Mode) ebpf.Mode {
	switch m {
	case report.ModeEnforce:
		return ebpf.ModeEnforce
	case report.ModeObserve:
		return ebpf.ModeObserve
	default:
		return ebpf.ModeOff
	}
}

// steeringAction translates an action. Carriers other than an adapter are seldom faster than the kernel's TCP, so
// without an adapter auto leaves connections native.
func steeringAction(r config.Rule, adapters bool) ebpf.Action {
	switch {
	case r.Way == report.WayInProcess:
		return ebpf.ActionPass
	case r.Action == report.ActionAccelerate:
		return ebpf.ActionAccelerate
	case r.Action == report.ActionAuto && adapters:
		return ebpf.ActionAccelerate
	case r.Action == report.ActionAuto:
		return ebpf.ActionNotWorthIt
	default:
		return ebpf.ActionPass
	}
}
