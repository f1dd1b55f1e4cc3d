package claim

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// model is what has to hold after any steps of any processes.
type model struct {
	s      *Claims
	state  State
	holder string
	taken  int // how often what was yielded was taken back
	fails  bool
	done   func()          // of a change
	revoke <-chan struct{} // of the holder
}

var errStep = errors.New("did not work")

func (m *model) do() error {
	if m.fails {
		return errStep
	}
	return nil
}

// TestModel: at most one process takes over at a time, steps come in
// order and from it alone, what was yielded is taken back once and only if it has
// not come to its end, nothing is restored that a successor has, and one that has come
// to its end is final. No takeover begins beside a change, and no change beside a takeover.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &model{s: New()}
		who := rapid.SampledFrom([]string{"a", "b", ""})
		t.Repeat(map[string]func(*rapid.T){
			"claim": func(t *rapid.T) {
				token := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "token")
				m.fails = rapid.Bool().Draw(t, "fails")
				now, cancel := context.WithCancel(t.Context())
				cancel() // a claim after a change waits
				revoked, err := m.s.Claim(now, token, m.do)
				switch m.state {
				case alone:
					if m.fails {
						require.ErrorIs(t, err, errStep)
						return
					}
					require.NoError(t, err)
					m.state, m.holder, m.revoke = Claimed, token, revoked
				case changing:
					require.ErrorIs(t, err, context.Canceled)
				case Left:
					require.ErrorIs(t, err, ErrDraining)
				default:
					require.ErrorIs(t, err, ErrUnderWay)
				}
			},
			"yield": func(t *rapid.T) { m.step(t, who.Draw(t, "token"), Claimed, Yielded) },
			"leave": func(t *rapid.T) { m.step(t, who.Draw(t, "token"), Yielded, Left) },
			"lost": func(t *rapid.T) {
				token := who.Draw(t, "token")
				before := m.taken
				m.s.Lost(token, func() {
					m.taken++
					require.True(t, m.s.Busy(), "and is asked meanwhile")
					require.True(t, m.s.UnderWay())
				})
				if token != m.holder || !m.underWay() {
					require.Equal(t, before, m.taken)
					return
				}
				m.lost(t, before)
			},
			"end": func(t *rapid.T) {
				before, underWay := m.taken, m.underWay()
				m.fails = rapid.Bool().Draw(t, "fails")
				err := m.s.End(func() {
					m.taken++
					require.ErrorIs(t, m.s.Step(m.holder, Yielded, Left, m.do), ErrNotSuccessor, "it hears of it at once")
				}, func() error {
					require.False(t, m.s.UnderWay())
					return m.do()
				})
				require.Equal(t, m.fails, err != nil)
				if underWay {
					m.lost(t, before)
				}
			},
			"change": func(t *rapid.T) {
				if m.state == changing { // it would wait
					return
				}
				done, err := m.s.Change()
				if m.state != alone {
					require.ErrorIs(t, err, ErrUnderWay)
					return
				}
				require.NoError(t, err)
				m.state, m.done = changing, done
			},
			"changed": func(*rapid.T) {
				if m.done != nil {
					m.done()
				}
				if m.state == changing {
					m.state = alone
				}
			},
			"restore": func(t *rapid.T) {
				restored := 0
				require.NoError(t, m.s.Restore(func() error { restored++; return nil }))
				ours := m.state == alone || m.state == Claimed || m.state == changing
				require.Equal(t, ours, restored == 1)
				if ours {
					require.ErrorIs(t, m.s.Restore(func() error { return errStep }), errStep)
				}
			},
			"": func(t *rapid.T) {
				require.Equal(t, m.state, m.s.state())
				require.Equal(t, m.underWay() || m.state == Left, m.s.Busy())
				select {
				case <-m.s.left:
					require.Equal(t, Left, m.state)
				default:
					require.NotEqual(t, Left, m.state)
				}
			},
		})
	})
}

func (m *model) underWay() bool { return m.state == Claimed || m.state == Yielded }

// lost is the end of a takeover.
func (m *model) lost(t *rapid.T, before int) {
	if m.state == Yielded {
		before++
	}
	require.Equal(t, before, m.taken)
	<-m.revoke
	m.state, m.holder = alone, ""
}

// TestClaimBehindAChange: a takeover that comes in the midst of a change begins after it, and
// with what the gateway is then.
func TestClaimBehindAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New()
		done, err := s.Change()
		require.NoError(t, err)
		is, told := "before", ""
		var over bool
		go func() {
			_, err := s.Claim(t.Context(), "a", func() error { told = is; return nil })
			over = err == nil
		}()
		synctest.Wait()
		require.False(t, over)
		is = "behind"
		done()
		done()
		synctest.Wait()
		require.True(t, over)
		require.Equal(t, is, told)
		_, err = s.Change()
		require.ErrorIs(t, err, ErrUnderWay)
	})
}

// A change waits for the one that is under way, and is not taken for a takeover.
func TestChangeBehindAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New()
		first, err := s.Change()
		require.NoError(t, err)
		began := make(chan func(), 1)
		go func() {
			second, err := s.Change()
			assert.NoError(t, err)
			began <- second
		}()
		synctest.Wait()
		require.Empty(t, began)
		first()
		second := <-began
		require.Equal(t, changing, s.state())
		second()
		require.Equal(t, alone, s.state())
	})
}

func (m *model) step(t *rapid.T, token string, from, to State) {
	m.fails = rapid.Bool().Draw(t, "fails")
	err := m.s.Step(token, from, to, m.do)
	switch {
	case m.state != from || token != m.holder:
		require.ErrorIs(t, err, ErrNotSuccessor)
	case m.fails:
		require.ErrorIs(t, err, errStep)
	default:
		require.NoError(t, err)
		m.state = to
	}
}
