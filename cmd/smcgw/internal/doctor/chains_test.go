package doctor

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

// chainMessage is a message of the kernel: struct nfgenmsg, then attributes, each padded to
// four bytes.
func chainMessage(table, name string) []byte {
	m := []byte{2, 0, 0, 0}
	for _, a := range []struct {
		kind  uint16
		value string
	}{{attrTable, table + "\x00"}, {2, "12345678"}, {attrName, name + "\x00"}} {
		m = binary.NativeEndian.AppendUint16(m, uint16(4+len(a.value)))
		m = binary.NativeEndian.AppendUint16(m, a.kind)
		m = append(m, a.value...)
		for len(m)%4 != 0 {
			m = append(m, 0)
		}
	}
	return m
}

func TestChain(t *testing.T) {
	c, err := parseChain(chainMessage("firewalld", "filter_INPUT"))
	require.NoError(t, err)
	require.Equal(t, Chain{Table: "firewalld", Name: "filter_INPUT"}, c)
}

func TestChainTruncated(t *testing.T) {
	m := chainMessage("nat", "DOCKER7") // its last attribute has no padding
	for n := range m {
		_, err := parseChain(m[:n])
		require.ErrorIs(t, err, errChain, n)
	}
}

func FuzzChain(f *testing.F) {
	f.Add(chainMessage("nat", "KUBE-SERVICES"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, m []byte) {
		c, err := parseChain(m)
		if err == nil {
			require.NotEmpty(t, c.Table)
			require.NotEmpty(t, c.Name)
		}
	})
}
