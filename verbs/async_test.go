package verbs

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

type fakeQP struct {
	QP
	n int
}

func TestAsyncChannel(t *testing.T) {
	c := NewAsyncChannel()
	_, ok := c.Poll()
	require.False(t, ok)
	a, b := &fakeQP{n: 1}, &fakeQP{n: 2}
	events := []AsyncEvent{
		{Type: EventSQDrained, QP: a}, {Type: EventSQDrained, QP: b}, {Type: EventCommEst, QP: a}, {Type: EventCQErr, CQ: &fakeCQ{}},
	}
	for range 3 {
		for _, e := range events {
			c.Notify(e)
		}
	}
	for _, want := range events {
		got, err := c.Get(context.Background())
		require.NoError(t, err)
		require.Equal(t, want, got, "each once, in order")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	_, err := c.Get(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	c.Notify(events[0])
	got, ok := c.Poll()
	require.True(t, ok, "fetched before, so it is news again")
	require.Equal(t, events[0], got)
}

func TestAsyncChannelWakes(t *testing.T) {
	c := NewAsyncChannel()
	const n = 50
	done := make(chan error, 2)
	for range 2 {
		go func() {
			for range n / 2 {
				if _, err := c.Get(context.Background()); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for i := range n {
		c.Notify(AsyncEvent{Type: EventCommEst, QP: &fakeQP{n: i}})
	}
	require.NoError(t, <-done)
	require.NoError(t, <-done)
}

// A channel without a reader is bounded, and keeps what came first.
func TestAsyncChannelLimit(t *testing.T) {
	c := NewAsyncChannel()
	for i := range asyncLimit + 5 {
		c.Notify(AsyncEvent{Type: EventQPFatal, QP: &fakeQP{n: i}})
	}
	for i := range asyncLimit {
		e, ok := c.Poll()
		require.True(t, ok)
		require.Equal(t, i, e.QP.(*fakeQP).n)
	}
	_, ok := c.Poll()
	require.False(t, ok)
}

// An adapter that fails raises an event for each queue pair before the one that says so.
func TestAsyncChannelKeepsEventsOfTheDevice(t *testing.T) {
	c := NewAsyncChannel()
	for i := range asyncLimit + 5 {
		c.Notify(AsyncEvent{Type: EventQPFatal, QP: &fakeQP{n: i}})
	}
	events := []AsyncEvent{{Type: EventCQErr, CQ: &fakeCQ{}}, {Type: EventPortErr}, {Type: EventDeviceFatal}}
	for range 3 {
		for _, e := range events {
			c.Notify(e)
		}
	}
	for range asyncLimit {
		_, ok := c.Poll()
		require.True(t, ok)
	}
	for _, want := range events {
		e, ok := c.Poll()
		require.True(t, ok)
		require.Equal(t, want, e)
	}
}

// Against a list without duplicates.
func TestAsyncChannelModel(t *testing.T) {
	objects := []*fakeQP{{n: 1}, {n: 2}, {n: 3}}
	rapid.Check(t, func(t *rapid.T) {
		c := NewAsyncChannel()
		var model []AsyncEvent
		t.Repeat(map[string]func(*rapid.T){
			"notify": func(t *rapid.T) {
				e := AsyncEvent{Type: EventType(rapid.IntRange(0, 3).Draw(t, "type")), QP: rapid.SampledFrom(objects).Draw(t, "qp")}
				c.Notify(e)
				if !slices.Contains(model, e) {
					model = append(model, e)
				}
			},
			"poll": func(t *rapid.T) {
				e, ok := c.Poll()
				require.Equal(t, len(model) > 0, ok)
				if ok {
					require.Equal(t, model[0], e)
					model = model[1:]
				}
			},
		})
	})
}
