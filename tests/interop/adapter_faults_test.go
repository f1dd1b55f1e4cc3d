package interop

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/tests/interop/guest/remote"
)

// talks are two connections of programs in the first guest that adapters carry: one exchanges small messages, the
// other moves megabytes. Both programs compare what they receive.
type talks struct {
	p     *adapterPair
	progs [2]*remote.Process
	id    [2]uint64 // of their connections, by which they are found
}

// talkPorts are the ports of talks.
var talkPorts = [2]uint16{echoPort, transferPort}

// talks starts the programs, from an address if one is given, and returns once adapters carry both.
func (p *adapterPair) talks(ctx context.Context, t *testing.T, from ...netip.Addr) *talks {
	t.Helper()
	p.transfer(ctx, t, at(p.guest[1].Addr4, transferPort)) // first make sure that the carrier works between them
	tk := &talks{p: p}
	for i, args := range [][]string{{"ping", "-count", "120", "-gap", "200ms"}, {"transfer", "-up", "24000000", "-down", "24000000"}} {
		args = append(args, "-to", at(p.guest[1].Addr4, talkPorts[i]))
		if len(from) > 0 {
			args = append(args, "-bind", at(from[0], 0))
		}
		for try := 1; ; try++ {
			natives := len(p.natives(ctx, t, talkPorts[i]))
			tk.progs[i] = startIn(t, p.guest[0], appInGuest(args...)...)
			c := p.first(ctx, t, talkPorts[i], natives)
			if c.Carrier == report.CarrierHW {
				tk.id[i] = c.ID
				break
			}
			tk.progs[i].Kill()
			require.Less(t, try, workTries, "%+v", c)
		}
	}
	return tk
}

// natives returns the last connections of the first guest with a port that stayed native.
func (p *adapterPair) natives(ctx context.Context, t *testing.T, port uint16) (list []report.ConnInfo) {
	t.Helper()
	for _, c := range p.conns(ctx, t, 0, port, "--all") {
		if c.End == report.EndNative {
			list = append(list, c)
		}
	}
	return list
}

// first waits until the only connection of the first guest with a port is carried, or more than natives connections
// have stayed native.
func (p *adapterPair) first(ctx context.Context, t *testing.T, port uint16, natives int) (c report.ConnInfo) {
	t.Helper()
	require.Eventually(t, func() bool {
		for _, c = range p.conns(ctx, t, 0, port) {
			if c.State == "carrying" && c.RxBytes > 0 {
				return true
			}
		}
		list := p.natives(ctx, t, port)
		if len(list) > natives {
			c = youngest(list)
		}
		return len(list) > natives
	}, time.Minute, 200*time.Millisecond, "a connection")
	return c
}

// youngest returns the connection that ended last.
func youngest(list []report.ConnInfo) report.ConnInfo {
	return slices.MaxFunc(list, func(a, b report.ConnInfo) int { return a.EndedAt.Compare(b.EndedAt) })
}

// goOn waits for both to end, over the relay and without an error. They must have left the adapter because of it, or
// because the queue pair was silent.
func (tk *talks) goOn(ctx context.Context, t *testing.T) {
	t.Helper()
	for i, prog := range tk.progs {
		require.NoError(t, prog.Wait(ctx))
		c := tk.closed(ctx, t, i)
		t.Logf("%s: %s, demoted: %s", prog.Name, c.Carrier, c.Demoted)
		require.Equal(t, report.CarrierRelay, c.Carrier, "%+v", c)
		require.Contains(t, []string{
			negotiate.ReasonDeviceFailed.String(), negotiate.ReasonCarrierUnreachable.String(), report.DemotedByPeer,
		}, c.Demoted)
		require.Equal(t, report.EndClosed, c.End, "%+v", c)
	}
}

// end waits for both to end by a reset, in time and for one of these reasons.
func (tk *talks) end(ctx context.Context, t *testing.T, reasons ...negotiate.Reason) {
	t.Helper()
	for i, prog := range tk.progs {
		e := result(ctx, t, prog)
		t.Logf("%s: %s %s", prog.Name, e.Errno, e.Error)
		require.Equal(t, "ECONNRESET", e.Errno, "%+v", e)
		c := tk.closed(ctx, t, i)
		t.Logf("%s: %s, %s", prog.Name, c.End, c.Reason)
		require.Equal(t, report.EndAborted, c.End, "%+v", c)
		var names []string
		for _, r := range reasons {
			names = append(names, r.String())
		}
		require.Contains(t, names, c.Reason)
	}
}

// closed returns one of the connections once it is over.
func (tk *talks) closed(ctx context.Context, t *testing.T, i int) (c report.ConnInfo) {
	t.Helper()
	require.Eventually(t, func() bool {
		for _, c = range tk.p.conns(ctx, t, 0, talkPorts[i], "--closed") {
			if c.ID == tk.id[i] {
				return true
			}
		}
		return false
	}, time.Minute, 200*time.Millisecond, "connection %d ends", tk.id[i])
	return c
}

