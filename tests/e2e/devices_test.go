package e2e

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/matrix"
	"github.com/smcgw/smcgw/lab/testnet"
)

// TestDeviceKinds checks that connections over devices above the wire's are carried, whichever host has such a
// device, or are native for the right reason. Each is compared with one made without gateways.
func TestDeviceKinds(t *testing.T) {
	t.Parallel()
	for _, k := range matrix.Cells(t, deviceKinds, 8) {
		t.Run(k.name, func(t *testing.T) {
			for _, where := range []string{clientSide, serverSide, bothSides} {
				if k.both && where != bothSides {
					continue
				}
				t.Run(where, func(t *testing.T) { k.test(t, where) })
			}
		})
	}
}

func (k deviceKind) test(t *testing.T, where string) {
	w := newWorld(t, testnet.Config{})
	k.need(t, w)
	client, server := settings{Carriers: k.carriers}, settings{Carriers: k.carriers}
	var cable *ipoibCable
	if k.ipoib {
		cable = k.join(t, w)
	}
	if where != serverSide {
		if !k.ipoib {
			k.give(t, w, w.h1, w.h2)
		}
		client.Devices = k.offers()
	}
	if where != clientSide {
		if !k.ipoib {
			k.give(t, w, w.h2, w.h1)
		}
		server.Devices = k.offers()
	}
	if k.routed && where == clientSide {
		k.route(t, w, w.h2, w.h1)
	}
	if k.routed && where == serverSide {
		k.route(t, w, w.h1, w.h2)
	}
	w.serve(w.h2)
	native := map[string]apps.Event{}
	for family, addr := range k.addresses(w.h2) {
		native[family] = w.overDevice(addr)
		for try := 0; try < lateTries && native[family].Repeated > 0; try++ { // the device has just come up, or the machine is busy
			native[family] = w.overDevice(addr)
		}
		require.Zero(t, native[family].Repeated)
	}
	g1, g2 := w.launch(w.h1, client), w.launch(w.h2, server)
	if k.ipoib {
		require.NoError(t, cable.Show(patience(t)))
	}
	g1.ready()
	g2.ready()
	for family, addr := range k.addresses(w.h2) {
		t.Run(family, func(t *testing.T) { k.compare(t, w, where, addr, native[family]) })
	}
}

// addresses returns a host's addresses by family.
func (k deviceKind) addresses(h *testnet.Host) map[string]string {
	all := map[string]string{"ipv4": k.addr(h, false), "ipv6": k.addr(h, true)}
	if k.family != "" {
		return map[string]string{k.family: all[k.family]}
	}
	return all
}

// overDevice transfers bytes both ways.
func (w *world) overDevice(addr string) apps.Event {
	w.t.Helper()
	e := w.mustApp(w.h1, "transfer", "-up", "3000000", "-down", "3000000", "-to", net.JoinHostPort(addr, "7001"))
	require.EqualValues(w.t, 3000000, e.Sent)
	require.EqualValues(w.t, 3000000, e.Received)
	return e
}

func (k deviceKind) compare(t *testing.T, w *world, where, addr string, native apps.Event) {
	to := net.JoinHostPort(addr, "7000")
	if k.alone != "" {
		client, server := local(k.alone), nothing
		if where == serverSide {
			client, server = remote("peer_no_option"), local(k.alone)
		}
		if k.unheard {
			server = nothing
		}
		f := fallback{w: w, t: t, from: w.h1, to: to, client: client, server: server}
		f.inTime(f.connect)
		e := w.overDevice(addr)
		t.Logf("connect() took %v, natively %v; native for %s", microseconds(e.ConnectMicros), microseconds(native.ConnectMicros), k.alone)
		return
	}
	if k.vrf && where != clientSide { // its listener is known once it has answered
		f := fallback{w: w, t: t, from: w.h1, to: to, client: remote("peer_no_option")}
		f.inTime(f.connect)
		w.overDevice(addr)
		w.flush()
	}
	w.carried(t, w.h1, to)
	var e apps.Event
	w.inTime(func() bool {
		e = w.overDevice(addr)
		return !w.foundLate(e)
	})
	w.carriedBy(e, w.via)
	require.Equal(t, hostOf(native.Local), hostOf(e.Local))
	took, may := microseconds(e.ConnectMicros), microseconds(native.ConnectMicros)+mayCost(oneCosts)
	for end := time.Now().Add(slowed(busyFor)); took > may && time.Now().Before(end); {
		took = min(took, microseconds(w.carried(t, w.h1, to).ConnectMicros))
	}
	require.LessOrEqual(t, took, may, "connect()")
	t.Logf("connect() took %v, natively %v; carried by %s", took, microseconds(native.ConnectMicros), w.via)
}

// busyFor is how long connections are made until connect() of one is in time, since the machine is shared.
const busyFor = 30 * time.Second

func microseconds(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
