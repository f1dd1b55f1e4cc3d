package flow

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/negotiate"
)

// TestLedgerRefuses: what no honest peer says.
func TestLedgerRefuses(t *testing.T) {
	record := func(k negotiate.RecordType, offset uint64) negotiate.Record {
		r := negotiate.Record{Type: k, Offset: offset}
		if k == negotiate.RecordData {
			r.Payload = []byte{1}
		}
		return r
	}
	demote, done := record(negotiate.RecordDemote, 0), record(negotiate.RecordDemoteDone, 0)
	have := func(n uint64) negotiate.Record { return record(negotiate.RecordHave, n) }
	data := func(n uint64) negotiate.Record { return record(negotiate.RecordData, n) }
	end := func(n uint64) negotiate.Record { return record(negotiate.RecordEnd, n) }
	lost, violation := negotiate.ReasonLostBytes, negotiate.ReasonProtocolError
	for name, c := range map[string]struct {
		says []negotiate.Record
		want negotiate.Reason
	}{
		"have below what was freed":     {[]negotiate.Record{demote, have(9)}, lost},
		"have beyond what was sent":     {[]negotiate.Record{demote, have(31)}, violation},
		"have beyond, still carried":    {[]negotiate.Record{have(31)}, violation},
		"data, still carried":           {[]negotiate.Record{data(5)}, violation},
		"data before have":              {[]negotiate.Record{demote, data(5)}, violation},
		"demote twice":                  {[]negotiate.Record{demote, demote}, violation},
		"demote again, later":           {[]negotiate.Record{demote, have(20), demote}, violation},
		"done, still carried":           {[]negotiate.Record{done}, violation},
		"done before have":              {[]negotiate.Record{demote, done}, violation},
		"done twice":                    {[]negotiate.Record{demote, have(20), done, done}, violation},
		"data that was had":             {[]negotiate.Record{demote, have(20), data(4)}, violation},
		"data after a gap":              {[]negotiate.Record{demote, have(20), data(6)}, violation},
		"end before what was had":       {[]negotiate.Record{end(4)}, violation},
		"another end":                   {[]negotiate.Record{end(7), demote, have(20), end(8)}, violation},
		"data after the end":            {[]negotiate.Record{demote, have(20), end(5), data(5)}, violation},
		"have of what was not sent yet": {[]negotiate.Record{demote, have(20), have(21)}, violation},
		"less than all, afterwards":     {[]negotiate.Record{have(30), demote, have(29)}, violation},
	} {
		t.Run(name, func(t *testing.T) {
			l := Ledger{Peer: PeerCarried, Demoted: true, Read: 30, freed: 10, Tx: TxEnded, Received: 5, Consumed: 5, Reported: 5}
			for _, rec := range c.says[:len(c.says)-1] {
				require.Equal(t, negotiate.ReasonNone, l.record(rec))
			}
			require.Equal(t, c.want, l.record(c.says[len(c.says)-1]))
		})
	}
	l := newLedger()
	require.Equal(t, violation, l.record(demote), "a flow that began on the relay")
	l = newLedger()
	require.Equal(t, violation, l.record(done))
}

// TestHaveAnswersTheEnd: a HAVE with a window is of bytes, even at the offset of the end:
// it may have been sent before END came, and END may still be lost.
func TestHaveAnswersTheEnd(t *testing.T) {
	for _, l := range []Ledger{newLedger(), newCarriedLedger()} {
		l.Send(9)
		l.endTx(9)
		for _, c := range []struct {
			window uint64
			want   TxPhase
		}{{Window, TxEnded}, {0, TxTaken}} {
			require.Equal(t, negotiate.ReasonNone, l.record(negotiate.Record{Type: negotiate.RecordHave, Offset: 9, Window: c.window}))
			require.Equal(t, c.want, l.Tx)
		}
	}
}

// TestWindow: DATA may reach what the last HAVE has said and a window beyond it, whatever the
// application has taken since.
func TestWindow(t *testing.T) {
	l := newLedger()
	data := func(n int) negotiate.Reason {
		return l.record(negotiate.Record{Type: negotiate.RecordData, Offset: l.Received, Payload: make([]byte, n)})
	}
	require.Equal(t, negotiate.ReasonNone, data(Window))
	require.Equal(t, negotiate.ReasonProtocolError, data(1))
	l.Consume(10)
	require.Equal(t, negotiate.ReasonProtocolError, data(1), "it was not told so")
	l.Report()
	require.Equal(t, negotiate.ReasonNone, data(10))
	require.Equal(t, negotiate.ReasonProtocolError, data(1))
}
