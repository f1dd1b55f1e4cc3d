package gateway

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/handover"
	"github.com/smcgw/smcgw/gateway/internal/host"
	"github.com/smcgw/smcgw/gateway/internal/legs"
	"github.com/smcgw/smcgw/gateway/internal/policy"
	"github.com/smcgw/smcgw/gateway/process"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/netstack/link"
	"github.com/smcgw/smcgw/verbs/hw/sysfs"
)

// site is the host of a gateway together with its datapath, if it has one. Its methods must
// not be called concurrently, except for carrying.
type site struct {
	localHost
	dp         *ebpf.Datapath
	legs       *legs.Namespace
	kernel     *legs.Kernel  // nil: nothing is carried
	supervisor Supervisor    // nil: nothing outlives the daemon
	protected  bool          // the supervisor protects it
	hand       ebpf.Handover // what the supervisor holds
	log        *slog.Logger
}

// carries reports whether gateways in this mode carry. Otherwise they have no devices, ports
// or sockets on their host.
func carries(m report.Mode) bool { return m == report.ModeEnforce }

// openSite makes the site of a configuration in the network namespace of the calling thread.
// If the configuration wants no steering, or the kernel cannot steer, the site has no
// datapath, and only programs with the library are served.
func openSite(cfg config.Config, ns *legs.Namespace, before *handover.Predecessor, opts RunOptions) (*site, error) {
	log := opts.logger()
	if cfg.Steering == config.SwitchOff {
		log.Info("steering is off: only programs with the library are served")
		return unsteeredSite(before, nil)
	}
	s, err := steeredSite(cfg, ns, before, opts)
	if err == nil || !ebpf.Lacking(err) || cfg.InProcess.Enabled != config.SwitchOn {
		return s, err
	}
	log.Error("this kernel cannot steer connections: only programs with the library are served", "error", err)
	return unsteeredSite(before, err)
}

// steeredSite makes a site with the datapath that the mode needs.
func steeredSite(cfg config.Config, ns *legs.Namespace, before *handover.Predecessor, opts RunOptions) (*site, error) {
	steering := policy.Translate(cfg, false, opts.logger())
	before.Place(&steering)
	steering.Counting, steering.Waiting, steering.Legs = !carries(cfg.Mode), true, ns // for the flag
	var err error
	if steering.CgroupPath, err = cfg.Cgroup(); err != nil {
		return nil, err
	}
	if steering.CgroupPath == "" {
		steering.CgroupPath = process.Cgroup()
	}
	dp, err := ebpf.Open(steering)
	if err != nil {
		return nil, fmt.Errorf("datapath: %w", err)
	}
	s := &site{
		dp: dp, legs: ns, supervisor: opts.Supervisor, log: opts.logger(),
		localHost: localHost{
			Steering: dp, Addrs: dp.Addrs, Devices: dp.Looked, Route: dp.RouteDevice, Owners: process.Owners, Version: opts.Version,
			RoCE: sysfs.RoCE, RDMA: sysfs.Read, Priority: ebpf.Priority, Beside: dp, AppTUN: -1,
		},
	}
	if s.ID, err = process.KernelID(); err == nil && carries(cfg.Mode) {
		err = s.carry()
	}
	if err != nil {
		return nil, errors.Join(err, s.leave())
	}
	return s, nil
}

// unsteeredSite makes a site without a datapath. why says why it has none although it should;
// nil: it should not.
func unsteeredSite(before *handover.Predecessor, why error) (*site, error) {
	var at ebpf.Config
	before.Place(&at)
	steer := host.NewUnsteered(at.Generation)
	s := &site{localHost: localHost{Steering: steer, Beside: steer, AppTUN: -1, unsteered: why}}
	var err error
	s.ID, err = process.KernelID()
	return s, err
}

// canCarry reports whether connections can be carried if the mode wants that.
func (s *site) canCarry() bool { return s.dp != nil || s.Link != nil }

// carry opens what carrying requires: devices, legs, and the programs that touch packets.
func (s *site) carry() error {
	if s.dp == nil || s.Link != nil {
		return nil
	}
	if err := s.dp.Carry(); err != nil {
		return fmt.Errorf("datapath: %w", err)
	}
	wire, err := link.TUN(s.dp.WireTUN(), s.dp.WireMTU())
	if err != nil {
		return errors.Join(fmt.Errorf("wire link: %w", err), s.count())
	}
	s.legs.Tend(s.log, s.dp.ProveAgain)
	s.kernel = legs.New(s.legs, s.dp.SetListener)
	s.Link, s.Legs, s.Datagrams, s.AppTUN = wire, s.kernel, s.dp, s.dp.AppTUN()
	if err := s.handOver(); err != nil {
		return errors.Join(err, s.count())
	}
	return nil
}

// carrying reports whether the host has what carry opens, or some of it.
func (s *site) carrying() bool { return s.dp != nil && s.dp.Carrying() }

// count undoes carry, after the engine has ended. If it fails, it can be retried.
func (s *site) count() error {
	if !s.carrying() {
		return nil
	}
	if err := s.letGo(); err != nil {
		return err
	}
	s.detach()
	var errs []error
	if s.kernel != nil {
		errs = append(errs, s.kernel.Close())
	}
	s.kernel, s.Link, s.Legs, s.Datagrams, s.AppTUN = nil, nil, nil, nil, -1
	if err := s.dp.Count(); err != nil {
		errs = append(errs, fmt.Errorf("datapath: %w", err))
	}
	return errors.Join(append(errs, s.handOver())...)
}

// detach stops the use of the link, which no engine may have taken.
func (s *site) detach() {
	if s.Link != nil {
		s.Link.Endpoint().Detach()
	}
}

// protect makes the guardian hold, from now on, what must outlive the daemon. The heartbeat
// must start soon.
func (s *site) protect() error {
	if s.dp == nil || s.supervisor == nil {
		return nil
	}
	s.protected = true
	return s.handOver()
}

// handOver makes the guardian, if it protects, hold the present descriptors.
func (s *site) handOver() error {
	if !s.protected {
		return nil
	}
	if err := s.letGo(); err != nil {
		return err
	}
	var err error
	if s.hand, err = s.dp.Handover(); err != nil {
		return fmt.Errorf("hand over to the guardian: %w", err)
	}
	if err := s.supervisor.Protect(s.hand.Heartbeat, s.hand.Hold); err != nil {
		return fmt.Errorf("guardian: %w", err)
	}
	return nil
}

// letGo makes the guardian hold nothing, if it holds anything.
func (s *site) letGo() error {
	if s.hand.Heartbeat == nil {
		return nil
	}
	if err := s.supervisor.Release(); err != nil {
		return fmt.Errorf("guardian: %w", err)
	}
	err := s.hand.Close()
	s.hand = ebpf.Handover{}
	return err
}

// release ends protect after the last flow has ended, and tells the programs that the
// heartbeat has stopped.
func (s *site) release() error {
	if s.dp == nil {
		return nil
	}
	return errors.Join(s.letGo(), s.dp.StopHeartbeat())
}

// leave closes everything, after the gateway has been closed.
func (s *site) leave() error {
	if s.dp == nil {
		return nil
	}
	s.detach()
	err := errors.Join(s.hand.Close(), s.dp.Close())
	if s.kernel != nil {
		err = errors.Join(err, s.kernel.Close())
	}
	return err
}
