package rsocket

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/verbs"
)

// RegMR makes the fake device one that registers memory of others.
func (f *fakeNet) RegMR(buf []byte, access verbs.Access) (verbs.MR, error) {
	mr, err := f.AllocMR(1, access)
	mr.(*fakeMR).buf = buf
	return mr, err
}

// TestOwnMemory: bytes go from memory that was lent into memory that was lent, and both are given back.
func TestOwnMemory(t *testing.T) {
	const size = 1 << 16
	net := &fakeNet{}
	pool, err := rmb.NewPool(rmb.PoolConfig{})
	require.NoError(t, err)
	arena := pool.IsolatedArena(net)
	given := 0
	lend := func() (*rmb.Region, []byte) {
		buf := make([]byte, size)
		r, err := arena.Borrow(buf, rmb.Access, func() { given++ })
		require.NoError(t, err)
		return r, buf
	}
	x, y := newQPs(net, EndpointConfig{}.QPCap(), EndpointConfig{}.QPCap())
	var ends [2]*Endpoint
	var rings, sends [2][]byte
	for i, qp := range []*fakeQP{x, y} {
		cfg := EndpointConfig{Dialect: Gateway}
		cfg.Ring, rings[i] = lend()
		cfg.Send, sends[i] = lend()
		ends[i], err = NewEndpoint(mapQP{qp}, arena, cfg)
		require.NoError(t, err)
		require.Nil(t, ends[i].mapper)
		require.Equal(t, size, ends[i].RingSize())
	}
	for i, e := range ends {
		require.NoError(t, e.Connect(ends[1-i].ConnData()))
		[]*fakeQP{x, y}[i].state = verbs.QPSRTS
	}
	copy(sends[0], "in place")
	require.NoError(t, ends[0].SendRing().Produce(len("in place")))
	_, err = ends[0].Pump()
	require.NoError(t, err)
	for x.transfer() || y.transfer() {
	}
	for i := range y.cq {
		ends[1].HandleWC(&y.cq[i])
	}
	require.Equal(t, "in place", string(rings[1][:8]))
	require.Equal(t, uint64(8), ends[1].ReceivedOffset())
	require.Zero(t, given)
	for _, e := range ends {
		require.NoError(t, errors.Join(e.Close(), e.Release(), e.Release()))
	}
	require.Equal(t, 4, given)
	require.NoError(t, arena.Close())
}

// TestOwnMemoryIsGivenBack by an endpoint that cannot be.
func TestOwnMemoryIsGivenBack(t *testing.T) {
	net := &fakeNet{}
	pool, err := rmb.NewPool(rmb.PoolConfig{})
	require.NoError(t, err)
	arena := pool.IsolatedArena(net)
	given := 0
	r, err := arena.Borrow(make([]byte, 1<<16), rmb.Access, func() { given++ })
	require.NoError(t, err)
	s, err := arena.Borrow(make([]byte, 1<<16), 0, func() { given++ })
	require.NoError(t, err)
	x, _ := newQPs(net, EndpointConfig{}.QPCap(), EndpointConfig{}.QPCap())
	_, err = NewEndpoint(x, arena, EndpointConfig{Dialect: Gateway, Ring: r, Send: s, Targets: 1})
	require.ErrorIs(t, err, ErrConfig)
	require.Equal(t, 2, given)
	require.NoError(t, arena.Close())
}
