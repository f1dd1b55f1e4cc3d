package flow

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/leak"
	"github.com/smcgw/smcgw/negotiate"
)

// carriedCore is a connection that is carried by something, and has records.
func carriedCore(t *testing.T, side report.Side, by By) *Core {
	t.Helper()
	c := New(side)
	c.HandshakeBegins()
	c.Negotiates()
	require.True(t, c.CarriedBy(by))
	require.True(t, c.Talk())
	require.Empty(t, c.Talked())
	return &c
}

// the one action that is the end.
func ending(t *testing.T, todo []Action) Action {
	t.Helper()
	require.NotEmpty(t, todo)
	last := todo[len(todo)-1]
	require.Equal(t, End, last.Do)
	return last
}

// TestCancel: what a gateway that ends does with a connection.
func TestCancel(t *testing.T) {
	client := New(report.SideClient)
	require.Empty(t, client.Cancel(negotiate.ReasonDrained), "its handshake begins, and looks itself")
	client.HandshakeBegins()
	todo := client.Cancel(negotiate.ReasonDrained)
	require.Equal(t, []Action{{Do: CancelHandshake, Verdict: negotiate.Verdict{Reason: negotiate.ReasonDrained}}}, todo)
	require.False(t, client.Ended(), "the handshake gives it back")

	server := New(report.SideServer)
	a := ending(t, server.Cancel(negotiate.ReasonDrained))
	require.Equal(t, WireForget, a.Ending.Wire, "half open: the client comes back by itself")
	require.Equal(t, Released, server.Phase())

	a = ending(t, carriedCore(t, report.SideServer, ByRelay).Cancel(negotiate.ReasonDrained))
	require.Equal(t, report.EndAborted, a.Ending.End)
	require.Equal(t, negotiate.ReasonDrained, a.Word, "the peer is told")
}

// TestPanicked: as much is saved as can be known.
func TestPanicked(t *testing.T) {
	for name, c := range map[string]struct {
		side            report.Side
		by              By
		handshake       bool
		untouched, mute bool
		phase           Phase
		wire            WireEnd
		entry           EntryEnd
		counts          bool
	}{
		"client, untouched":      {report.SideClient, ByNothing, true, true, false, Released, WireReset, EntryRelease, true},
		"client, handed over":    {report.SideClient, ByNothing, true, false, false, Aborted, WireReset, EntryKept, true},
		"client, carried":        {report.SideClient, ByLink, true, true, false, Aborted, WireReset, EntryKept, false},
		"server, no handshake":   {report.SideServer, ByNothing, false, false, false, Aborted, WireForget, EntryDead, true},
		"server, mute":           {report.SideServer, ByNothing, true, false, true, Aborted, WireForget, EntryDead, true},
		"server":                 {report.SideServer, ByNothing, true, false, false, Aborted, WireReset, EntryDead, true},
		"server, carried by raw": {report.SideServer, ByRaw, true, false, true, Aborted, WireReset, EntryKept, false},
	} {
		t.Run(name, func(t *testing.T) {
			core := New(c.side)
			if c.handshake {
				core.HandshakeBegins()
			}
			if c.by != ByNothing {
				core.CarriedBy(c.by)
			}
			todo := core.Panicked(c.untouched, c.mute)
			a := ending(t, todo)
			require.Equal(t, c.phase, core.Phase())
			require.Equal(t, c.wire, a.Ending.Wire)
			require.Equal(t, c.entry, a.Ending.Entry)
			require.Equal(t, c.counts, todo[0].Do == CountFallback)
			why, remote := core.Why()
			require.Equal(t, negotiate.ReasonInternalError, why)
			require.False(t, remote)
		})
	}
}

