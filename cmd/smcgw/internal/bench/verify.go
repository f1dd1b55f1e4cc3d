package bench

import (
	"context"
	"time"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/inprocess"
)

// carriage is how the connections of a run were carried.
type carriage struct {
	as     int    // as wanted
	other  int    // otherwise
	reason string // reason of the first that was not carried as wanted
}

// enough is the fraction of connections that must have been carried as claimed for a value to count.
const enough = 0.99

// holds reports whether a value counts.
func (c carriage) holds() bool {
	return c.as > 0 && float64(c.as) >= enough*float64(c.as+c.other)
}

// Time limits of looking up.
const (
	// lookupPatience is how long the gateway may take to record the end of a connection.
	lookupPatience = 3 * time.Second
	lookupPause    = 20 * time.Millisecond
	// clockSlack is the maximum difference between the clocks that date the beginning of a run and, in the kernel
	// programs, a decision.
	clockSlack = 100 * time.Millisecond
)

// unseen is the reason of a connection of which the gateway has no record.
const unseen = "not seen by the gateway"

// verify looks up the connections of a run in the records of the gateway beside us. A connection of plain TCP without a
// record is plain TCP.
func verify(ctx context.Context, g Gateway, m measured, want *variant) (carriage, error) {
	var c carriage
	found, err := awaitRecords(ctx, g, m, want.way)
	if err != nil {
		return c, err
	}
	for _, t := range m.conns {
		c.add(found, t, want)
	}
	return c, nil
}

// awaitRecords is lookUp, but gives the gateway time to record all connections of the run.
func awaitRecords(ctx context.Context, g Gateway, m measured, way report.Way) (map[tuple]report.ConnInfo, error) {
	for end := time.Now().Add(lookupPatience); ; {
		found, err := lookUp(ctx, g, m, way)
		if err != nil || len(found) == len(m.conns) || time.Now().After(end) {
			return found, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(lookupPause):
		}
	}
}

func (c *carriage) add(found map[tuple]report.ConnInfo, t tuple, want *variant) {
	info, ok := found[t]
	switch {
	case ok && info.Carrier == want.carrier && (want.way != report.WayInProcess || byRings(info)), !ok && want.carrier == report.CarrierNone:
		c.as++
		return
	case c.reason != "":
	case !ok:
		c.reason = unseen
	case info.Reason != "":
		c.reason = info.Reason
	case info.Carrier == report.CarrierNone && info.State == inprocess.StateAsked.String(): // the other end has not asked
		c.reason = inprocess.WhyNoPeer.String()
	case info.Carrier == report.CarrierNone:
		c.reason = "not promoted"
	case info.Carrier == want.carrier:
		c.reason = "most bytes went by the kernel"
	default:
		c.reason = "carried by " + string(info.Carrier)
	}
	c.other++
}

// byRings reports that most bytes of an end in process went through its rings. The first ones never do.
func byRings(c report.ConnInfo) bool {
	return c.InProcess != nil && 2*(c.InProcess.TxRing+c.InProcess.RxRing) > c.TxBytes+c.RxBytes
}

// lookUp returns the latest record of each connection since the run began, by the given way; by default those of two
// gateways.
func lookUp(ctx context.Context, g Gateway, m measured, way report.Way) (map[tuple]report.ConnInfo, error) {
	wanted := map[tuple]bool{}
	for _, t := range m.conns {
		wanted[t] = true
	}
	found := map[tuple]report.ConnInfo{}
	add := func(info report.ConnInfo) {
		t := tuple{info.Local, info.Remote}
		old, ok := found[t]
		if !wanted[t] || (info.InProcess != nil) != (way == report.WayInProcess) || info.Proto != string(report.ProtoTCP) || ok && old.ID > info.ID ||
			!info.EndedAt.IsZero() && info.EndedAt.Before(m.began.Add(-clockSlack)) || !settled(info) {
			return
		}
		found[t] = info
	}
	for _, info := range m.seen {
		add(info)
	}
	if len(found) == len(m.conns) {
		return found, nil
	}
	for _, q := range []report.ConnQuery{{All: true}, {Closed: true}} {
		list, err := g.Conns(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, info := range list.Conns {
			add(info)
		}
	}
	return found, nil
}

// settled reports that it is known how the connection continues, or ended. An end in process that has neither carrier
// nor reason was not promoted.
func settled(c report.ConnInfo) bool {
	return c.Carrier != report.CarrierNone || c.Reason != "" || c.InProcess != nil
}

// Gateway is the interface to the gateway beside a program of this package. [Beside] makes one of an admin client.
type Gateway interface {
	// Try starts a trial; see [admin.Client.Try].
	Try(ctx context.Context, t config.Trial) (Held, error)
	// Conns lists connections, newest first.
	Conns(ctx context.Context, q report.ConnQuery) (admin.ConnList, error)
	// Devices lists the RDMA devices of the configuration.
	Devices(ctx context.Context) (admin.DeviceList, error)
	// Metrics returns the gateway's metrics, in Prometheus' text format.
	Metrics(ctx context.Context) ([]byte, error)
	// DaemonPID returns the process of the gateway, or 0 if it cannot be seen.
	DaemonPID(ctx context.Context) (int, error)
}

// Held is a trial in force.
type Held interface {
	// Close ends the trial; the gateway notices a moment later. It is idempotent.
	Close()
	// Done returns a channel that is closed when the trial is over, whichever side ended it.
	Done() <-chan struct{}
}

// Beside returns the gateway behind an admin socket.
func Beside(c *admin.Client) Gateway { return beside{c} }

type beside struct{ *admin.Client }

// Try implements Gateway.
func (b beside) Try(ctx context.Context, t config.Trial) (Held, error) {
	h, err := b.Client.Try(ctx, t)
	if err != nil {
		return nil, err
	}
	return h, nil
}
