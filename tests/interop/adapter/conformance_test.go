package adapter

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/leak"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw"
	"github.com/smcgw/smcgw/verbs/verbstest"
)

func TestMain(m *testing.M) {
	if os.Getenv(Variable) == "" {
		fmt.Println("nothing to run: this is for a guest of tests/interop")
		return
	}
	os.Exit(leak.Main(m))
}

// patience is long enough for an emulated machine.
const patience = 20 * time.Second

func open(t testing.TB) (*hw.Device, verbstest.Side) {
	d, err := hw.Open(hw.Config{Adapter: os.Getenv(Variable), Vectors: 2})
	require.NoError(t, err)
	pd, err := d.AllocPD()
	require.NoError(t, err)
	dr, err := d.Drive(0, verbstest.Deaf{})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, dr.Close())
		require.NoError(t, pd.Close())
		require.Equal(t, hw.Stats{}, objects(d), "left behind")
		require.NoError(t, d.Close())
	})
	return d, verbstest.Side{Device: d, PD: pd, Driver: dr}
}

// objects returns the number of the device's objects.
func objects(d *hw.Device) hw.Stats {
	s := d.Stats()
	return hw.Stats{QPs: s.QPs, CQs: s.CQs, AHs: s.AHs, MRs: s.MRs, PDs: s.PDs, Strays: s.Strays}
}

// mostDeviations bounds the number of rules that may be listed for a driver.
const mostDeviations = 20

func TestConformance(t *testing.T) {
	for driver, rules := range deviations {
		require.LessOrEqual(t, len(rules), mostDeviations, driver)
	}
	verbstest.Run(t, func(t testing.TB) *verbstest.Pair {
		dev, a := open(t)
		_, b := open(t)
		index := ipv4(t, dev.Port())
		return &verbstest.Pair{
			A: a, B: b, Patience: patience, Deviates: deviations[dev.Attr().Provider],
			Attr: func(_ *verbstest.Side, dest uint32) verbs.QPAttr {
				attr, port := verbs.ConnectAttr(dest), dev.Port()
				attr.AH = verbs.AHAttr{DGID: port.GIDs[index].GID, SGIDIndex: uint8(index), HopLimit: 64, Port: 1}
				attr.PathMTU = port.ActiveMTU
				return attr
			},
		}
	})
}

// ipv4 returns the index of the port's IPv4 address.
func ipv4(t testing.TB, p verbs.PortAttr) int {
	for i, e := range p.GIDs {
		if !e.Empty() && e.GID.Addr().Is4() && e.Type == verbs.GIDTypeRoCEv2 {
			return i
		}
	}
	require.Fail(t, "no IPv4 address", "%+v", p.GIDs)
	return 0
}
