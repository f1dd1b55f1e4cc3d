package carrier

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/sysfs"
	"github.com/smcgw/smcgw/verbs/shm"
)

var (
	// ErrNotHere means that this carrier cannot reach the peer. It is not a failure.
	ErrNotHere = errors.New("peer is under another kernel")
	// ErrNoAdapter is an ErrNotHere that says nothing about the peer: no adapter of this host
	// has the connection's local address.
	ErrNoAdapter = fmt.Errorf("no adapter on this address: %w", ErrNotHere)
	// ErrTranslated is an ErrNotHere: the address of the peer's soft device, which is the
	// address that its connection has there, is not the remote address of the connection here.
	ErrTranslated = fmt.Errorf("queue pair at another address: %w", ErrNotHere)
	// ErrNoDevice means that this host has no device on the connection's local address, or
	// not yet.
	ErrNoDevice = errors.New("no RDMA device on this address")
	// ErrYielded means that the device was given up and nothing new can be made on it.
	ErrYielded = errors.New("left to the gateway that takes over")
	// ErrFull means that an adapter has reached its limit of queue pairs.
	ErrFull = errors.New("limits.hw_flows reached")
	// ErrNoPath means that the InfiniBand subnet has no path to the peer, or did not report
	// one in time.
	ErrNoPath = errors.New("no path through the InfiniBand subnet")
	// ErrClosed means that the link has ended.
	ErrClosed = errors.New("link is closed")
	// errNoAdapters means that this host or this build cannot use adapters.
	errNoAdapters = errors.New("no RDMA adapters")
	// errNoAddrs means that the host has no network that RDMA could run on.
	errNoAddrs = errors.New("host without network addresses")
)

// Env is what carriers need from the gateway.
type Env struct {
	Config    config.Config
	Log       *slog.Logger
	GatewayID [16]byte
	HostID    [16]byte
	Shards    []*loop.Shard
	Pool      *rmb.Pool
	Peers     *peers.Table
	// Addrs returns the addresses on which RDMA over UDP is possible now. nil: the host has
	// no network.
	Addrs func() ([]netip.Addr, error)
	// Route returns the index of the network device through which the host sends from one
	// address to another. nil: unknown. An errno means that the host does not tell, any other
	// error that the device is not one of the gateway's.
	Route func(from, to netip.Addr) (ifindex int, err error)
	// RoCE returns the addresses for which RDMA adapters of this host speak RoCE v2. nil:
	// there are none.
	RoCE func() (sysfs.RoCEPorts, error)
	// Priority is the SO_PRIORITY of the gateway's own sockets.
	Priority int
	// PeerDown is called when a peer that shares memory has hung up.
	PeerDown func(*shm.Peer)
	// Vacate stops the use of the links of this kind for which uses returns true: connections
	// leave them, and handshakes may finish first. With hard, what still uses them falls back
	// or is reset. uses is called on the link's shard.
	Vacate func(kind negotiate.CarrierKind, uses func(*Link) bool, hard bool)

	// Withdrawn is called before an adapter is closed, so that its other users stop using it.
	Withdrawn func(verbs.Device)
	// Adapters finds the RDMA adapters of the host. nil: use libibverbs.
	Adapters Adapters

	subnet  subnet       // queries InfiniBand subnets; nil: through the kernel
	growing atomic.Int64 // bytes of larger rings being allocated
	failed  completionErrors
}

// Answered receives the link of a server's connection, connected to the client's, and the
// offer that says how to reach it, or the error why there is none.
type Answered func(l *Link, offer negotiate.CarrierOffer, err error)

// Provider is the devices of one kind, as the negotiation sees them. Meet, Offer and Close
// may block. The other methods must not, because the connection's shard may call them.
type Provider interface {
	Kind() negotiate.CarrierKind
	// Offer makes the link of a client's connection and says how to reach it.
	Offer(r Request) (*Link, negotiate.CarrierOffer, error)
	// Met reports whether Answer can do without a prior Meet. Once Meet has succeeded, the
	// peer at that address is known, whatever becomes of the connection.
	Met(from negotiate.CarrierOffer, p *negotiate.Proposal) bool
	Meet(ctx context.Context, peer netip.Addr, from negotiate.CarrierOffer) error
	// Answer makes the link of a server's connection and connects it to the client's. It is
	// called on the shard and calls done there once, possibly before it returns.
	Answer(r Request, from negotiate.CarrierOffer, p *negotiate.Proposal, done Answered)
	// Devices describes the devices.
	Devices() []report.DeviceInfo
	// Close closes the devices. No link may use them any more, and the shards must have
	// stopped.
	Close() error
}

