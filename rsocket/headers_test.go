package rsocket

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/internal/golden"
)

// headers are examples of a header that datagrams begin with.
type headers[H interface{ Append([]byte) []byte }] struct {
	parse     func([]byte) (H, []byte, error)
	refusal   error
	vectors   []headerVector[H]
	malformed map[string]string // by what is wrong
}

type headerVector[H any] struct {
	header H
	bytes  string
}

func (hs headers[H]) testVectors(t *testing.T) {
	t.Helper()
	for _, v := range hs.vectors {
		want := unhex(t, v.bytes)
		require.Equal(t, want, v.header.Append(nil))
		got, payload, err := hs.parse(append(want, "payload"...))
		require.NoError(t, err)
		require.Equal(t, v.header, got)
		require.Equal(t, "payload", string(payload))
	}
}

func (hs headers[H]) testTruncated(t *testing.T) {
	t.Helper()
	for _, v := range hs.vectors {
		full := unhex(t, v.bytes)
		for n := range full {
			_, _, err := hs.parse(full[:n])
			require.ErrorIs(t, err, hs.refusal, "%v cut to %d bytes", v.header, n)
		}
	}
}

func (hs headers[H]) testMalformed(t *testing.T) {
	t.Helper()
	for wrong, bytes := range hs.malformed {
		_, _, err := hs.parse(unhex(t, bytes))
		require.ErrorIs(t, err, hs.refusal, wrong)
	}
}

// fuzz checks that a header which is read survives being written, with the same payload
// behind it, and how another one is refused.
func (hs headers[H]) fuzz(f *testing.F) {
	for _, v := range hs.vectors {
		f.Add(unhex(f, v.bytes))
		f.Add(append(unhex(f, v.bytes), 1, 2, 3))
	}
	type datagram struct {
		header  H
		payload []byte
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		golden.RoundTrip(t, b, func(b []byte) (d datagram, err error) {
			if d.header, d.payload, err = hs.parse(b); err != nil {
				require.ErrorIs(t, err, hs.refusal)
			}
			return d, err
		}, func(d datagram) []byte { return append(d.header.Append(nil), d.payload...) })
	})
}
