package beyond

import (
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/inprocess/broker"
	"github.com/smcgw/smcgw/negotiate"
)

// device is one of a kind, of which nothing else is asked.
type device struct {
	carrier.Provider
	kind negotiate.CarrierKind
}

func (d device) Kind() negotiate.CarrierKind { return d.kind }

// TestAnswers: a device answers its own kind, and where the peer says so that of the other kind's, but no adapter answers
// for soft where the peer has one.
func TestAnswers(t *testing.T) {
	hw, soft := negotiate.CarrierOffer{Kind: negotiate.CarrierHW}, negotiate.CarrierOffer{Kind: negotiate.CarrierSoft}
	mixedHW, mixedSoft := hw, soft
	mixedHW.Mixed, mixedSoft.Mixed = true, true
	for _, c := range []struct {
		kind   negotiate.CarrierKind
		offers []negotiate.CarrierOffer
		want   []bool
	}{
		{negotiate.CarrierHW, []negotiate.CarrierOffer{hw, soft}, []bool{true, false}},
		{negotiate.CarrierSoft, []negotiate.CarrierOffer{hw, soft}, []bool{false, true}},
		{negotiate.CarrierSoft, []negotiate.CarrierOffer{mixedHW, mixedSoft}, []bool{true, true}},
		{negotiate.CarrierHW, []negotiate.CarrierOffer{mixedHW, mixedSoft}, []bool{true, false}},
		{negotiate.CarrierHW, []negotiate.CarrierOffer{mixedSoft}, []bool{true}},
		{negotiate.CarrierSHM, []negotiate.CarrierOffer{mixedHW, mixedSoft}, []bool{false, false}},
	} {
		for i, want := range c.want {
			require.Equal(t, want, answers(device{kind: c.kind}, c.offers, i), "%v: offer %d of %+v", c.kind, i, c.offers)
		}
	}
}

// TestCarriersRest: a carrier that fails with a peer again and again is left alone with that peer, and no other is. What an
// operator or the peer ends has not failed, though it looks so until the peer has said it.
func TestCarriersRest(t *testing.T) {
	const failures = 3
	s := &Service{lines: rate.NewLimiter(0, 0), cfg: Config{
		Pays: func(*broker.Half, negotiate.CarrierKind) bool { return true }, Peers: peers.NewTable(config.Limits{}), Log: slog.New(slog.DiscardHandler),
	}}
	bad, good := s.newTalk(netip.MustParseAddr("10.0.0.1")), s.newTalk(netip.MustParseAddr("10.0.0.2"))
	left := s.newTalk(netip.MustParseAddr("10.0.0.3"))
	began := time.Now().Add(time.Hour) // so it rests yet, however slow the test is
	for i := range failures {
		for tk, why := range map[*talk]negotiate.Reason{bad: negotiate.ReasonDeviceFailed, good: negotiate.ReasonDrained, left: negotiate.ReasonDeviceFailed} {
			require.True(t, tk.admits(&end{}, device{kind: negotiate.CarrierHW}))
			tk.note(began.Add(time.Duration(i)*10*time.Second), &end{by: negotiate.CarrierHW, excused: tk == left}, why, nil)
		}
	}
	require.False(t, bad.admits(&end{}, device{kind: negotiate.CarrierHW}))
	require.True(t, bad.admits(&end{}, device{kind: negotiate.CarrierSoft}))
	require.True(t, good.admits(&end{}, device{kind: negotiate.CarrierHW}))
	require.True(t, left.admits(&end{}, device{kind: negotiate.CarrierHW}))
}
