package gateway

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestDrainWithoutSight: a gateway does not take sockets that it cannot look at for ones that
// have delivered everything, and says so once.
func TestDrainWithoutSight(t *testing.T) {
	p := newGatewayPair(t)
	g, steer := p.g[0], p.steer[0]
	g.host.Beside = activated{}
	var said bytes.Buffer
	g.log = slog.New(slog.NewTextHandler(&said, nil))
	unknown := lingers{err: errors.New("no answer")}
	steer.lingering = []lingers{unknown}
	require.True(t, g.busy())

	steer.lingering = []lingers{unknown, unknown, {n: 3, err: unknown.err}, {n: 2}, {}}
	_, err := g.Drain(time.Hour)
	require.NoError(t, err)
	require.ErrorIs(t, g.awaitDrain(t.Context()), errDrained)
	require.Len(t, steer.lingering, 1, "it has looked until nothing lingered")
	require.Equal(t, 1, strings.Count(said.String(), "sockets that linger are not known"), said.String())
}