// Prompt is a provider whose Offer usually need not block.
type Prompt interface {
	// OffersAtOnce reports whether Offer would not block.
	OffersAtOnce(r *Request) bool
}

// Adapted is a provider of RDMA adapters.
type Adapted interface {
	// HasAdapter reports whether an adapter is in use now.
	HasAdapter() bool
}

// HasAdapter reports whether prov is a provider of RDMA adapters that has one in use now.
func HasAdapter(prov Provider) bool {
	a, ok := prov.(Adapted)
	return ok && a.HasAdapter()
}

// Exclusive is a kind of device that only one gateway per host can have.
type Exclusive interface {
	// GiveUp closes the device. Connections it carries continue without it or end; handshakes
	// fall back.
	GiveUp() error
	// Reclaim opens the device again.
	Reclaim() error
}

// Open opens the configured devices in order. A device that cannot be opened is left out and
// described in absent.
func Open(env *Env) (list []Provider, absent []report.DeviceInfo) {
	open := map[report.DeviceKind]func(*Env) (Provider, error){report.DeviceShm: openShm, report.DeviceHW: openHW, report.DeviceIB: openIB, report.DeviceSoft: openSoft}
	for _, kind := range env.Config.Carriers {
		prov, err := open[kind](env)
		switch {
		case errors.Is(err, errNoAddrs), errors.Is(err, errNoAdapters):
			env.Log.Info("carrier not on this host", "carrier", kind, "reason", err)
			absent = append(absent, missing(kind, report.DeviceAbsent, err.Error()))
		case err != nil:
			env.Log.Warn("carrier left out", "carrier", kind, "error", err)
			absent = append(absent, missing(kind, report.DeviceFailed, err.Error()))
		default:
			list = append(list, prov)
		}
	}
	return list, absent
}

// missing describes a device that was requested but is not available.
func missing(kind report.DeviceKind, state report.DeviceState, why string) report.DeviceInfo {
	return report.DeviceInfo{Name: string(kind) + "0", Kind: kind, Carrier: kind.Carrier(), State: state, Error: why}
}

// OfferReason returns the reason for an error of Provider.Offer. A local address without an adapter has a reason of its
// own, so that it is not remembered as the peer's lack of carriers.
func OfferReason(err error) negotiate.Reason {
	if errors.Is(err, ErrNoAdapter) {
		return negotiate.ReasonAddress
	}
	return AnswerReason(err)
}

// AnswerReason returns the reason for an error of Provider.Answer.
func AnswerReason(err error) negotiate.Reason {
	switch short := Shortage(err); {
	case short != negotiate.ReasonNone:
		return short
	case errors.Is(err, rmb.ErrNoMemory), errors.Is(err, verbs.ErrNoMemory):
		return negotiate.ReasonNoMemory
	case errors.Is(err, ErrFull):
		return negotiate.ReasonFlowLimit
	case errors.Is(err, ErrYielded): // not remembered
		return negotiate.ReasonDrained
	case errors.Is(err, ErrNoPath):
		return negotiate.ReasonCarrierUnreachable
	case errors.Is(err, ErrTranslated):
		return negotiate.ReasonNAT
	case errors.Is(err, ErrNotHere), errors.Is(err, fs.ErrNotExist): // no rendezvous: other kernel or shm_dir
		return negotiate.ReasonNoCommonCarrier
	default:
		return negotiate.ReasonDeviceFailed
	}
}

// Shortage returns the reason for a kernel error that reports a lack of resources, or ReasonNone.
func Shortage(err error) negotiate.Reason {
	switch {
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return negotiate.ReasonFlowLimit
	case errors.Is(err, unix.ENOMEM), errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.ENOSPC):
		return negotiate.ReasonNoMemory
	default:
		return negotiate.ReasonNone
	}
}

// MoreLocal returns which of two reasons for the lack of carriers to report: preferably one that says nothing about the
// peer.
func MoreLocal(a, b negotiate.Reason) negotiate.Reason {
	if a == negotiate.ReasonNoCommonCarrier || a == negotiate.ReasonCarrierUnreachable {
		return b
	}
	return a
}
