package rdmacm

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fakeKernel has one identifier, which is resolved as soon as it is asked to be.
type fakeKernel struct {
	refuse map[Number]syscall.Errno // commands that fail
	mute   EventKind                // does not come; 0: all do
	events []EventKind
}

func (k *fakeKernel) Call(c Command, answer []byte) error {
	if errno := k.refuse[c.Number()]; errno != 0 {
		return &CommandError{Command: c.Number().String(), Errno: errno}
	}
	switch c := c.(type) {
	case CreateID:
		native.PutUint32(answer, 1)
	case ResolveAddr:
		k.events = append(k.events, AddrResolved)
	case ResolveRoute:
		k.events = append(k.events, RouteResolved)
	case Query:
		copy(answer, ibPath(0))
	case InitQPAttr:
		copy(answer, ibQPAttr())
	default:
		return fmt.Errorf("%v", c.Number())
	}
	return nil
}

func (k *fakeKernel) Next(ctx context.Context, answer []byte) error {
	if len(k.events) == 0 || k.mute != 0 && k.events[0] == k.mute {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	clear(answer)
	native.PutUint32(answer[12:], uint32(k.events[0]))
	k.events = k.events[1:]
	return nil
}

func TestResolve(t *testing.T) {
	remote := netip.MustParseAddr("10.0.0.2")
	p, err := resolveBy(t.Context(), &fakeKernel{}, netip.Addr{}, remote)
	require.NoError(t, err)
	require.EqualValues(t, 7, p.DLID)
	require.EqualValues(t, 4, p.PKeyIndex)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = resolveBy(ctx, &fakeKernel{mute: RouteResolved}, netip.Addr{}, remote)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	for _, n := range []Number{NumCreateID, NumResolveAddr, NumResolveRoute, NumQuery, NumInitQPAttr} {
		k := &fakeKernel{refuse: map[Number]syscall.Errno{n: syscall.EACCES}}
		_, err = resolveBy(t.Context(), k, netip.Addr{}, remote)
		require.ErrorIs(t, err, ErrCredentials)
		var failed *CommandError
		require.ErrorAs(t, err, &failed)
		require.Equal(t, n.String(), failed.Command)
	}
	_, err = resolveBy(t.Context(), &fakeKernel{}, netip.Addr{}, netip.MustParseAddr("fe80::1%no-such-device"))
	require.Error(t, err)
}

// TestFailures: what events tell of errors.
func TestFailures(t *testing.T) {
	for _, c := range []struct {
		ev   Event
		want error
	}{
		{Event{Kind: AddrError, Status: -int32(syscall.EHOSTUNREACH)}, syscall.EHOSTUNREACH},
		{Event{Kind: RouteError, Status: -int32(syscall.ETIMEDOUT)}, syscall.ETIMEDOUT},
		{Event{Kind: DeviceRemoval}, syscall.ENODEV},
	} {
		require.ErrorIs(t, c.ev.Failure(), c.want)
		k := &failingKernel{ev: c.ev}
		_, err := resolveBy(t.Context(), k, netip.Addr{}, netip.MustParseAddr("10.0.0.2"))
		require.ErrorIs(t, err, c.want)
	}
	require.NoError(t, (&Event{Kind: RouteResolved}).Failure())
	require.Equal(t, "ADDR_ERROR", (&Event{Kind: AddrError, Status: 5}).Failure().Error())
}

// failingKernel answers a resolution by an event.
type failingKernel struct {
	fakeKernel

	ev Event
}

func (k *failingKernel) Next(_ context.Context, answer []byte) error {
	clear(answer)
	native.PutUint32(answer[12:], uint32(k.ev.Kind))
	native.PutUint32(answer[16:], uint32(k.ev.Status))
	return nil
}

// TestAbsent: this test runs on hosts without the device only.
func TestAbsent(t *testing.T) {
	if _, err := os.Stat(DevicePath); err == nil {
		t.Skip("the device is there")
	}
	_, err := Resolve(t.Context(), netip.Addr{}, netip.MustParseAddr("10.0.0.2"))
	require.ErrorIs(t, err, ErrAbsent)
}