// TestCountsOnce: a connection that was counted as native is not counted again, and the
// reason that began it stays.
func TestCountsOnce(t *testing.T) {
	c := New(report.SideServer)
	c.HandshakeBegins()
	todo := c.LosesAccept()
	require.Len(t, todo, 1)
	require.Equal(t, CountFallback, todo[0].Do)
	require.Empty(t, c.LosesAccept())
	todo = c.HandshakeAborts(negotiate.Verdict{Outcome: negotiate.OutcomeAborted, Reason: negotiate.ReasonAppRefused}, false)
	require.Len(t, todo, 1)
	why, _ := c.Why()
	require.Equal(t, negotiate.ReasonAcceptLost, why)
}

// TestReasonOfTheEnd: what ends a carried connection is not why it is on the carrier it is
// on.
func TestReasonOfTheEnd(t *testing.T) {
	c := carriedCore(t, report.SideServer, ByRelay)
	why, remote := c.Why()
	require.Equal(t, negotiate.ReasonCarrierUnreachable, why)
	require.True(t, remote, "the client proves")
	c.Aborts(negotiate.ReasonStalled, false)
	why, remote = c.Why()
	require.Equal(t, negotiate.ReasonStalled, why)
	require.False(t, remote)

	c = carriedCore(t, report.SideClient, ByRelay)
	c.Aborts(negotiate.ReasonAppReset, false)
	why, _ = c.Why()
	require.Equal(t, negotiate.ReasonAppReset, why)
}

// TestLinkFails: whose peer is dead ends the connection, others have it go on; what has
// been lost on the link, or forged there, ends it.
func TestLinkFails(t *testing.T) {
	c := carriedCore(t, report.SideClient, ByLink)
	require.True(t, c.MindsLink(0))
	a := ending(t, c.LinkFails(negotiate.ReasonPeerDead, false))
	require.Equal(t, negotiate.ReasonPeerDead, a.Verdict.Reason)
	require.False(t, c.MindsLink(0))

	c = carriedCore(t, report.SideClient, ByLink)
	require.Equal(t, []Action{{Do: SetPatience, After: BreakPatience}}, c.LinkFails(negotiate.ReasonDeviceFailed, true))
	require.Empty(t, c.LinkFails(negotiate.ReasonDeviceFailed, false), "known")
	todo := c.Patience()
	require.Equal(t, []Action{{Do: DrainLink, Cause: "device_failed"}}, todo)
	a = ending(t, c.LinkDrained(Drained{Cause: "device_failed", Reset: true}))
	require.Equal(t, negotiate.ReasonAppReset, a.Verdict.Reason)

	c = carriedCore(t, report.SideClient, ByLink)
	require.Equal(t, []Action{{Do: DrainLink, Cause: report.DemotedByPeer}}, c.Record(negotiate.Record{Type: negotiate.RecordDemote}, 0))
	a = ending(t, c.LinkDrained(Drained{Cause: report.DemotedByPeer, Convicted: true}))
	require.Equal(t, negotiate.ReasonProtocolError, a.Word)
}

// TestAsks: only for something, and not after what has to be acknowledged anyway.
func TestAsks(t *testing.T) {
	c := carriedCore(t, report.SideServer, ByLink)
	require.Len(t, c.Ask(false), 2)
	require.Empty(t, c.Ask(true))
	require.Empty(t, carriedCore(t, report.SideServer, ByRelay).Ask(false), "its wire leg is kept alive anyway")
	require.Equal(t, Carrying, c.Phase())
	require.Equal(t, ByLink, c.By())
	require.True(t, c.Talks() && !c.Gone())
}

// TestGivenBack: what the programs did decides what is recorded.
func TestGivenBack(t *testing.T) {
	c := New(report.SideServer)
	require.Empty(t, ending(t, c.GivenBack(false)).Ending.End, "another SYN instead of the third ACK: recorded elsewhere")
	c = New(report.SideClient)
	require.Equal(t, report.EndNative, ending(t, c.GivenBack(false)).Ending.End)
	c = New(report.SideClient)
	require.Empty(t, ending(t, c.GivenBack(true)).Ending.End)
}

// TestMain fails the run if a test left a goroutine or a descriptor behind.
func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }
