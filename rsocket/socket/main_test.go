package socket

import (
	"crypto/rand"
	mathrand "math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/smcgw/smcgw/rsocket"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/shm"
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

func openShm(t testing.TB, dir string) *shm.Device {
	cfg := shm.Config{Dir: dir, PeerQuota: 16 << 20, HandshakeTimeout: patience}
	_, _ = rand.Read(cfg.GatewayID[:])
	d, err := shm.Open(cfg)
	require.NoError(t, err)
	return d
}

func waitFor(t testing.TB, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatal(what)
	}
}

// countingSRQ counts the receives that come back.
type countingSRQ struct {
	verbs.SRQ
	recvs int
}

func (s *countingSRQ) PostRecv(*verbs.RecvWR) error {
	s.recvs++
	return nil
}

// sharing is an endpoint on the queue pair of a connection that takes its receives from another queue.
func sharing(t *testing.T, c *Conn, srq verbs.SRQ) *rsocket.Endpoint {
	old, cfg := c.ep, c.ep.Config()
	cfg.SRQ = srq
	ep, err := rsocket.NewEndpoint(c.qp, c.dom.arena, cfg)
	if err != nil {
		t.Error(err)
		return old
	}
	old.Retire()
	t.Cleanup(func() { require.NoError(t, old.Release()) })
	return ep
}
