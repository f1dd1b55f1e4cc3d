package carrier

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strconv"
	"strings"

	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw"
	"github.com/smcgw/smcgw/verbs/hw/sysfs"
)

// libibverbs is the adapters of this host, accessed through the library of that name.
type libibverbs struct{ log *slog.Logger }

// adapters returns the way to find the adapters of the host.
func (env *Env) adapters() Adapters {
	if env.Adapters != nil {
		return env.Adapters
	}
	return libibverbs{env.Log}
}

// List implements Adapters.
func (libibverbs) List(layer verbs.LinkLayer) ([]string, error) {
	ports, err := hw.Ports(layer)
	return ports, absence(err)
}

// absence distinguishes a host or build without adapters from a failure.
func absence(err error) error {
	if errors.Is(err, hw.ErrLibraryAbsent) || errors.Is(err, verbs.ErrNotSupported) {
		return fmt.Errorf("%w: %w", errNoAdapters, err)
	}
	return err
}

// hwPort is a port opened with libibverbs.
type hwPort struct{ *hw.Device }

// Counters implements AdapterPort.
func (p hwPort) Counters() any { return p.Stats() }

// Open implements Adapters.
func (v libibverbs) Open(name string, vectors int) (AdapterPort, error) {
	adapter, number, _ := strings.Cut(name, "/")
	n, err := strconv.ParseUint(number, 10, 8)
	if err != nil {
		return nil, fmt.Errorf("port of %q: %w", name, verbs.ErrInvalid)
	}
	dev, err := hw.Open(hw.Config{Adapter: adapter, Port: uint8(n), Vectors: vectors, BoundCQs: true, Logger: v.log})
	if err != nil {
		return nil, err
	}
	return hwPort{dev}, nil
}

// Changed implements Adapters: the kernel announces every device that appears.
func (v libibverbs) Changed() (changed <-chan struct{}, stop func()) {
	u, err := sysfs.Listen()
	if err != nil {
		v.log.Debug("events of devices", "error", err)
		return nil, func() {}
	}
	return u.C, u.Close
}

// ethernet is the RoCEv2 network: a GID is an address, and IP routes to it.
type ethernet struct{ env *Env }

var _ network = (*ethernet)(nil)

func (*ethernet) gidOf(local netip.Addr, _ route) (verbs.GID, error) { return verbs.GIDOf(local), nil }

func (*ethernet) lead(_ *Request, hl *hwLink) error {
	hl.mtu = hl.mtuFrom(hl.a.port.Load().ActiveMTU)
	return nil
}

func (*ethernet) describe(hl *hwLink, qpn uint32) negotiate.CarrierOffer {
	return negotiate.CarrierOffer{RoCE: negotiate.RoCEEndpoint{
		GID: hl.gid.GID, UDPPort: hl.a.port.Load().UDPPort, MTU: uint16(hl.mtu.Bytes()), QPN: qpn, PSN: hl.psn,
	}}
}

func (*ethernet) check(r *Request, _ *hwLink, to *negotiate.CarrierOffer) error {
	if !r.reachable(*to) {
		return fmt.Errorf("queue pair at another address: %w", ErrNotHere)
	}
	return nil
}

func (n *ethernet) attr(hl *hwLink, to *negotiate.CarrierOffer) verbs.QPAttr {
	cfg := n.env.Config.HW
	return verbs.QPAttr{
		DestQPNum: to.RoCE.QPN, RQPSN: to.RoCE.PSN, PathMTU: commonMTU(hl.mtu, to.RoCE.MTU),
		AH: verbs.AHAttr{
			DGID: to.RoCE.GID, SGIDIndex: hl.index, HopLimit: hwHops, Port: 1, TrafficClass: cfg.TrafficClass, SL: cfg.ServiceLevel(),
		},
	}
}

// changed implements network. There is nothing to do: IP is queried for each link.
func (*ethernet) changed(*adapter) {}

func (*ethernet) close() {}
