package bench

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
)

// fakeGateway says of every connection what it is told to.
type fakeGateway struct {
	mu      sync.Mutex // guards everything below
	trial   *config.Trial
	tried   []config.Trial
	tryErr  error
	devices []report.DeviceInfo
	conns   func(q report.ConnQuery) []report.ConnInfo
	pid     int
	metrics func() string
	held    *fakeHeld // the last
}

type fakeHeld struct {
	g    *fakeGateway
	done chan struct{}
	once sync.Once
}

func (h *fakeHeld) Done() <-chan struct{} { return h.done }

func (h *fakeHeld) Close() {
	h.once.Do(func() {
		h.g.mu.Lock()
		defer h.g.mu.Unlock()
		h.g.trial = nil
		close(h.done)
	})
}

func (g *fakeGateway) Try(_ context.Context, t config.Trial) (Held, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.tryErr != nil {
		return nil, g.tryErr
	}
	if g.trial != nil {
		return nil, errors.New("the trial before was not closed")
	}
	g.trial = &t
	g.tried = append(g.tried, t)
	g.held = &fakeHeld{g: g, done: make(chan struct{})}
	return g.held, nil
}

func (g *fakeGateway) Conns(_ context.Context, q report.ConnQuery) (admin.ConnList, error) {
	return admin.ConnList{Conns: g.conns(q)}, nil
}

func (g *fakeGateway) Devices(context.Context) (admin.DeviceList, error) {
	return admin.DeviceList{Devices: g.devices}, nil
}

func (g *fakeGateway) Metrics(context.Context) ([]byte, error) {
	if g.metrics == nil {
		return nil, errors.New("no metrics")
	}
	return []byte(g.metrics()), nil
}

func (g *fakeGateway) DaemonPID(context.Context) (int, error) { return g.pid, nil }

func someTuple(port uint16) tuple {
	return tuple{netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), port), netip.MustParseAddrPort("10.0.0.2:4792")}
}

func TestVerify(t *testing.T) {
	now := time.Now()
	entry := func(id uint64, port uint16, c report.Carrier, reason string, ended time.Time) report.ConnInfo {
		tu := someTuple(port)
		return report.ConnInfo{ID: id, Proto: "tcp", Local: tu.local, Remote: tu.remote, Carrier: c, Reason: reason, EndedAt: ended}
	}
	udp := entry(99, 1, report.CarrierSoft, "", now)
	udp.Proto = "udp"
	g := &fakeGateway{conns: func(q report.ConnQuery) []report.ConnInfo {
		if q.Closed {
			return []report.ConnInfo{
				entry(9, 1, report.CarrierShm, "", now),
				entry(8, 4, report.CarrierRelay, "carrier_unreachable", now),
				entry(2, 2, report.CarrierSoft, "", now.Add(-time.Hour)), // of an earlier connection
			}
		}
		return []report.ConnInfo{
			udp,
			entry(7, 3, report.CarrierNone, "peer_no_option", now),
			entry(6, 2, report.CarrierShm, "", time.Time{}), // still carried
			entry(1, 1, report.CarrierNone, "policy", now),  // an older one of the tuple
		}
	}}
	check := func(want report.Carrier, ports ...uint16) carriage {
		t.Helper()
		m := measured{began: now}
		for _, p := range ports {
			m.conns = append(m.conns, someTuple(p))
		}
		c, err := verify(t.Context(), g, m, &variant{carrier: want})
		require.NoError(t, err)
		return c
	}
	require.Equal(t, carriage{as: 2}, check(report.CarrierShm, 1, 2))
	require.Equal(t, carriage{as: 1, other: 2, reason: "peer_no_option"}, check(report.CarrierShm, 1, 3, 4))
	require.Equal(t, carriage{other: 1, reason: "carrier_unreachable"}, check(report.CarrierSoft, 4))
	require.Equal(t, carriage{as: 1, other: 1, reason: "carried by rdma-shm"}, check(report.CarrierNone, 1, 3))

	require.True(t, carriage{as: 99, other: 1}.holds())
	require.False(t, carriage{as: 98, other: 2}.holds())
	require.False(t, carriage{}.holds())
}

// TestVerifyInProcess: a value counts if most of its bytes went by rings that the carrier joined. Ends are seen while they last,
// beside what the steering says of the same connections.
func TestVerifyInProcess(t *testing.T) {
	now := time.Now()
	end := func(c report.Carrier, reason string, tx, txRing uint64) report.ConnInfo {
		tu := someTuple(1)
		return report.ConnInfo{ID: 1 << 40, Proto: "tcp", Local: tu.local, Remote: tu.remote, Carrier: c, Reason: reason, TxBytes: tx, InProcess: &report.InProcessEnd{TxRing: txRing}}
	}
	steered := end(report.CarrierNone, "policy", 0, 0)
	steered.ID, steered.InProcess = 7, nil
	g := &fakeGateway{conns: func(report.ConnQuery) []report.ConnInfo { return []report.ConnInfo{steered} }}
	check := func(want *variant, seen ...report.ConnInfo) carriage {
		t.Helper()
		c, err := verify(t.Context(), g, measured{began: now, conns: []tuple{someTuple(1)}, seen: seen}, want)
		require.NoError(t, err)
		return c
	}
	rings := &variant{carrier: report.CarrierSoft, way: report.WayInProcess}
	require.Equal(t, carriage{as: 1}, check(rings, end(report.CarrierSoft, "", 100, 51)))
	require.Equal(t, carriage{other: 1, reason: "most bytes went by the kernel"}, check(rings, end(report.CarrierSoft, "", 100, 50)))
	require.Equal(t, carriage{other: 1, reason: "carried by rdma-hw"}, check(rings, end(report.CarrierHW, "", 100, 100)))
	require.Equal(t, carriage{other: 1, reason: "no_peer"}, check(rings, end(report.CarrierNone, "no_peer", 100, 0)))
	require.Equal(t, carriage{other: 1, reason: "not promoted"}, check(rings, end(report.CarrierNone, "", 100, 0)))
	asked := end(report.CarrierNone, "", 100, 0)
	asked.State = "asked"
	require.Equal(t, carriage{other: 1, reason: "no_peer"}, check(rings, asked))
	require.Equal(t, carriage{other: 1, reason: "policy"}, check(&variant{carrier: report.CarrierSoft, way: report.WaySteered}, end(report.CarrierSoft, "", 100, 100)))
}

func TestVerifyUnseen(t *testing.T) { synctest.Test(t, verifyUnseen) }

func verifyUnseen(t *testing.T) {
	g := &fakeGateway{conns: func(report.ConnQuery) []report.ConnInfo { return nil }}
	m := measured{began: time.Now(), conns: []tuple{someTuple(1)}}
	c, err := verify(t.Context(), g, m, &variant{carrier: report.CarrierShm})
	require.NoError(t, err)
	require.Equal(t, carriage{other: 1, reason: unseen}, c)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = verify(ctx, g, m, &variant{})
	require.ErrorIs(t, err, context.Canceled)
}
