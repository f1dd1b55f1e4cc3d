package gateway

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/handover"
	"github.com/smcgw/smcgw/gateway/internal/policy"
	"github.com/smcgw/smcgw/gateway/internal/sockets"
	"github.com/smcgw/smcgw/gateway/internal/unsteered"
	"github.com/smcgw/smcgw/gateway/process"
	"github.com/smcgw/smcgw/netstack/link"
	"github.com/smcgw/smcgw/verbs/hw/sysfs"
)

// ground is the network namespace of a gateway, where datapaths are opened.
type ground struct {
	legs   *sockets.Namespace    // nil: nothing is steered
	before *handover.Predecessor // nil: none
	opts   RunOptions
}

// site is the host of a gateway together with the datapath it is on; a host without one
// is all of it.
type site struct {
	Host
	dp         *ebpf.Datapath
	kernel     *sockets.Legs // nil: nothing is carried
	hand       ebpf.Handover
	supervisor Supervisor // nil: nothing outlives the daemon
}

// carries reports whether gateways of a mode carry. The others have neither devices nor
// ports nor sockets on their host.
func carries(m config.Mode) bool { return m == config.ModeEnforce }

// site opens the datapath that a configuration needs. A retired one leaves new
// connections alone until it is activated.
func (w *ground) site(cfg config.Config, retired bool) (*site, error) {
	steering := policy.Translate(cfg, false, w.opts.logger())
	w.before.Place(&steering)
	steering.Counting, steering.Retired, steering.Off = !carries(cfg.Mode), retired, true // off until the flag is known
	if !steering.Counting {
		steering.Legs = w.legs
	}
	if steering.CgroupPath == "" {
		steering.CgroupPath = process.Cgroup()
	}
	dp, err := ebpf.Open(steering)
	if err != nil {
		return nil, fmt.Errorf("datapath: %w", err)
	}
	s := &site{dp: dp, supervisor: w.opts.Supervisor}
	if err := s.furnish(steering.Counting, w.legs, w.opts.logger()); err != nil {
		return nil, errors.Join(err, s.leave())
	}
	s.Version = w.opts.Version
	return s, nil
}

// first makes the site of the first gateway. Where the configuration wants no steering, or the kernel cannot, it has
// none, and the programs with the library are all that is served.
func (w *ground) first(cfg config.Config) (*site, error) {
	if cfg.Steering == config.SwitchOff {
		w.opts.logger().Info("steering is off: only programs with the library are served")
		return w.unsteered(nil)
	}
	s, err := w.site(cfg, false)
	if err == nil || !ebpf.Lacking(err) || cfg.InProcess.Enabled != config.SwitchOn {
		return s, err
	}
	w.opts.logger().Error("this kernel cannot steer connections: only programs with the library are served", "error", err)
	return w.unsteered(err)
}

// unsteered makes a site without a datapath, and why it has none although it should; nil: it should not.
func (w *ground) unsteered(why error) (*site, error) {
	var at ebpf.Config
	w.before.Place(&at)
	steer := unsteered.New(at.Generation)
	s := &site{Host: Host{Steering: steer, Beside: steer, AppTUN: -1, unsteered: why}}
	var err error
	s.ID, err = process.KernelID()
	return s, err
}

// beat tells the guardian and the programs that this process lives.
func (s *site) beat() error {
	if s.dp == nil {
		return nil
	}
	return s.dp.Heartbeat()
}

// furnish makes the host of what the datapath has.
func (s *site) furnish(counting bool, ns *sockets.Namespace, log *slog.Logger) (err error) {
	if s.hand, err = s.dp.Handover(); err != nil {
		return fmt.Errorf("hand over to the guardian: %w", err)
	}
	s.Host = Host{
		Steering: s.dp, Addrs: s.dp.Addrs, Devices: s.dp.Looked, Route: s.dp.RouteDevice,
		Owners: process.Owners,
		RoCE:   sysfs.RoCE, RDMA: sysfs.Read, Priority: ebpf.Priority, Beside: s.dp,
	}
	if s.ID, err = process.KernelID(); err != nil || counting {
		return err
	}
	ns.Tend(log, s.dp.ProveAgain)
	s.kernel = sockets.New(ns, s.dp.SetListener)
	if s.Link, err = link.TUN(s.dp.WireTUN(), s.dp.WireMTU()); err != nil {
		return fmt.Errorf("wire link: %w", err)
	}
	s.Legs, s.Datagrams, s.AppTUN = s.kernel, s.dp, s.dp.AppTUN()
	return nil
}

// protect has the guardian hold what must outlive the daemon. The heart beats soon.
func (s *site) protect() error {
	if s.dp == nil || s.supervisor == nil {
		return nil
	}
	if err := s.supervisor.Protect(s.hand.Heartbeat, s.hand.Hold); err != nil {
		return fmt.Errorf("guardian: %w", err)
	}
	return nil
}

// release ends protect, when the last flow has ended, and tells the programs that no
// heart beats any more.
func (s *site) release() error {
	if s.dp == nil {
		return nil
	}
	var err error
	if s.supervisor != nil {
		err = s.supervisor.Release()
	}
	return errors.Join(err, ebpf.StopHeartbeat(s.hand.Heartbeat))
}

// leave closes everything; the gateway is closed.
func (s *site) leave() error {
	if s.dp == nil {
		return nil
	}
	if s.Link != nil {
		s.Link.Endpoint().Detach() // it may be that no gateway has taken it
	}
	err := errors.Join(s.hand.Close(), s.dp.Close())
	if s.kernel != nil {
		err = errors.Join(err, s.kernel.Close())
	}
	return err
}
