package handover

import (
	"encoding/json"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/ebpf"
)

// wordy is a message with everything in it.
func wordy(t testing.TB) []byte {
	t.Helper()
	text, err := json.Marshal(message{
		Step: stepClaim, Version: "1.2.3", Neighbour: &ebpf.Neighbour{Generation: 1, AppIndex: 3, Programs: ebpf.WirePrograms{InL2: 7}},
		Main: 4711, Off: true,
	})
	require.NoError(t, err)
	return text
}

// FuzzMessage: whatever another process says is an error, or a message that can be relied on and
// said again.
func FuzzMessage(f *testing.F) {
	f.Add(wordy(f))
	for _, text := range []string{
		`{"error":"a takeover is under way"}`, `{}`, `null`, `[]`, `{"step":"lost"}`, `{"step":"yield","error":"x"}`,
		`{"step":"leave","main":-1}`,
		`{"step":"claim","neighbour":{"generation":0}}`, `{"step":"claim"} {}`, strings.Repeat("[", 5000),
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := parseMessage(text)
		if err != nil {
			require.Zero(t, m)
			return
		}
		require.NotEqual(t, m.Step == "", m.Error == "")
		require.NotEqual(t, stepLost, m.Step)
		if m.Neighbour != nil {
			require.NoError(t, m.Neighbour.Validate())
		}
		again, err := json.Marshal(m)
		require.NoError(t, err)
		same, err := parseMessage(again)
		require.NoError(t, err)
		require.Equal(t, m, same)
	})
}

// TestMessageTruncated: a message that is cut anywhere is none.
func TestMessageTruncated(t *testing.T) {
	text := append(wordy(t), '\n')
	for n := range len(text) {
		_, err := heard(t, text[:n])
		require.Error(t, err, "%q", text[:n])
		if n < len(text)-1 {
			_, err := parseMessage(text[:n])
			require.Error(t, err, "%q", text[:n])
		}
	}
	m, err := heard(t, text)
	require.NoError(t, err)
	require.Equal(t, stepClaim, m.Step)
	_, err = heard(t, []byte(strings.Repeat("x", maxMessage)+"\n"))
	require.ErrorIs(t, err, errLong)
}

// heard is what is heard of bytes and the end after them.
func heard(t *testing.T, text []byte) (message, error) {
	t.Helper()
	near, far := net.Pipe()
	go func() {
		_, _ = far.Write(text)
		_ = far.Close()
	}()
	defer near.Close()
	return newLine(near).hear()
}
