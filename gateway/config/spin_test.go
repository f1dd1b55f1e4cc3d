package config

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSpin(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"": 0, "spin: ~": 0, "spin: off": 0, "spin: 'off'": 0, "spin: 0": 0, "spin: 0s": 0, "spin: 7us": 7 * time.Microsecond, "spin: 100µs": 100 * time.Microsecond,
	} {
		f := parseString(t, "in_process: {"+text+"}")
		require.Equal(t, want, f.Config.InProcess.Spin.Duration(), text)
		out, err := f.YAML()
		require.NoError(t, err)
		require.Equal(t, f.Config.InProcess.Spin, parseString(t, string(out)).Config.InProcess.Spin, "%s", out)
	}
	require.ErrorContains(t, validated(Config{InProcess: InProcess{Spin: -2}}.WithDefaults()), "in_process.spin: ")
	for _, text := range []string{"fast", "-1us", "20"} {
		_, err := parseConfig("f", []byte("in_process: {spin: "+text+"}"), testUsers)
		require.ErrorContains(t, err, "is neither off nor a duration such as 20us", text)
	}
}
