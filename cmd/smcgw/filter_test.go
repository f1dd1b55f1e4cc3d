package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func FuzzParsePeers(f *testing.F) {
	for _, text := range []string{"10.0.0.1", "[fd00::1]", "10.0.0.0/8", "fd00::/129", "::ffff:10.0.0.1", "fe80::1%eth0", ""} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := parsePeers(text)
		if err == nil {
			require.True(t, p.IsValid())
			require.Equal(t, p, p.Masked())
			again, err := parsePeers(p.String())
			require.NoError(t, err)
			require.Equal(t, p, again)
		}
	})
}
