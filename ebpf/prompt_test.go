package ebpf

import (
	"errors"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestPrompt: what shards call goes on while programs are attached, the kernel lists devices,
// and traces are renewed.
func TestPrompt(t *testing.T) {
	t.Parallel()
	h1, _ := newPair(t)
	d := h1.open(config(nil))
	var index int
	h1.do(func() {
		var err error
		index, err = linkIndex("w0")
		require.NoError(t, err)
	})
	tuple := Tuple{Local: netip.MustParseAddrPort("10.77.0.1:7000"), Remote: netip.MustParseAddrPort("10.77.0.2:7001")}
	peer, reason := tuple.Remote.Addr(), uint8(37) // rate_limit
	calls := map[string]func() error{
		"Heartbeat":  d.Heartbeat,
		"ProveAgain": func() error { d.ProveAgain(); return nil },
		"Shed":       func() error { return d.Shed(reason) },
		"Decide":     func() error { d.Decide(Query{}); return nil },

		"Flow":           func() error { _, err := d.Flow(tuple); return errorUnless(err, ErrNoFlow) },
		"Transition":     func() error { return errorUnless(d.Transition(tuple, 1, StateDead, StateWire), ErrNoFlow) },
		"Delete":         func() error { return errorUnless(d.Delete(tuple, 1, StateDead), ErrNoFlow) },
		"InjectApp":      func() error { return d.InjectApp(ProbeSegment(tuple, 1, 1)) },
		"DestroySocket":  func() error { _, err := d.DestroySocket(tuple); return err },
		"LegWaits":       func() error { _, err := d.LegWaits(tuple); return err },
		"ForgetTimeWait": func() error { _, err := d.ForgetTimeWait(tuple); return err },
		"ForgetRequest":  func() error { _, err := d.ForgetRequest(tuple); return err },

		"Remember": func() error { return d.Remember(peer, 7001, reason, time.Minute) },
		"Forget":   func() error { return d.Forget(peer, 7001) },

		"SetDatagramPeer":    func() error { return d.SetDatagramPeer(DatagramPeer{Addr: peer, Capable: true}) },
		"ForgetDatagramPeer": func() error { return d.ForgetDatagramPeer(peer, 0) },
		"OpenDatagram":       func() error { return d.OpenDatagram(tuple, index, NoRule) },
		"CloseDatagram":      func() error { return d.CloseDatagram(tuple, 0, 0) },
		"DatagramIfindex":    func() error { _, err := d.DatagramIfindex(tuple); return errorUnless(err, ErrNoFlow) },
		"RouteDevice":        func() error { _, err := d.RouteDevice(tuple.Local.Addr(), peer); return err },

		"": func() error { _, err := d.Lingering(); return err }, // beside the shards, but nothing of theirs
	}
	for m := range reflect.TypeFor[Prompt]().Methods() {
		require.Contains(t, calls, m.Name)
	}

	release := make(chan struct{})
	let := holdNetlink(t, d.nl, release)
	d.mu.Lock()
	d.traces.mu.Lock()
	for name, call := range calls {
		done := make(chan error, 1)
		go func() { done <- call() }()
		select {
		case err := <-done:
			assert.NoError(t, err, name)
		case <-time.After(patience):
			assert.Fail(t, "waits", name)
			t.Cleanup(func() { <-done })
		}
	}
	d.traces.mu.Unlock()
	d.mu.Unlock()
	close(release)
	<-let
}

// errorUnless is err, unless it is one that is meant.
func errorUnless(err, meant error) error {
	if errors.Is(err, meant) {
		return nil
	}
	return err
}

// holdNetlink has a handle list routes until release is closed, when let is.
func holdNetlink(t *testing.T, nl *netlink.Handle, release <-chan struct{}) (let chan struct{}) {
	held, let := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(let)
		first := true
		err := nl.RouteListFilteredIter(unix.AF_INET, &netlink.Route{}, 0, func(netlink.Route) bool {
			if first {
				close(held)
				<-release
			}
			first = false
			return true
		})
		assert.NoError(t, err)
	}()
	<-held
	return let
}
