package shm

import (
	"context"
	"crypto/rand"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/leak"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/verbstest"
)

func TestMain(m *testing.M) {
	if mode := os.Getenv("SHM_TEST_CHILD"); mode != "" {
		os.Exit(child(mode))
	}
	os.Exit(leak.Main(m))
}

func newID() (id [16]byte) {
	_, _ = rand.Read(id[:])
	return id
}

func openDevice(t testing.TB, dir string, change ...func(*Config)) *Device {
	cfg := Config{Dir: dir, GatewayID: newID(), PeerQuota: 8 << 20, HandshakeTimeout: patience}
	for _, f := range change {
		f(&cfg)
	}
	d, err := Open(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

// met returns two devices and their view of each other; the first one called.
func met(t testing.TB, change ...func(*Config)) (*Device, *Device, *Peer, *Peer) {
	dir := t.TempDir()
	a, b := openDevice(t, dir, change...), openDevice(t, dir, change...)
	_, err := b.Listen()
	require.NoError(t, err)
	pb, err := b.Offer()
	require.NoError(t, err)
	pa, err := a.Attach(context.Background(), pb.Name(), pb.Key())
	require.NoError(t, err)
	return a, b, pa, pb
}

func drive(t testing.TB, d *Device, vector int) verbs.Driver {
	dr, err := d.Drive(vector, verbstest.Deaf{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dr.Close()) })
	return dr
}

func openPair(t testing.TB) *verbstest.Pair {
	a, b, pa, pb := met(t)
	return &verbstest.Pair{
		A: verbstest.Side{Device: a, PD: pa.PD(), Driver: drive(t, a, 0)},
		B: verbstest.Side{Device: b, PD: pb.PD(), Driver: drive(t, b, 0)},
	}
}

func TestConformance(t *testing.T) { verbstest.Run(t, openPair) }

// patience bounds the wait for what has to happen, on however slow a machine.
const patience = 30 * time.Second

// eventually polls a condition.
func eventually(t testing.TB, within time.Duration, cond func() bool, what string) {
	t.Helper()
	require.Eventually(t, cond, within, time.Millisecond, what)
}
