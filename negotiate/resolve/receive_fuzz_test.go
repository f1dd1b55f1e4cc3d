package resolve

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/internal/golden"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/negotiate/internal/clc"
)

// FuzzReceive: whatever comes to the datagram port is answered once at most, by no more bytes, and asked back once at most.
// Where there is a key, only what is sealed with it has any other effect. In the end nothing is left.
func FuzzReceive(f *testing.F) {
	answer := goldenResolved()
	answer.Observed = portB
	cookie := Refused{Nonce: answer.Nonce, Reason: negotiate.ReasonAuthFailed, Cookie: Cookie{1}}
	for _, b := range [][]byte{
		golden.Vector(f, "resolve"), golden.Vector(f, "refused"), appendResolved(nil, &answer), encodeRefused(cookie),
	} {
		for mode := range uint8(4) {
			f.Add(b, mode)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, mode uint8) {
		keyed, sealed := mode&1 != 0, mode&2 != 0
		r := newResolver(2, func(c *ResolverConfig) {
			if keyed {
				c.Keys = negotiate.Keys{testKey}
			}
		})
		q := one[SendResolution](t, r.Want(addrB, addrA, true, t0))
		b = aimed(r, q.Bytes, b, sealed)
		var answers, questions int
		for _, a := range receive(r, portB, portA, b, t0) {
			switch a := a.(type) {
			case SendResolution:
				if h, _, err := clc.ParseHeader(a.Bytes); err == nil && h.Type == clc.TypeResolve {
					questions++
					break
				}
				answers++
				require.LessOrEqual(t, len(a.Bytes), len(b))
			case ExpectPeer, ProvePeer:
				require.True(t, sealed || !keyed, "%#v", a)
			default:
			}
		}
		require.LessOrEqual(t, answers, 1)
		require.LessOrEqual(t, questions, 1)
		for range 100 {
			if d := r.Deadline(); !d.IsZero() {
				r.Tick(d)
			}
		}
		require.Empty(t, r.peers)
	})
}

// aimed makes a message one that answers the query q of r, or a query that has its cookie. It may be sealed with the key.
func aimed(r *Resolver, q, b []byte, sealed bool) []byte {
	const at, behind = clc.HeaderLen + clc.TLVHeaderLen, clc.HeaderLen + clc.TLVHeaderLen + 16
	h, tlvs, err := clc.Message(b, clc.TypeResolve)
	b = bytes.Clone(b)
	chain := negotiate.Chain{Binding: negotiate.Binding{Client: portA, Server: portB}, From: negotiate.FromClient}
	switch {
	case len(b) < behind:
		return b
	case err == nil && sealed && len(b)+64 < clc.MaxMessageLen && len(tlvs) >= 20:
		c := r.jar.fresh(portB, portA, QueryNonce(b[at:]), t0)
		b = withTLV(b[:h.Len], clc.TLVCookie, c[:])
	case err != nil:
		copy(b[at:], q[at:behind])
		chain.Binding.Client, chain.Binding.Server, chain.From = portB, portA, negotiate.FromServer
		if len(r.cfg.Keys) > 0 {
			chain.Prev = negotiate.MAC(q[len(q)-negotiate.MACLen:])
		}
	}
	if sealed && len(b) < clc.MaxMessageLen-64 {
		b, _ = negotiate.Seal(b, 0, testKey, chain)
	}
	return b
}
