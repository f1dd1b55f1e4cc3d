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
	fuzzMessage(f, parseAsk, func(a Ask) []byte { return appendAsk(nil, a)[:HeaderLen] }) // nothing follows
}