// native runs a transfer that must not be carried, and returns the reason.
func (p *adapterPair) native(ctx context.Context, t *testing.T) string {
	t.Helper()
	before := p.status(ctx, t, 0).FlowsTotal
	p.run(ctx, t, "transfer", "-to", at(p.guest[1].Addr4, transferPort), "-up", "300000", "-down", "300000")
	require.Equal(t, before, p.status(ctx, t, 0).FlowsTotal, "it is native")
	list := p.natives(ctx, t, transferPort)
	require.NotEmpty(t, list)
	c := youngest(list)
	t.Logf("native: %s, decided %s", c.Reason, c.DecidedBy)
	return c.Reason
}

// linkGoesDown takes down the network device, which the port follows. Without the link there is no relay either, so
// connections must wait for it, and leave the adapter meanwhile.
func (p *adapterPair) linkGoesDown(ctx context.Context, t *testing.T) {
	p.up(ctx, t, adapterSettings{})
	tk := p.talks(ctx, t)
	// The IPv6 address disappears with the link.
	p.sh(ctx, t, 0, fmt.Sprintf("ip link set eth0 down; sleep 4; ip link set eth0 up; ip -6 addr replace %v/64 dev eth0 nodad", p.guest[0].Addr6))
	p.becomes(ctx, t, 0, report.DeviceActive)
	tk.goOn(ctx, t)
	p.transfer(ctx, t, at(p.guest[1].Addr4, transferPort))
	p.transfer(ctx, t, at(p.guest[1].Addr6, transferPort))
}

// addressGoes removes an address. Connections from it must leave the adapter, and go on once the host has the address
// again, as natively. Those from another address must stay.
func (p *adapterPair) addressGoes(ctx context.Context, t *testing.T) {
	second := netip.AddrFrom4([4]byte{10, 77, 0, 77})
	add := fmt.Sprintf("ip addr add %v/24 dev eth0", second)
	p.sh(ctx, t, 0, add)
	p.up(ctx, t, adapterSettings{})
	tk := p.talks(ctx, t, second)
	stays := startIn(t, p.guest[0], appInGuest("ping", "-count", "120", "-gap", "200ms", "-to", at(p.guest[1].Addr6, echoPort))...)
	time.Sleep(time.Second)
	p.sh(ctx, t, 0, fmt.Sprintf("ip addr del %v/24 dev eth0; sleep 3; %s", second, add))
	tk.goOn(ctx, t)
	require.NoError(t, stays.Wait(ctx))
	for _, c := range p.conns(ctx, t, 0, echoPort, "--closed") {
		if c.Remote.Addr() == p.guest[1].Addr6 {
			require.Empty(t, c.Demoted, "%+v", c)
		}
	}
	again := p.talks(ctx, t, second)
	for _, prog := range again.progs {
		require.NoError(t, prog.Wait(ctx))
	}
	p.sh(ctx, t, 0, fmt.Sprintf("ip addr del %v/24 dev eth0", second))
}

// gatewayKilled kills the peer's gateway. Its connections must end by a reset, and new ones must be native until it
// has a successor.
func (p *adapterPair) gatewayKilled(ctx context.Context, t *testing.T) {
	p.up(ctx, t, adapterSettings{})
	tk := p.talks(ctx, t)
	p.sh(ctx, t, 1, "kill -9 $(pidof smcgw); while pidof smcgw; do sleep .2; done")
	tk.end(ctx, t, negotiate.ReasonWireReset, negotiate.ReasonPeerDead)
	nothingLeft(ctx, t, p.guest[1])
	require.NotEmpty(t, p.native(ctx, t))
	p.gateway(ctx, t, 1, adapterSettings{})
	p.transfer(ctx, t, at(p.guest[1].Addr4, transferPort))
}

// hostKilled cuts the power of a host. Connections to it must end as TCP's do: when it answers again and does not
// know them.
func (p *adapterPair) hostKilled(ctx context.Context, t *testing.T) {
	p.up(ctx, t, adapterSettings{})
	tk := p.talks(ctx, t)
	p.guest[1].Kill()
	time.Sleep(8 * time.Second) // until queue pairs give up
	require.NoError(t, p.guest[1].Close())
	p.boot(ctx, t, 1)
	tk.end(ctx, t, negotiate.ReasonWireReset, negotiate.ReasonPeerDead)
	require.NotEmpty(t, p.native(ctx, t))
	p.gateway(ctx, t, 1, adapterSettings{})
	p.transfer(ctx, t, at(p.guest[1].Addr4, transferPort))
}
