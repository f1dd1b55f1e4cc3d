package hw

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/hwtest"
	"github.com/smcgw/smcgw/verbs/verbstest"
)

// newLibrary makes adapters that end with the test.
func newLibrary(t testing.TB, n int, change ...func(*hwtest.Library)) *hwtest.Library {
	lib, err := hwtest.New(n)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, lib.Close()) })
	for _, f := range change {
		f(lib)
	}
	return lib
}

// openFake opens an adapter of a library. When the test ends nothing may be left of it.
func openFake(t testing.TB, lib *hwtest.Library, adapter string, change ...func(*Config)) *Device {
	cfg := Config{Adapter: adapter, Library: lib}
	for _, f := range change {
		f(&cfg)
	}
	d, err := Open(cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		s := d.Stats()
		require.Equal(t, Stats{}, Stats{QPs: s.QPs, CQs: s.CQs, AHs: s.AHs, MRs: s.MRs, PDs: s.PDs, Strays: s.Strays}, "left behind")
		require.NoError(t, d.Close())
	})
	return d
}

// openSide opens an adapter for the suite.
func openSide(t testing.TB, d *Device) verbstest.Side {
	pd, err := d.AllocPD()
	require.NoError(t, err)
	dr, err := d.Drive(0, verbstest.Deaf{})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, dr.Close())
		require.NoError(t, pd.Close())
	})
	return verbstest.Side{Device: d, PD: pd, Driver: dr}
}

func openPair(t testing.TB, lib *hwtest.Library) *verbstest.Pair {
	a, b := openFake(t, lib, "fake0"), openFake(t, lib, "fake1")
	p := &verbstest.Pair{A: openSide(t, a), B: openSide(t, b)}
	p.Attr = func(side *verbstest.Side, dest uint32) verbs.QPAttr {
		peer := p.A.Device
		if side == &p.A {
			peer = p.B.Device
		}
		return attrTo(peer, dest)
	}
	return p
}

// attrTo is what connects a queue pair with one of another adapter.
func attrTo(peer verbs.Device, dest uint32) verbs.QPAttr {
	attr, port := verbs.ConnectAttr(dest), peer.Port()
	attr.AH = verbs.AHAttr{DGID: port.GIDs[hwtest.GIDIndex].GID, SGIDIndex: hwtest.GIDIndex, HopLimit: 64, Port: 1}
	attr.PathMTU = port.ActiveMTU
	return attr
}

// The device on an adapter that does all that specification and libibverbs
// promise, and on one that forgets completions of queue pairs that end.
func TestConformance(t *testing.T) {
	for name, forgets := range map[string]bool{"Keeps": false, "Forgets": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it waits more than it computes
			verbstest.Run(t, func(t testing.TB) *verbstest.Pair {
				return openPair(t, newLibrary(t, 2, func(l *hwtest.Library) { l.Forgets = forgets }))
			})
		})
	}
}
