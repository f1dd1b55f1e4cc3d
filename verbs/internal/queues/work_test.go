package queues

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/verbs"
)

// Sends are a list: whatever the ring does, requests stay what and where they are.
func TestSendsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s Sends[uint64]
		var held []uint64
		next := uint64(0)
		most := 0
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				require.Equal(t, len(held) == 0, s.Idle())
				require.Equal(t, next, s.Posted())
				for i, want := range held {
					require.Equal(t, want, *s.Slot(s.Done + uint64(i)))
				}
				if len(held) > 0 {
					require.Same(t, s.Slot(s.Done), s.Oldest())
				}
				require.LessOrEqual(t, len(s.ring), 2*max(firstSends, most))
			},
			"push": func(*rapid.T) {
				*s.Push() = next
				held, next = append(held, next), next+1
				most = max(most, len(held))
			},
			"complete": func(t *rapid.T) {
				n := min(len(held), rapid.IntRange(0, 9).Draw(t, "requests"))
				s.Done, held = s.Done+uint64(n), held[n:]
			},
			"poll": func(t *rapid.T) {
				s.Retired = rapid.Uint64Range(s.Retired, s.Done).Draw(t, "retired")
				require.Equal(t, next-s.Retired, s.Held())
			},
			"reset": func(t *rapid.T) {
				s.Reset()
				held = nil
				require.Zero(t, s.Held())
			},
		})
	})
}

// Receives are a list of ids and scatter lists, whatever they have in common.
func TestReceivesModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		room, sges := rapid.IntRange(1, 20).Draw(t, "room"), rapid.IntRange(0, 3).Draw(t, "sges")
		r := NewReceives(room, sges)
		ids := rapid.SampledFrom([]uint64{7, 7, 7, 8})
		var held []verbs.RecvWR
		taken := uint64(0)
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				require.Equal(t, len(held) == 0, r.Empty())
				require.Equal(t, len(held), r.Posted())
				if len(held) > 0 {
					require.Equal(t, held[0].WRID, r.ID())
					require.Equal(t, len(held[0].SGList), len(r.List()))
					require.Subset(t, r.List(), held[0].SGList)
				}
			},
			"push": func(t *rapid.T) {
				if len(held) == room {
					t.Skip("full")
				}
				list := make([]verbs.SGE, rapid.IntRange(0, sges).Draw(t, "list"))
				for i := range list {
					list[i] = verbs.SGE{Addr: rapid.Uint64().Draw(t, "address"), Length: 1}
				}
				wr := verbs.RecvWR{WRID: ids.Draw(t, "id"), SGList: list}
				r.Push(wr.WRID, wr.SGList)
				held = append(held, wr)
			},
			"take": func(t *rapid.T) {
				if len(held) == 0 {
					t.Skip("empty")
				}
				held, taken = held[1:], taken+1
				require.Equal(t, taken, r.Take())
			},
			"poll": func(t *rapid.T) {
				r.Retired = rapid.Uint64Range(r.Retired, taken).Draw(t, "retired")
				require.Equal(t, taken+uint64(len(held))-r.Retired, r.Held())
			},
			"reset": func(t *rapid.T) {
				r.Reset()
				taken, held = taken+uint64(len(held)), nil
				require.Zero(t, r.Held())
			},
		})
	})
}

// Receives that are all alike need no memory for their ids.
func TestReceivesThatAreAlike(t *testing.T) {
	r := NewReceives(4, 0)
	for range 9 {
		r.Push(5, nil)
		require.EqualValues(t, 5, r.ID())
		r.Take()
	}
	r.Push(6, nil)
	require.Nil(t, r.ids)
	r.Push(7, nil)
	require.NotNil(t, r.ids)
	require.EqualValues(t, 6, r.ID())
	r.Take()
	require.EqualValues(t, 7, r.ID())
}

func TestLimitsOfCapabilities(t *testing.T) {
	l := Limits{WR: 8, SGE: 2, Inline: 64}
	most := verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: 64}
	require.NoError(t, l.Check(most))
	require.NoError(t, l.Check(verbs.QPCap{MaxSendWR: 1}))
	for _, more := range []func(*verbs.QPCap){
		func(c *verbs.QPCap) { c.MaxSendWR++ }, func(c *verbs.QPCap) { c.MaxRecvWR++ }, func(c *verbs.QPCap) { c.MaxSendSGE++ },
		func(c *verbs.QPCap) { c.MaxRecvSGE++ }, func(c *verbs.QPCap) { c.MaxInline++ }, func(c *verbs.QPCap) { c.MaxSendWR = 0 },
	} {
		c := most
		more(&c)
		require.ErrorIs(t, l.Check(c), verbs.ErrInvalid, "%+v", c)
	}
}
