package policy

import (
	"log/slog"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/auto"
)

// Translate translates the configuration for the datapath.
func Translate(c config.Config, log *slog.Logger) ebpf.Config {
	out := ebpf.Config{
		Devices: c.Devices, CgroupPath: c.CgroupPath, Mode: Mode(c.Mode), Off: admin.NewOffFlag(c.StateDir).IsSet(),
		NeverPorts: c.NeverPorts(), BlackholeAfter: c.Fallback.BlackholeAfter,
		Retry: c.Fallback.Retry, DatagramPort: c.DatagramPort.Port(), Logger: log,
		Handshake: c.Limits.HandshakeTimeout + handshakeSlack,
		MaxFlows:  max(65536, 4*c.Limits.MaxFlows), Samples: auto.Samples, MaxServices: auto.MaxServices,
	}
	out.MaxDatagrams = max(64, 2*c.Limits.MaxFlows) // the map forgets some before it is full
	for _, r := range c.Policy {
		out.Policy = append(out.Policy, ebpf.Rule{
			Ports: r.Match.Ports, Peers: r.Match.Peers, Cgroups: r.Match.Cgroups,
			UIDs: r.Match.UIDs, Action: steeringAction(r.Action), Proto: steeringProto(r.Match.Proto),
		})
	}
	return out
}

// handshakeSlack is how late the end of a negotiation may be on a busy machine
// before the programs take it for one that the gateway does not know.
const handshakeSlack = 500 * time.Millisecond

func steeringProto(p config.Proto) ebpf.Proto {
	if p == config.ProtoUDP {
		return ebpf.ProtoUDP
	}
	return ebpf.ProtoTCP
}

// Mode translates a mode.
func Mode(m config.Mode) ebpf.Mode {
	switch m {
	case config.ModeEnforce:
		return ebpf.ModeEnforce
	case config.ModeObserve:
		return ebpf.ModeObserve
	default:
		return ebpf.ModeOff
	}
}

func steeringAction(a config.Action) ebpf.Action {
	switch a {
	case config.ActionAccelerate:
		return ebpf.ActionAccelerate
	case config.ActionAuto:
		return ebpf.ActionAuto
	default:
		return ebpf.ActionPass
	}
}
