package config

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRolloutTexts(t *testing.T) {
	for text, want := range map[string]string{"10": "10%", "0": "0%", "0.25%": "0.25%", "12.5": "12.5%", "100%": "100%"} {
		require.Equal(t, want, parseString(t, "rollout: {percent: "+text+"}").Config.Rollout.Percent.String(), text)
	}
	for _, text := range []string{"", "x", "-1", "NaN", "1e9", "%"} {
		_, err := ParseShare(text)
		require.Error(t, err, text)
	}
	s, err := ParseShare("0")
	require.NoError(t, err)
	require.Equal(t, NoShare, s)
}

func TestPartOfSomething(t *testing.T) {
	require.Equal(t, 1, Share(1*percent).Of(10))
	require.Equal(t, 7, Share(70*percent).Of(10))
	require.Equal(t, 1<<40, AllShare.Of(1<<40))
}
