package negotiate

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAskGolden(t *testing.T) {
	require.Equal(t, vector(t, "ask"), appendAsk(nil, Ask{Version: 1}))
	got, n, err := parseAsk(vector(t, "ask"))
	require.NoError(t, err)
	require.Len(t, vector(t, "ask"), n)
	require.Equal(t, Ask{Version: 1}, got)
}

func FuzzParseAsk(f *testing.F) {
	f.Add(vector(f, "ask"))
	f.Add(vector(f, "decline-mac"))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, _, err := parseAsk(b)
		if err != nil {
			return
		}
		again, n, err := parseAsk(appendAsk(nil, a))
		require.NoError(t, err)
		require.Equal(t, HeaderLen, n)
		require.Equal(t, a, again)
	})
}
