package negotiate

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

var testKey = []byte("smcgw test key")

func TestSealGolden(t *testing.T) {
	prev := MAC(seq(0, MACLen))
	b := AppendConfirm([]byte("xx"), Confirm{Version: 1, Carrier: CarrierSHM})
	b, mac := Seal(b, 2, testKey, prev)
	require.Equal(t, vector(t, "confirm-mac"), b[2:])
	got, err := Verify(b[2:], testKey, prev)
	require.NoError(t, err)
	require.Equal(t, mac, got)
	c, n, err := ParseConfirm(b[2:])
	require.NoError(t, err)
	require.Equal(t, len(b)-2, n)
	require.Equal(t, CarrierSHM, c.Carrier)
}

func TestVerifyEveryBitCounts(t *testing.T) {
	prev := MAC(seq(0, MACLen))
	good := vector(t, "confirm-mac")
	for i := range good {
		for bit := range 8 {
			b := bytes.Clone(good)
			b[i] ^= 1 << bit
			_, err := Verify(b, testKey, prev)
			require.ErrorIs(t, err, ErrAuth, "byte %d bit %d", i, bit)
		}
		_, err := Verify(good[:i], testKey, prev)
		require.ErrorIs(t, err, ErrAuth)
	}
	_, err := Verify(good, testKey, MAC{})
	require.ErrorIs(t, err, ErrAuth, "other predecessor")
	_, err = Verify(good, []byte("other key"), prev)
	require.ErrorIs(t, err, ErrAuth)
	_, err = Verify(vector(t, "confirm"), testKey, prev)
	require.ErrorIs(t, err, ErrAuth, "no mac")
}

func TestMACIsLast(t *testing.T) {
	b, _ := Seal(vector(t, "confirm"), 0, testKey, MAC{})
	_, _, err := ParseConfirm(withTLV(b, 0x0077, nil))
	require.ErrorIs(t, err, ErrMalformed)
}
