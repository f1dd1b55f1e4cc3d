package soft

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// recorder is a link that remembers what was sent.
type recorder struct {
	link
	sent []byte // the first byte of each datagram
}

func (r *recorder) send(trains []train) {
	for _, t := range trains {
		r.sent = append(r.sent, t.bufs[0][0])
	}
}

func (r *recorder) receive(int, receiver) bool { return false }

// impaired sends a hundred datagrams in one buffer that is overwritten, as the buffers of a transmitter are.
func impaired(how Impairment) []byte {
	r := &recorder{}
	l := newImpairedLink(r, how, 0)
	b := make([]byte, 1)
	for i := range byte(100) {
		b[0] = i
		l.send([]train{{dst: netip.MustParseAddrPort("127.0.0.1:1"), size: 1, count: 1, total: 1, bufs: [][]byte{b}}})
		b[0] = 0xff
	}
	for range 10 { // nothing comes that could overtake
		l.receive(1, nil)
	}
	return r.sent
}

func TestImpairment(t *testing.T) {
	require.Equal(t, 1, newImpairedLink(&recorder{}, Impairment{}, 0).maxTrain())
	counts := func(sent []byte) (n [256]int) {
		for _, b := range sent {
			n[b]++
		}
		return n
	}
	lost := impaired(Impairment{Seed: 1, Loss: 200})
	require.Greater(t, len(lost), 50)
	require.Less(t, len(lost), 100)
	require.IsIncreasing(t, lost)
	repeated := counts(impaired(Impairment{Seed: 1, Repeat: 200}))
	twice := 0
	for _, n := range repeated[:100] {
		require.Contains(t, []int{1, 2}, n)
		twice += n - 1
	}
	require.NotZero(t, twice)
	delayed := impaired(Impairment{Seed: 1, Delay: 200})
	require.Len(t, delayed, 100)
	n := counts(delayed)
	late := 0
	for i, b := range delayed {
		require.Equal(t, 1, n[b])
		if i > 0 && b < delayed[i-1] {
			late++
		}
	}
	require.NotZero(t, late)
	require.Equal(t, impaired(Impairment{Seed: 7, Loss: 100, Repeat: 100, Delay: 100}), impaired(Impairment{Seed: 7, Loss: 100, Repeat: 100, Delay: 100}))
}
