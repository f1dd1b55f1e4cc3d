package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSemanticsOfAcknowledgementLost makes nothing that the application sends leave its host after connect() has
// returned, for longer than TCP's first timers. The connection must be carried once it does.
func TestSemanticsOfAcknowledgementLost(t *testing.T) {
	t.Parallel()
	w := newServed(t)
	w.upBoth(ownSettings())
	require.True(t, w.inTime(func() bool { return w.acknowledgesLate(t) }))
}

// acknowledgesLate does so, and returns false if a connection found a gateway late.
func (w *world) acknowledgesLate(t *testing.T) bool {
	t.Helper()
	require.NoError(t, w.h1.NFT(fmt.Sprintf(`table inet lost {
		chain output {
			type filter hook output priority 0;
			tcp dport %d tcp flags & (syn | ack) == ack counter drop
		}
	}`, echoPort)))
	said := []byte("said before anything was acknowledged")
	var conns []net.Conn
	for _, to := range []string{w.h2.AddrPort4(echoPort).String(), w.h2.AddrPort6(echoPort).String()} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		c, err := w.h1.Dial(ctx, "tcp", to)
		require.NoError(t, err)
		defer func() { _ = c.Close() }()
		_, err = c.Write(said)
		require.NoError(t, err)
		conns = append(conns, c)
	}
	time.Sleep(slowed(2500 * time.Millisecond)) // TCP retransmits after 0.2, 0.6, 1.4 and 3 seconds
	require.NoError(t, w.h1.NFT("flush ruleset"))
	for _, c := range conns {
		e := connEvent(c)
		require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
		got := make([]byte, len(said))
		_, err := io.ReadFull(c, got)
		require.NoError(t, err)
		require.Equal(t, said, got)
		require.NoError(t, c.Close())
		if w.foundLate(e) {
			return false
		}
		w.carriedBy(e, w.via)
	}
	return true
}
