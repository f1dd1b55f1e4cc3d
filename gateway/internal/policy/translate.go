package policy

import (
	"log/slog"
	"slices"
	"sync"
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

// RolloutSteering is the part of the datapath that applies the share.
type RolloutSteering interface {
	SetRollout(r ebpf.Rollout) error
}

// Rollout is the share of connections that is carried.
type Rollout struct {
	steer RolloutSteering
	log   *slog.Logger

	mu  sync.Mutex // guards now, and keeps the datapath in step with it
	now config.Share
}

// NewRollout returns the rollout with which the datapath has been opened.
func NewRollout(of config.Rollout, steer RolloutSteering, log *slog.Logger) *Rollout {
	return &Rollout{steer: steer, log: log, now: of.Percent}
}

// Share returns the current share.
func (r *Rollout) Share() config.Share {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

// Set changes the share.
func (r *Rollout) Set(share config.Share) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.steer.SetRollout(rollout(share)); err != nil {
		return err
	}
	r.now = share
	return nil
}

// Configure applies the share of a configuration, and logs an error.
func (r *Rollout) Configure(next config.Rollout) {
	if err := r.Set(next.Percent); err != nil {
		r.log.Warn("share of connections", "percent", next.Percent, "error", err)
	}
}
