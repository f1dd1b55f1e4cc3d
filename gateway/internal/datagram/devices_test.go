package datagram

import (
	"log/slog"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/twohosts"
	"github.com/smcgw/smcgw/negotiate"
)

// TestDatagramsHoldSoft: a soft device on which datagrams have a queue pair is in use until they
// leave it.
func TestDatagramsHoldSoft(t *testing.T) {
	own := twohosts.Addr(1)
	log := slog.New(slog.DiscardHandler)
	cfg := config.Config{Carriers: []report.DeviceKind{report.DeviceSoft}}
	cfg.Soft.UDPPort = twohosts.FreePort(t)
	cfg = cfg.WithDefaults()
	s, err := loop.New(0, log)
	require.NoError(t, err)
	var leave func()
	left := 0
	list, absent := carrier.Open(&carrier.Env{
		Config: cfg, Log: log, Shards: []*loop.Shard{s},
		Addrs: func() ([]netip.Addr, error) { return []netip.Addr{own}, nil },
		Vacate: func(negotiate.CarrierKind, func(*carrier.Link) bool, bool) {
			left++
			leave()
		},
	})
	require.Empty(t, absent)
	s.Start()
	t.Cleanup(func() {
		s.Halt()
		s.Detach()
		require.NoError(t, list[0].Close())
		s.CloseFDs()
	})
	dev, err := Providers(list)[0].(network).DatagramsAt(own, twohosts.Addr(2))
	require.NoError(t, err)
	_, leave, err = dev.Hold(s, queueNeed)
	require.NoError(t, err)
	require.NoError(t, list[0].(carrier.Exclusive).GiveUp())
	require.Equal(t, 1, left)
	_, _, err = dev.Hold(s, queueNeed)
	require.ErrorIs(t, err, carrier.ErrYielded)
}
