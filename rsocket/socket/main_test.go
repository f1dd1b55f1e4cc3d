package socket

import (
	mathrand "math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pattern is what travels: byte i of a direction is pattern[i % len(pattern)]. The length has no factor in common with
// any ring.
var pattern = func() []byte {
	b := make([]byte, 99991)
	r := mathrand.NewChaCha8([32]byte{})
	_, _ = r.Read(b)
	return b
}()

func ap(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func waitFor(t testing.TB, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatal(what)
	}
}
