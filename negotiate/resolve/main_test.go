package resolve

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/smcgw/smcgw/negotiate/internal/clc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var testKey = []byte("smcgw test key")

var t0 = time.Unix(1_800_000_000, 0)

func at(d time.Duration) time.Time { return t0.Add(d) }

// event is something that happens in the world of the model.
type event struct {
	at    time.Time
	order int
	do    func()
}

// seq returns n rising bytes.
func seq(first byte, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = first + byte(i)
	}
	return b
}

// withTLV returns the message with one more TLV at its end.
func withTLV(msg []byte, typ uint16, v []byte) []byte {
	return clc.EndMessage(clc.AppendTLV(bytes.Clone(msg), typ, v), 0)
}

// requireTruncationFails checks that no proper prefix of b parses.
func requireTruncationFails(t *testing.T, b []byte, parse func([]byte) error) {
	t.Helper()
	for i := range b {
		require.ErrorIs(t, parse(b[:i]), clc.ErrShort, "prefix of %d bytes", i)
	}
	require.NoError(t, parse(b))
}
