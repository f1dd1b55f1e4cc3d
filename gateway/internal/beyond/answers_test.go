package beyond

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/internal/carrier"
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
