package ebpf

import (
	"testing"

	bpf "github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/testnet"
)

// A map whose keys go during the walk is walked again, until nothing is left that matches.
func TestDeleteWhileKeysGo(t *testing.T) {
	testnet.Require(t, "root", "bpf")
	const entries = 8
	m, err := bpf.NewMap(&bpf.MapSpec{Type: bpf.Hash, KeySize: 4, ValueSize: 4, MaxEntries: entries})
	require.NoError(t, err)
	defer m.Close()
	for k := range uint32(entries) {
		require.NoError(t, m.Put(k, k))
	}
	replaced := uint32(0)
	n, err := deleteWhere(m, func(k uint32) bool {
		if replaced < 3*entries { // as a full LRU map does
			replaced++
			require.NoError(t, m.Delete(k))
			require.NoError(t, m.Put(entries+replaced, k))
		}
		return true
	})
	require.NoError(t, err)
	require.GreaterOrEqual(t, n, entries)
	var k, v uint32
	require.False(t, m.Iterate().Next(&k, &v))

	require.NoError(t, m.Put(uint32(1), uint32(1)))
	_, err = deleteWhere(m, func(k uint32) bool {
		replaced++
		require.NoError(t, m.Delete(k))
		require.NoError(t, m.Put(entries+replaced, k))
		return true
	})
	require.ErrorIs(t, err, bpf.ErrIterationAborted, "a map that does not come to rest")
}
