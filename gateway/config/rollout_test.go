package config

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRolloutTexts(t *testing.T) {
	for text, want := range map[string]string{
		"{percent: 10, ramp: 10%/h}": "10% 10%/h", "{percent: 0, ramp: 1/m}": "0% 1%/m", "{percent: 0.25%, ramp: 0.01%/d}": "0.25% 0.01%/d",
		"{percent: 100}": "100% 0%/d", "{percent: 12.5, ramp: 100%/d}": "12.5% 100%/d", "{percent: 1, ramp: 0.5%/h}": "1% 12%/d",
	} {
		r := parseString(t, "rollout: "+text).Config.Rollout
		require.Equal(t, want, r.Percent.String()+" "+r.Ramp.String(), text)
	}
	for _, text := range []string{"", "x", "-1", "NaN", "1e9", "%"} {
		_, err := ParseShare(text)
		require.Error(t, err, text)
	}
	s, err := ParseShare("0")
	require.NoError(t, err)
	require.Equal(t, NoShare, s)
}

// The share grows with time, up to everything, and never falls.
func TestRolloutGrows(t *testing.T) {
	r := Rollout{Percent: 10 * percent, Ramp: 10 * percent * 24}
	for after, want := range map[time.Duration]string{
		-time.Hour: "10%", 0: "10%", 30 * time.Minute: "15%", 9 * time.Hour: "100%", 1000 * time.Hour: "100%",
	} {
		require.Equal(t, want, r.At(after).String(), after)
	}
	require.Equal(t, NoShare, Rollout{Percent: NoShare}.At(time.Hour))
	require.Equal(t, NoShare, Rollout{Percent: NoShare, Ramp: 24}.At(0))
	require.Equal(t, AllShare, Rollout{Percent: AllShare, Ramp: 24}.At(time.Hour))
	require.Equal(t, Share(10*percent), Rollout{Percent: 10 * percent}.At(time.Hour))
}

func TestSeeds(t *testing.T) {
	require.Equal(t, Rollout{Seed: "a"}.SeedNumber(), Rollout{Seed: "a"}.SeedNumber())
	require.NotEqual(t, Rollout{Seed: "a"}.SeedNumber(), Rollout{}.SeedNumber())
	require.NotEqual(t, Rollout{Seed: "host"}.SeedNumber(), Rollout{}.SeedNumber())
}
