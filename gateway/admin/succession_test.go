package admin

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// successionModel is what has to hold after any steps of any processes.
type successionModel struct {
	s      *succession
	state  successionState
	holder string
	taken  int // how often what was yielded was taken back
	fails  bool
}

var errStep = errors.New("did not work")

func (m *successionModel) do() error {
	if m.fails {
		return errStep
	}
	return nil
}

// TestSuccessionModel: at most one process takes over at a time, steps come in
// order and from it alone, what was yielded is taken back once and only if it has
// not come to its end, nothing is restored that a successor has, and one that has come
// to its end is final.
func TestSuccessionModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &successionModel{s: newSuccession()}
		who := rapid.SampledFrom([]string{"a", "b", ""})
		t.Repeat(map[string]func(*rapid.T){
			"claim": func(t *rapid.T) {
				token := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "token")
				err := m.s.claim(token)
				switch m.state {
				case successionAlone:
					require.NoError(t, err)
					m.state, m.holder = successionClaimed, token
				case successionLeft:
					require.ErrorIs(t, err, ErrDraining)
				default:
					require.ErrorIs(t, err, errTakeoverUnderWay)
				}
			},
			"yield": func(t *rapid.T) { m.step(t, who.Draw(t, "token"), successionClaimed, successionYielded) },
			"leave": func(t *rapid.T) { m.step(t, who.Draw(t, "token"), successionYielded, successionLeft) },
			"lost": func(t *rapid.T) {
				token := who.Draw(t, "token")
				before := m.taken
				m.s.lost(token, func() {
					m.taken++
					require.True(t, m.s.busy(), "and is asked meanwhile")
					require.True(t, m.s.underWay())
				})
				if token != m.holder || m.state == successionAlone || m.state == successionLeft {
					require.Equal(t, before, m.taken)
					return
				}
				if m.state == successionYielded {
					before++
				}
				require.Equal(t, before, m.taken)
				m.state, m.holder = successionAlone, ""
			},
			"restore": func(t *rapid.T) {
				restored := 0
				require.NoError(t, m.s.restore(func() error { restored++; return nil }))
				ours := m.state == successionAlone || m.state == successionClaimed
				require.Equal(t, ours, restored == 1)
				if ours {
					require.ErrorIs(t, m.s.restore(func() error { return errStep }), errStep)
				}
			},
			"": func(t *rapid.T) {
				require.Equal(t, m.state, m.s.state())
				require.Equal(t, m.state != successionAlone, m.s.busy())
				select {
				case <-m.s.left:
					require.Equal(t, successionLeft, m.state)
				default:
					require.NotEqual(t, successionLeft, m.state)
				}
			},
		})
	})
}

func (m *successionModel) step(t *rapid.T, token string, from, to successionState) {
	m.fails = rapid.Bool().Draw(t, "fails")
	err := m.s.step(token, from, to, m.do)
	switch {
	case m.state != from || token != m.holder:
		require.ErrorIs(t, err, errNotSuccessor)
	case m.fails:
		require.ErrorIs(t, err, errStep)
	default:
		require.NoError(t, err)
		m.state = to
	}
}
