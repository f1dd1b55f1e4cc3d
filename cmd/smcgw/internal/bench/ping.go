package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

// PingSchema names the format of PingReport.
const PingSchema = "smcgw.ping/v1"

// PingOptions are the options of Ping.
type PingOptions struct {
	// To lists the services, at most maxServices.
	To []netip.AddrPort
	// Count is the number of connections to each. Default: 3. At most a thousand.
	Count int
	// Interval is the time between connections. Default: 200 ms.
	Interval time.Duration
	// Timeout bounds connect(). Default: 5 s.
	Timeout time.Duration
	// Gateway is the one beside us.
	Gateway Gateway
	// Offer makes a trial offer the connections, whatever the rules say. Only Carrier is offered then; empty: all.
	Offer   bool
	Carrier report.Carrier
	// Each is called for every connection. Default: nothing.
	Each func(PingTry)
}

// maxServices bounds the services of one call.
const maxServices = 16

// ErrPing means invalid options.
var ErrPing = errors.New("ping")

func (o PingOptions) withDefaults() (PingOptions, error) {
	if o.Count == 0 {
		o.Count = 3
	}
	if o.Interval == 0 {
		o.Interval = 200 * time.Millisecond
	}
	if o.Timeout == 0 {
		o.Timeout = 5 * time.Second
	}
	if o.Each == nil {
		o.Each = func(PingTry) {}
	}
	switch {
	case len(o.To) == 0 || len(o.To) > maxServices:
		return o, fmt.Errorf("%w: %d services, want 1 to %d", ErrPing, len(o.To), maxServices)
	case slices.ContainsFunc(o.To, func(a netip.AddrPort) bool { return !a.IsValid() || a.Port() == 0 }):
		return o, fmt.Errorf("%w: services %v: one has no address and port", ErrPing, o.To)
	case o.Count < 1 || o.Count > 1000:
		return o, fmt.Errorf("%w: count %d: not between 1 and 1000", ErrPing, o.Count)
	case o.Interval < 10*time.Millisecond || o.Timeout < 10*time.Millisecond:
		return o, fmt.Errorf("%w: interval %v, timeout %v: less than 10 ms", ErrPing, o.Interval, o.Timeout)
	}
	return o, nil
}

// Stage is how far an offer got. The names never change.
type Stage string

// The stages: the connection was not offered, for a reason on this host; the offer was sent but no gateway answered; a
// gateway answered, and one of the two declined; the gateways agreed, but only their relay carries; a device carries.
// Without a connection there is no stage.
const (
	StageNotOffered Stage = "not_offered"
	StageNoAnswer   Stage = "no_answer"
	StageDeclined   Stage = "declined"
	StageRelayed    Stage = "relayed"
	StageCarried    Stage = "carried"
)

// NoAnswer is the error of a connection attempt that got no reply.
const NoAnswer = "no answer"

// ReasonUnseen is the reason of a connection that the gateway does not know: it was made in another network namespace,
// or by a path without a device of the gateway.
const ReasonUnseen = "unseen"

// stageOf returns the stage of a connection by its result.
func stageOf(carrier report.Carrier, reason, decidedBy string) Stage {
	r, known := negotiate.ParseReason(reason)
	here := r < negotiate.ReasonPeerNoOption || r == negotiate.ReasonMode || r == negotiate.ReasonNotWorthIt
	switch {
	case carrier == report.CarrierRelay:
		return StageRelayed
	case carrier != report.CarrierNone:
		return StageCarried
	case reason == ReasonUnseen, known && here && decidedBy != report.DecidedRemote:
		return StageNotOffered
	case known && !here && r < negotiate.ReasonVersion && r != negotiate.ReasonAcceptLost && r != negotiate.ReasonClientGone:
		return StageNoAnswer
	default:
		return StageDeclined
	}
}

// PingTry is one connection.
type PingTry struct {
	Service  netip.AddrPort `json:"service"`
	Sequence int            `json:"sequence"` // from 1
	Local    netip.AddrPort `json:"local,omitzero"`
	// ConnectSeconds is the time of connect().
	ConnectSeconds float64 `json:"connect_seconds"`
	Stage          Stage   `json:"stage,omitempty"`
	// Carrier is what carried the connection, empty: it was native. Reason says why, or why it was the relay; DecidedBy is
	// local or remote.
	Carrier   report.Carrier `json:"carrier"`
	Reason    string         `json:"reason"`
	DecidedBy string         `json:"decided_by,omitempty"`
	// MTU is that of the carrier, in payload bytes; 0: unknown.
	MTU int `json:"mtu,omitempty"`
	// Error is why there was no connection.
	Error string `json:"error,omitempty"`
}

// PingReport is the document of ping.
type PingReport struct {
	Schema string    `json:"schema"`
	Offer  bool      `json:"offer"` // offered by a trial
	Tries  []PingTry `json:"tries"`
	// Carried counts the tries carried by a device, Relayed those by the relay, Native those that stayed native, Failed
	// those without a connection.
	Carried int `json:"carried"`
	Relayed int `json:"relayed"`
	Native  int `json:"native"`
	Failed  int `json:"failed"`
	// Minimum, Median and Maximum are of ConnectSeconds.
	Minimum float64 `json:"connect_min_seconds"`
	Median  float64 `json:"connect_median_seconds"`
	Maximum float64 `json:"connect_max_seconds"`
}

