package config

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestStallTimeoutText(t *testing.T) {
	for text, want := range map[string]StallTimeout{"0": NoStallTimeout, "0s": NoStallTimeout, "90s": StallTimeout(90 * time.Second)} {
		c := parseString(t, "limits: { stall_timeout: "+text+" }\n").Config
		require.Equal(t, want, c.Limits.StallTimeout, text)
		require.NoError(t, validated(c))
		out, err := want.MarshalText()
		require.NoError(t, err)
		require.Equal(t, want, parseString(t, "limits: { stall_timeout: "+string(out)+" }\n").Config.Limits.StallTimeout)
	}
	for _, text := range []string{"never", "-1s", "10ms", "2h"} {
		_, err := parseConfig("f", []byte("limits: { stall_timeout: "+text+" }\n"), testUsers)
		require.ErrorContains(t, err, "limits.stall_timeout", text)
	}
}
