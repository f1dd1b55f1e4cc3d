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
}

func FuzzParseOrder(f *testing.F) {
	f.Add(order{seed: 1, size: 2}.bytes())
	f.Add(order{size: -1}.bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := parseOrder(b)
		if err == nil {
			require.Equal(t, b, o.bytes())
		}
	})
}

func TestUsage(t *testing.T) {
	for _, app := range Apps() {
		require.ErrorIs(t, app.Run([]string{"-nonsense"}, func(apps.Event) {}), errUsage)
	}
}