// Ping opens connections, as any program of this host would, and asks the gateway for the result of each. If it fails
// midway, it returns the results so far with the error. It sends no data: a service accepts a connection that ends.
func Ping(ctx context.Context, o PingOptions) (*PingReport, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	list, err := o.Gateway.Devices(ctx)
	if err != nil {
		return nil, err
	}
	r := &PingReport{Schema: PingSchema, Offer: o.Offer, Tries: []PingTry{}}
	for _, to := range o.To {
		if err = o.service(ctx, to, list.Devices, r); err != nil {
			break
		}
	}
	r.sum()
	return r, err
}

// service makes the connections to one service.
func (o *PingOptions) service(ctx context.Context, to netip.AddrPort, devices []report.DeviceInfo, r *PingReport) error {
	to = netip.AddrPortFrom(to.Addr().Unmap(), to.Port())
	if o.Offer {
		held, err := o.Gateway.Try(ctx, config.Trial{Peer: to.Addr(), Port: to.Port(), Action: report.ActionAccelerate, Carrier: o.Carrier})
		if err != nil {
			return err
		}
		defer held.Close()
	}
	for n := 1; n <= o.Count; n++ {
		if len(r.Tries) > 0 {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(o.Interval):
			}
		}
		t, err := o.one(ctx, to, devices)
		if err != nil {
			return err
		}
		t.Sequence = n
		r.Tries = append(r.Tries, t)
		o.Each(t)
	}
	return nil
}

// one makes a connection and looks it up while it exists.
func (o *PingOptions) one(ctx context.Context, to netip.AddrPort, devices []report.DeviceInfo) (PingTry, error) {
	t := PingTry{Service: to}
	began := time.Now()
	d := net.Dialer{Timeout: o.Timeout}
	d.SetMultipathTCP(false)
	c, err := d.DialContext(ctx, "tcp", to.String())
	t.ConnectSeconds = time.Since(began).Seconds()
	if err != nil {
		if ctx.Err() != nil {
			return t, context.Cause(ctx)
		}
		t.Error = refusedBy(err)
		return t, nil
	}
	defer func() { _ = c.Close() }()
	tcp, isTCP := c.(*net.TCPConn)
	if !isTCP {
		return t, fmt.Errorf("%w: connection of type %T", ErrPing, c)
	}
	local, remote, err := ends(tcp)
	if err != nil {
		return t, err
	}
	t.Local = local
	info, err := becameOf(ctx, o.Gateway, measured{began: began, conns: []tuple{{local, remote}}})
	if err != nil {
		return t, err
	}
	t.Carrier, t.Reason, t.DecidedBy = info.Carrier, info.Reason, info.DecidedBy
	t.Stage, t.MTU = stageOf(info.Carrier, info.Reason, info.DecidedBy), mtuOf(devices, info.Carrier, local.Addr())
	return t, nil
}

// refusedBy returns a short text for the error of connect().
func refusedBy(err error) string {
	var e net.Error
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return "connection refused"
	case errors.As(err, &e) && e.Timeout(), errors.Is(err, os.ErrDeadlineExceeded):
		return NoAnswer
	default:
		return err.Error()
	}
}

// becameOf returns the record of one connection. If the gateway has no record after a while, the reason is
// [ReasonUnseen], or that the connection is one within this host, which the gateway does not report.
func becameOf(ctx context.Context, g Gateway, m measured) (report.ConnInfo, error) {
	found, err := awaitRecords(ctx, g, m, report.WaySteered)
	if err != nil {
		return report.ConnInfo{}, err
	}
	c := m.conns[0]
	if info, ok := found[c]; ok {
		return info, nil
	}
	if c.local.Addr() == c.remote.Addr() || c.remote.Addr().IsLoopback() {
		return report.ConnInfo{Reason: negotiate.ReasonAddress.String(), DecidedBy: report.DecidedLocal}, nil
	}
	return report.ConnInfo{Reason: ReasonUnseen}, nil
}

// mtuOf returns the path MTU of the carrier's device that has the address.
func mtuOf(devices []report.DeviceInfo, c report.Carrier, local netip.Addr) int {
	for _, d := range devices {
		if d.Carrier == c && d.State == report.DeviceActive && (len(d.GIDs) == 0 || slices.ContainsFunc(d.GIDs, func(g netip.Addr) bool { return g.Unmap() == local.Unmap() })) {
			return d.MTU
		}
	}
	return 0
}

// sum counts the results of the tries.
func (r *PingReport) sum() {
	var times []float64
	for _, t := range r.Tries {
		switch {
		case t.Error != "":
			r.Failed++
			continue
		case t.Stage == StageCarried:
			r.Carried++
		case t.Stage == StageRelayed:
			r.Relayed++
		default:
			r.Native++
		}
		times = append(times, t.ConnectSeconds)
	}
	if len(times) == 0 {
		return
	}
	slices.Sort(times)
	r.Minimum, r.Median, r.Maximum = times[0], times[len(times)/2], times[len(times)-1]
}
