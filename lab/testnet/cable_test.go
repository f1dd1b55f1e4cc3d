package testnet

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// A cable is a way of its own between two hosts, with its own MTU.
func TestCable(t *testing.T) {
	n, h1, h2 := start(t, Config{})
	for i := range 2 {
		a, b, err := n.Cable(h1, h2, 9000)
		require.NoError(t, err)
		require.Equal(t, byte(i+1), a.As4()[2])
		ln, err := h2.Listen("tcp", b.String()+":7000")
		require.NoError(t, err)
		c, err := h1.Dial(context.Background(), "tcp", ln.Addr().String())
		require.NoError(t, err)
		require.Contains(t, c.LocalAddr().String(), a.String())
		require.NoError(t, c.Close())
		require.NoError(t, ln.Close())
	}
	links, err := h1.Links()
	require.NoError(t, err)
	require.Subset(t, links, []string{"cable1", "cable2"})
}
