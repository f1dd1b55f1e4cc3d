package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/bench/programs"
	"github.com/smcgw/smcgw/lab/testnet"
)

// coldConnections is how many connections a run makes that are each the first.
const coldConnections = 10

// coldPeer is connections with one request each, one after the other, each the first with
// the peer where gateways carry it: how many a second, and how long one takes.
func coldPeer(ctx context.Context, w way, _ time.Duration) ([]float64, error) {
	service := uint16(echoPort)
	if carrier := w.coldBy(); carrier != report.CarrierNone {
		end, err := w.coldTrial(ctx, carrier)
		if err != nil {
			return nil, err
		}
		defer end()
		service = coldPort
	}
	var took []float64
	total := 0.0
	for range coldConnections {
		r, err := w.own(ctx, programs.Rate, service, "-count", "1")
		if err != nil {
			return nil, err
		}
		took = append(took, r.Median)
		total += r.Median / 1e6
	}
	slices.Sort(took)
	return []float64{coldConnections / total, took[coldConnections/2]}, nil
}

// coldBy is the carrier by which the peers of a way meet; none: they need not.
func (w way) coldBy() report.Carrier {
	switch w.kind() {
	case Shm:
		return report.CarrierShm
	case Soft1500:
		return report.CarrierSoft
	default:
		return report.CarrierNone
	}
}

// coldTrial has each connection to coldPort be carried as the first with its peer, until end is
// called.
func (w way) coldTrial(ctx context.Context, carrier report.Carrier) (end func(), err error) {
	at := w.to(coldPort)
	client, err := w.client.try(ctx, config.Trial{Peer: at.Addr(), Port: at.Port(), Action: report.ActionAccelerate, Carrier: carrier, Cold: true})
	if err != nil {
		return nil, err
	}
	server, err := w.server.try(ctx, config.Trial{Peer: w.from, Port: at.Port(), Action: report.ActionAccelerate})
	if err != nil {
		client.Close()
		return nil, err
	}
	return func() { client.Close(); server.Close() }, nil
}

// try begins a trial, after the end of the one before, which the gateway may not have
// noticed yet.
func (h *host) try(ctx context.Context, t config.Trial) (*admin.Held, error) {
	for {
		held, err := h.gateway.admin.Try(ctx, t)
		switch {
		case err == nil:
			return held, nil
		case !errors.Is(err, config.ErrTrialHeld), testnet.Sleep(ctx, 5*time.Millisecond) != nil:
			return nil, fmt.Errorf("trial at %s: %w", h.Name, err)
		}
	}
}
