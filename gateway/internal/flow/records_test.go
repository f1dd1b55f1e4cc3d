package flow

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

func rec(t negotiate.RecordType, offset, window uint64) negotiate.Record {
	return negotiate.Record{Type: t, Offset: offset, Window: window}
}

// acts are what actions are to do.
func acts(todo []Action) (list []Act) {
	for _, a := range todo {
		list = append(list, a.Do)
	}
	return list
}

// TestRecordsEnd: what a peer must not say ends the connection, and it is told why; what
// it says about its own end is its decision.
func TestRecordsEnd(t *testing.T) {
	for name, c := range map[string]struct {
		by     By
		says   negotiate.Record
		reason negotiate.Reason
		remote bool
	}{
		"DATA beside a link":   {ByLink, negotiate.Record{Type: negotiate.RecordData, Payload: []byte{1}}, negotiate.ReasonProtocolError, false},
		"DEMOTE of a relay":    {ByRelay, rec(negotiate.RecordDemote, 0, 0), negotiate.ReasonProtocolError, false},
		"DEMOTE-DONE, nothing": {ByRelay, rec(negotiate.RecordDemoteDone, 0, 0), negotiate.ReasonProtocolError, false},
		"END before its bytes": {ByLink, rec(negotiate.RecordEnd, 2, 0), negotiate.ReasonProtocolError, false},
		"ABORT":                {ByLink, negotiate.Record{Type: negotiate.RecordAbort, Reason: negotiate.ReasonStalled}, negotiate.ReasonStalled, true},
	} {
		t.Run(name, func(t *testing.T) {
			core := carriedCore(t, report.SideServer, c.by)
			a := ending(t, core.Record(c.says, 3))
			require.Equal(t, negotiate.Verdict{Reason: c.reason, Remote: c.remote}, a.Verdict)
			require.Equal(t, c.remote, a.Word == negotiate.ReasonNone, "a peer that decided knows why")
			require.True(t, core.Silent())
		})
	}
}

// TestEndsOfALink: records beside a link, from the first END to the reset of the client.
func TestEndsOfALink(t *testing.T) {
	c := carriedCore(t, report.SideClient, ByLink)
	require.Empty(t, c.Record(rec(negotiate.RecordHave, 7, Window), 0), "of bytes that only the link counts")
	require.Equal(t, []Act{Pump}, acts(c.Record(rec(negotiate.RecordEnd, 5, 0), 3)))
	require.Equal(t, Closing, c.Phase())
	require.Equal(t, []Act{Look}, acts(c.LegShut()))
	require.Empty(t, c.Pay(), "it goes after the own END")
	require.Equal(t, []Act{Queue, Look}, acts(c.LegEnds(9)))
	require.Equal(t, []Action{record(negotiate.RecordHave, 5, 0)}, c.Pay())
	require.Empty(t, c.Pay(), "once")
	require.Equal(t, []Act{Look}, acts(c.LegDelivered()))
	require.Empty(t, c.Settle(true))
	require.Empty(t, c.Settle(false), "the peer has not taken all of it")
	require.Empty(t, c.Record(rec(negotiate.RecordHave, 9, 0), 5))
	require.Empty(t, c.Settle(true), "records wait")
	require.Equal(t, []Act{End}, acts(c.Settle(false)))
	require.Equal(t, Closed, c.Phase())
}

// TestServerLingers: a server asks for the reset of a client that does not come, by TCP
// first, and waits for that of one that has everything, but not for ever.
func TestServerLingers(t *testing.T) {
	c := carriedCore(t, report.SideServer, ByLink)
	c.Record(rec(negotiate.RecordEnd, 0, 0), 0)
	c.LegShut()
	c.LegEnds(0)
	c.Pay()
	c.LegDelivered()
	require.Equal(t, []Action{{Do: SetLinger, After: ResetMissed}}, c.Settle(false))
	require.Empty(t, c.Settle(false), "it is set")
	require.Equal(t, []Action{{Do: ProbeWire, After: ResetMissed}, {Do: SetLinger, After: ServerLinger}}, c.Linger(false))
	require.Equal(t, []Act{Queue, Flush, SetLinger}, acts(c.Linger(false)), "by a record, later")
	require.False(t, c.Settled())
	require.Empty(t, c.Record(rec(negotiate.RecordHave, 0, 0), 0))
	require.Equal(t, []Action{{Do: SetLinger, After: ServerLinger}}, c.Settle(false))
	require.True(t, c.Settled())
	require.Equal(t, []Act{End}, acts(c.Linger(false)))
	require.Equal(t, Closed, c.Phase())
}

// TestWireEnds: before END from both sides it is an abort, and after them the goodbye of
// the client, if all bytes are here.
func TestWireEnds(t *testing.T) {
	c := carriedCore(t, report.SideServer, ByLink)
	a := ending(t, c.WireEnded(0))
	require.Equal(t, negotiate.Verdict{Reason: negotiate.ReasonWireReset, Remote: true}, a.Verdict)
	for received, want := range []Phase{4: Aborted, 5: Closing} {
		if want == Offered {
			continue
		}
		c = carriedCore(t, report.SideServer, ByLink)
		c.LegEnds(1)
		c.Record(rec(negotiate.RecordEnd, 5, 0), 3)
		c.WireEnded(uint64(received))
		require.Equal(t, want, c.Phase(), "%d bytes", received)
		require.True(t, c.Gone())
	}
	c.LegShut()
	c.LegDelivered()
	require.Equal(t, []Act{End}, acts(c.Settle(false)))
	require.Equal(t, Closed, c.Phase())
}

// TestLeavesOnce: the first caller leaves, when records are exchanged, and END is said again.
func TestLeavesOnce(t *testing.T) {
	c := New(report.SideClient)
	c.HandshakeBegins()
	require.True(t, c.CarriedBy(ByLink))
	require.Equal(t, []Action{{Do: ProbeWire, After: ResetMissed}}, c.Leave("operator"), "there are no records yet")
	require.True(t, c.Talk())
	require.False(t, c.Talk())
	require.Equal(t, []Action{{Do: DrainLink, Cause: "operator"}}, c.Talked())
	c.LegEndsUnsaid(7)
	todo := c.LinkDrained(Drained{Cause: "operator", Sent: 7, Freed: 2, Consumed: 4})
	require.Equal(t, []Act{Relay, Queue, Queue, Queue, Flush}, acts(todo))
	require.Equal(t, rec(negotiate.RecordHave, 4, Window), todo[2].Record)
	require.Equal(t, rec(negotiate.RecordEnd, 7, 0), todo[3].Record)
	require.Equal(t, ByRelay, c.By())
	require.Empty(t, c.Leave("operator"))
	require.Empty(t, c.LinkDrained(Drained{Cause: "operator"}))
	require.Empty(t, c.LinkFails(negotiate.ReasonDeviceFailed, true))
	require.Empty(t, c.Record(rec(negotiate.RecordDemote, 0, 0), 0), "it crossed the own")
	require.Zero(t, c.Room(), "until HAVE says from where on")
	require.Empty(t, c.Record(rec(negotiate.RecordHave, 3, Window), 0))
	require.True(t, c.Tail())
	require.EqualValues(t, 3, c.Send(4))
	require.True(t, c.Left())
	require.Equal(t, []Act{LinkUnused}, acts(c.Record(rec(negotiate.RecordDemoteDone, 0, 0), 0)))
}
