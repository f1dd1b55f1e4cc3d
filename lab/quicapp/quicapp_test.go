package quicapp

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/leak"
)

func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }

func TestOrder(t *testing.T) {
	o := order{seed: 1 << 63, size: 1 << 31}
	b := o.bytes()
	require.Len(t, b, orderLen)
	got, err := parseOrder(b)
	require.NoError(t, err)
	require.Equal(t, o, got)
	for i := range b {
		_, err := parseOrder(b[:i])
		require.ErrorIs(t, err, errTransfer)
	}
	for _, size := range []int64{-1, sizeLimit + 1} {
		_, err := parseOrder(order{size: size}.bytes())
		require.ErrorIs(t, err, errTransfer, "%d", size)
	}
}

func TestUsage(t *testing.T) {
	for _, app := range Apps() {
		require.ErrorIs(t, app.Run([]string{"-nonsense"}, func(apps.Event) {}), errUsage)
	}
}
