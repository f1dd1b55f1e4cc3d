package ebpf

import (
	"sync"
	"testing"

	bpf "github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
)

// A sweep never takes back the trace that a program leaves meanwhile for what answers its
// SYN-ACK.
func TestFreshenBesideAnAnswer(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	const size = tracesAt + 4*(1<<16)
	m, err := bpf.NewMap(&bpf.MapSpec{Type: bpf.Array, KeySize: 4, ValueSize: size, MaxEntries: 1, Flags: 1 << 10}) // BPF_F_MMAPABLE
	require.NoError(t, err)
	defer m.Close()
	var o objects
	o.Globals = m
	tr, err := newTraces(&o, 0)
	require.NoError(t, err)
	defer func() { require.NoError(t, tr.close()) }()
	for i := range 300_000 {
		tr.word(tracesAt).Store(0)
		var both sync.WaitGroup
		start := make(chan struct{})
		both.Go(func() { <-start; tr.word(tracesAt).Store(tr.now + 8) })
		close(start)
		tr.freshen(tracesAt)
		both.Wait()
		require.Equal(t, tr.now+8, tr.get(t, tracesAt), i)
	}
}
