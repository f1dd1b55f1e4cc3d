package config

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSpin(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"": 20 * time.Microsecond, "spin:": 20 * time.Microsecond, "profile: throughput": 20 * time.Microsecond, "spin: off": 0, "spin: 'off'": 0, "spin: 0": 0, "spin: 0s": 0, "spin: 7us": 7 * time.Microsecond, "spin: 100µs": 100 * time.Microsecond,
		"profile: latency": 20 * time.Microsecond, "profile: latency\nspin: 0": 0, "profile: throughput\nspin: 5us": 5 * time.Microsecond, "profile: memory": 0,
	} {
		f := parseString(t, text)
		require.Equal(t, want, f.Config.Spin.Duration(), text)
		out, err := f.YAML()
		require.NoError(t, err)
		require.Equal(t, f.Config.Spin, parseString(t, string(out)).Config.Spin, "%s", out)
	}
	require.Equal(t, NoSpin, Config{Profile: ProfileLatency, Spin: NoSpin}.WithDefaults().Spin)
	require.ErrorContains(t, validated(Config{Spin: -2}.WithDefaults()), "spin: ")
}

func TestLoopErrorsNameTheLine(t *testing.T) {
	_, err := parseConfig("f", []byte("profile: fast\nspin: 101us\ncpus:\n  - 1\n  - 8192\n  - 1\n  - -1\n"), testUsers)
	var got []string
	for _, fe := range FieldErrors(err) {
		got = append(got, fe.Error())
	}
	require.Equal(t, []string{
		`line 1: profile: "fast" is not one of balanced, latency, throughput or memory`,
		`line 2: spin: 101us is longer than 100us`,
		`line 5: cpus[1]: 8192 is not between 0 and 8191`,
		`line 6: cpus[2]: 1 is listed twice`,
		`line 7: cpus[3]: -1 is not between 0 and 8191`,
	}, got)
	for _, text := range []string{"spin: fast", "spin: -1us", "spin: 20"} {
		_, err := parseConfig("f", []byte(text), testUsers)
		require.ErrorContains(t, err, "is neither off nor a duration such as 20us", text)
	}
}

func TestLoops(t *testing.T) {
	for _, c := range []struct{ shards, processors, want int }{
		{0, 1, 1}, {0, 2, 1}, {0, 7, 3}, {0, 32, 16}, {0, 34, 16}, {0, 512, 16}, {1, 64, 1}, {5, 2, 5}, {16, 4, 16}, {256, 512, 16},
	} {
		require.Equal(t, c.want, Config{Shards: c.shards}.Loops(c.processors), "%+v", c)
	}
}
