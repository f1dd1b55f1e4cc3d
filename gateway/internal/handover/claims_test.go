package handover

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// model is what has to hold after any steps of any processes.
type model struct {
	c      *claims
	state  state
	held   bool // by a takeover that is not over
	woken  bool
	fails  bool
	change func() // ends a change; nil: none is under way
	ends   int    // of the gateway, that wait or are done
	ended  int    // of them, those that are done
}

var errStep = errors.New("did not work")

func (m *model) do() error {
	if m.fails {
		return errStep
	}
	return nil
}

// TestModel: at most one process takes over at a time, steps come in order, and
// one that has come to its end is final. No takeover begins beside a change, and no change beside
// a takeover. A gateway that is to end waits for what was yielded, of which the successor hears.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var failed any // by a panic, for rapid
		synctest.Test(t, func(*testing.T) {
			defer func() { failed = recover() }()
			runModel(rt)
		})
		if failed != nil {
			panic(failed)
		}
	})
}

func runModel(rt *rapid.T) {
	m := &model{c: newClaims()}
	defer func() { // ends wait for both
		if m.change != nil {
			m.change()
		}
		if m.underWay() {
			require.NoError(rt, m.c.step(stepLost, func() error { return nil }))
		}
	}()
	rt.Repeat(map[string]func(*rapid.T){
		"claim": func(t *rapid.T) {
			if m.change != nil && !m.held { // it would wait
				return
			}
			m.fails = rapid.Bool().Draw(t, "fails")
			err := m.c.claim(func() { m.woken = true }, m.do)
			switch {
			case m.state == left:
				require.ErrorIs(t, err, ErrDraining)
			case m.held:
				require.ErrorIs(t, err, ErrUnderWay)
			default:
				m.did(t, stepClaim, err)
				m.held, m.woken = !m.fails, false
			}
		},
		"step": func(t *rapid.T) {
			if !m.underWay() {
				return
			}
			by := rapid.SampledFrom([]step{stepLook, stepClaim, stepYield, stepLeave, stepLost}).Draw(t, "step")
			m.fails = rapid.Bool().Draw(t, "fails") && by != stepLost
			m.did(t, by, m.c.step(by, m.do))
		},
		"free": func(t *rapid.T) {
			if !m.underWay() {
				m.c.free()
				m.held = false
			}
		},
		"change": func(t *rapid.T) {
			if m.change != nil { // it would wait
				return
			}
			if m.state != alone {
				require.ErrorIs(t, m.c.Change(m.do), ErrUnderWay)
				return
			}
			over := make(chan struct{})
			m.change = sync.OnceFunc(func() { close(over) })
			go func() { assert.NoError(t, m.c.Change(func() error { <-over; return nil })) }()
		},
		"changed": func(*rapid.T) {
			if m.change != nil {
				m.change()
				m.change = nil
			}
		},
		"end": func(t *rapid.T) {
			m.ends++
			go func() {
				err := m.c.End(func() error { m.ended++; return errStep })
				assert.ErrorIs(t, err, errStep)
			}()
		},
		"": func(t *rapid.T) {
			synctest.Wait()
			require.Equal(t, m.state, m.c.at)
			require.Equal(t, m.state != alone, m.c.Busy())
			require.Equal(t, m.held, m.c.wake != nil)
			if !m.underWay() && m.change == nil {
				require.Equal(t, m.ends, m.ended)
			}
			if m.underWay() {
				require.Equal(t, m.ends != m.ended, m.woken)
			}
			select {
			case <-m.c.left:
				require.Equal(t, left, m.state)
			default:
				require.NotEqual(t, left, m.state)
			}
		},
	})
}

func (m *model) underWay() bool { return m.state == claimed || m.state == yielded }

// did is a step that was done, as the diagram has it.
func (m *model) did(t *rapid.T, by step, err error) {
	to, ok := map[state]map[step]state{
		alone:   {stepClaim: claimed},
		claimed: {stepYield: yielded, stepLost: alone},
		yielded: {stepLeave: left, stepLost: alone},
	}[m.state][by]
	switch {
	case !ok:
		require.ErrorIs(t, err, errOrder)
	case m.fails:
		require.ErrorIs(t, err, errStep)
	default:
		require.NoError(t, err)
		m.state = to
	}
}

// TestClaimAfterAChange: a takeover, or a change, that comes in the midst of a change begins after it,
// with what the gateway is then; a change that comes in the midst of a claim does not.
func TestClaimAfterAChange(t *testing.T) {
	nothing := func() error { return nil }
	for name, tt := range map[string]struct {
		first, second func(c *claims, do func() error) error
		err           error
	}{
		"claim after change":  {(*claims).Change, claimIt, nil},
		"change after change": {(*claims).Change, (*claims).Change, nil},
		"change after claim":  {claimIt, (*claims).Change, ErrUnderWay},
		"claim after claim":   {claimIt, claimIt, ErrUnderWay},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, is, told := newClaims(), "before", ""
				second := make(chan error, 1)
				require.NoError(t, tt.first(c, func() error {
					go func() { second <- tt.second(c, func() error { told = is; return nil }) }()
					synctest.Wait()
					require.Empty(t, second, "it waits")
					is = "after"
					return nil
				}))
				require.ErrorIs(t, <-second, tt.err)
				require.Equal(t, tt.err == nil, told == "after")
				require.Equal(t, name != "change after change", c.Busy())
				require.Equal(t, c.Busy(), c.Change(nothing) != nil)
			})
		})
	}
}

func claimIt(c *claims, do func() error) error { return c.claim(func() {}, do) }
