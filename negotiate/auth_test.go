package negotiate

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/negotiate/internal/clc"
)

var (
	testKey  = []byte("smcgw test key")
	otherKey = []byte("another test key")
	// testBinding is that of the golden vectors.
	testBinding = Binding{
		Client: netip.MustParseAddrPort("10.0.0.1:40000"), Server: netip.MustParseAddrPort("10.0.0.2:7000"),
		ClientISN: 0x11223344, ServerISN: 0x55667788,
	}
	testChain = Chain{Binding: testBinding, From: FromClient, Prev: MAC(seq(0, MACLen))}
)

func TestSealGolden(t *testing.T) {
	b := AppendConfirm([]byte("xx"), Confirm{Version: 1, Carrier: CarrierSHM})
	b, mac := Seal(b, 2, testKey, testChain)
	require.Equal(t, vector(t, "confirm-mac"), b[2:])
	got, err := Verify(b[2:], testKey, testChain)
	require.NoError(t, err)
	require.Equal(t, mac, got)
	c, n, err := parseConfirm(b[2:])
	require.NoError(t, err)
	require.Equal(t, len(b)-2, n)
	require.Equal(t, CarrierSHM, c.Carrier)

	server := testChain
	server.From = FromServer
	b, _ = Seal(encodeDecline(Decline{Version: 1, Reason: ReasonAppRefused}), 0, testKey, server)
	require.Equal(t, vector(t, "decline-mac"), b)
	d, _, err := ParseDecline(b)
	require.NoError(t, err)
	require.Equal(t, ReasonAppRefused, d.Reason)
}

func TestVerifyEveryBitCounts(t *testing.T) {
	for _, name := range []string{"confirm-mac", "decline-mac"} {
		chain := testChain
		if name == "decline-mac" {
			chain.From = FromServer
		}
		good := vector(t, name)
		_, err := Verify(good, testKey, chain)
		require.NoError(t, err)
		for i := range good {
			for bit := range 8 {
				b := bytes.Clone(good)
				b[i] ^= 1 << bit
				_, err := Verify(b, testKey, chain)
				require.ErrorIs(t, err, ErrAuth, "byte %d bit %d", i, bit)
			}
			_, err := Verify(good[:i], testKey, chain)
			require.ErrorIs(t, err, ErrAuth)
		}
		_, err = Verify(good, []byte("other key"), chain)
		require.ErrorIs(t, err, ErrAuth)
	}
	_, err := Verify(vector(t, "confirm"), testKey, testChain)
	require.ErrorIs(t, err, ErrAuth, "no mac")
}

// A recorded message is worth nothing on any other connection, from the other side, or after another message.
func TestVerifyBinding(t *testing.T) {
	good := vector(t, "confirm-mac")
	for name, spoil := range map[string]func(c *Chain){
		"client address":  func(c *Chain) { c.Binding.Client = netip.MustParseAddrPort("10.0.0.3:40000") },
		"client port":     func(c *Chain) { c.Binding.Client = netip.MustParseAddrPort("10.0.0.1:40001") },
		"server address":  func(c *Chain) { c.Binding.Server = netip.MustParseAddrPort("10.0.0.1:7000") },
		"server port":     func(c *Chain) { c.Binding.Server = netip.MustParseAddrPort("10.0.0.2:7001") },
		"other family":    func(c *Chain) { c.Binding.Client = netip.MustParseAddrPort("[fd00::1]:40000") },
		"client isn":      func(c *Chain) { c.Binding.ClientISN++ },
		"server isn":      func(c *Chain) { c.Binding.ServerISN++ },
		"swapped":         func(c *Chain) { c.Binding.Client, c.Binding.Server = c.Binding.Server, c.Binding.Client },
		"reflected":       func(c *Chain) { c.From = FromServer },
		"other handshake": func(c *Chain) { c.Prev = MAC{} },
	} {
		chain := testChain
		spoil(&chain)
		_, err := Verify(good, testKey, chain)
		require.ErrorIs(t, err, ErrAuth, name)
	}
	chain := testChain // the same address, written otherwise
	chain.Binding.Client = netip.MustParseAddrPort("[::ffff:10.0.0.1]:40000")
	_, err := Verify(good, testKey, chain)
	require.NoError(t, err)
}

