package memory

import (
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/memhost"
)

// ends are the ways in which a gateway ends.
var ends = map[string]func(*memhost.Gateway) error{
	"stopped": (*memhost.Gateway).Stop,
	"killed":  (*memhost.Gateway).Kill,
}

// prompt is how soon a carried connection ends with its gateway. It is generous:
// the machine may be busy.
const prompt = 20 * time.Second

// TestServerGatewayDies: carried connections get a reset, the next one is
// native, and is carried again when the gateway is back.
func TestServerGatewayDies(t *testing.T) {
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.both()
			families(t, func(t *testing.T, addr func(*memhost.Host) netip.Addr) {
				c := w.hold(t, addr(w.h2))
				w.carried(t, c, report.CarrierShm, "")
				require.NoError(t, end(w.g2))
				require.NoError(t, c.SetDeadline(time.Now().Add(prompt)))
				_, err := c.Read(make([]byte, 1))
				require.ErrorIs(t, err, syscall.ECONNRESET)
				require.ErrorIs(t, w.ended(t, w.h2), syscall.ECONNRESET)
				w.native(t, w.echoesTo(t, addr(w.h2), echoPort), "peer_no_option")
				w.g2 = w.up(w.h2)
				w.carried(t, w.echoesTo(t, addr(w.h2), echoPort), report.CarrierShm, report.EndClosed)
			})
		})
	}
}

// TestClientGatewayDies: the same at the other end.
func TestClientGatewayDies(t *testing.T) {
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.both()
			families(t, func(t *testing.T, addr func(*memhost.Host) netip.Addr) {
				c := w.hold(t, addr(w.h2))
				w.carried(t, c, report.CarrierShm, "")
				require.NoError(t, end(w.g1))
				require.NoError(t, c.SetDeadline(time.Now().Add(prompt)))
				_, err := c.Read(make([]byte, 1))
				require.ErrorIs(t, err, syscall.ECONNRESET)
				require.ErrorIs(t, w.ended(t, w.h2), syscall.ECONNRESET)
				w.echoesTo(t, addr(w.h2), echoPort)
				w.g1 = w.up(w.h1)
				w.carried(t, w.echoesTo(t, addr(w.h2), echoPort), report.CarrierShm, report.EndClosed)
			})
		})
	}
}

// TestGatewayDiesWhileConnecting: no attempt to connect fails, whenever the
// gateway of either side ends.
func TestGatewayDiesWhileConnecting(t *testing.T) {
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.both(forgetful, briefly)
			for round := range 6 {
				g, h := &w.g1, w.h1
				if round%2 == 1 {
					g, h = &w.g2, w.h2
				}
				stopped := make(chan error, 1)
				dying := *g
				time.AfterFunc(time.Duration(round)*700*time.Microsecond, func() { stopped <- end(dying) })
				for range 20 {
					c, err := w.tryDial(t, w.h2.Addr4(), echoPort)
					require.NoError(t, err)
					_ = c.Close()
				}
				require.NoError(t, <-stopped)
				*g = w.up(h, forgetful, briefly)
			}
		})
	}
}