func TestKeys(t *testing.T) {
	good := vector(t, "confirm-mac")
	key, mac, err := Keys{otherKey, testKey}.Verify(good, testChain)
	require.NoError(t, err)
	require.Equal(t, testKey, key)
	require.Equal(t, MAC(good[len(good)-MACLen:]), mac)
	_, _, err = Keys{otherKey}.Verify(good, testChain)
	require.ErrorIs(t, err, ErrAuth)
	_, _, err = Keys(nil).Verify(good, testChain)
	require.ErrorIs(t, err, ErrAuth, "unexpected")
	key, _, err = Keys(nil).Verify(vector(t, "confirm"), testChain)
	require.NoError(t, err)
	require.Nil(t, key)
	require.Nil(t, Keys(nil).First())
	require.Equal(t, otherKey, Keys{otherKey, testKey}.First())
}

func TestMACIsLast(t *testing.T) {
	b, _ := Seal(vector(t, "confirm"), 0, testKey, Chain{})
	_, _, err := parseConfirm(withTLV(b, 0x0077, nil))
	require.ErrorIs(t, err, ErrMalformed)
}

// TestRandomTLV: messages with a random value have their own length and survive the codec.
func TestRandomTLV(t *testing.T) {
	p, a := goldenProposal(t), goldenAccept(t)
	p.Random, a.Random = [16]byte{1}, [16]byte{2}
	b := AppendProposal(nil, &p)
	got, _, err := parseProposal(b)
	require.NoError(t, err)
	require.Equal(t, p.Random, got.Random)
	b = encodeAccept(&a)
	accept, _, err := ParseAccept(b)
	require.NoError(t, err)
	require.Equal(t, a.Random, accept.Random)
	p.Random = [16]byte{}
	_, _, err = parseProposal(withTLV(AppendProposal(nil, &p), clc.TLVRandom, []byte("short")))
	require.ErrorIs(t, err, ErrMalformed)
}

// Whatever keys two gateways have: they carry only with one in common that the client puts first, and nothing is served
// to a client without one.
func TestAuthenticationModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := [][]byte{testKey, otherKey, []byte("a third test key")}
		draw := func(name string) Keys {
			return Keys(rapid.Permutation(all).Draw(t, name)[:rapid.IntRange(0, len(all)).Draw(t, name+" number")])
		}
		ck, sk := draw("client"), draw("server")
		bind := testBinding
		if rapid.IntRange(0, 5).Draw(t, "translated") == 0 {
			bind.ServerISN++
		}
		w := newKeyedWorld(t, ck, sk, testBinding, bind)
		common := len(ck) == 0 && len(sk) == 0
		for _, k := range sk {
			common = common || bind == testBinding && len(ck) > 0 && bytes.Equal(k, ck[0])
		}
		w.strangers = !common
		w.start()
		w.run()
		w.check()
		cv, _ := w.c.Verdict()
		if common { // a server that declines before it knows the client's key has only its own first one to do so
			knows := len(sk) == 0 || slices.ContainsFunc(ck, func(k []byte) bool { return bytes.Equal(k, sk[0]) })
			require.True(t, cv.Reason != ReasonAuthFailed || !knows && !w.everServed)
			return
		}
		require.False(t, w.everServed, "served without a key")
		require.Equal(t, OutcomeReleased, cv.Outcome)
		if !w.mishap {
			require.Equal(t, Verdict{Outcome: OutcomeReleased, Reason: ReasonAuthFailed, Remote: true}, cv)
			sv, _ := w.s.Verdict()
			require.Equal(t, Verdict{Outcome: OutcomeDeclined, Reason: ReasonAuthFailed}, sv)
		}
	})
}
