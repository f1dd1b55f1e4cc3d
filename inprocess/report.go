package inprocess

import (
	"encoding/binary"
	"fmt"
)

// State of an end, as its own library says it.
type State uint32

const (
	StateFree     State = iota // no connection has the entry
	StateNative                // the kernel's; has not asked
	StateAsked                 // waits for the broker
	StateMapped                // has the memory, waits for the peer
	StatePromoted              // bytes go by the ring
	StateNever                 // native for good
)

var states = [...]string{"free", "native", "asked", "mapped", "promoted", "never"}

// String is the name that users see.
func (s State) String() string {
	if int(s) < len(states) {
		return states[s]
	}
	return fmt.Sprintf("state %d", uint32(s))
}

// MarshalText is [State.String].
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Report is what a library says about one end in its slab (struct smci_report): its own words, of which nothing
// but what users see depends.
type Report struct {
	State              State
	Why                Why
	ID                 uint64
	RxRing, TxRing     uint64 // bytes
	RxKernel, TxKernel uint64 // bytes of data while promoted
	TokensRx, TokensTx uint64
	Spills, Returns    uint32
}

// ReportError is a report that is short, or whose state or reason cannot be.
type ReportError struct {
	Field string // "size", "state" or "why"
	Value uint64
}

// Error names field and value.
func (e *ReportError) Error() string { return fmt.Sprintf("report: %s %d", e.Field, e.Value) }

// ParseReport reads the first ReportSize bytes of an entry. The error is a *ReportError.
func ParseReport(b []byte) (Report, error) {
	if len(b) < ReportSize {
		return Report{}, &ReportError{"size", uint64(len(b))}
	}
	e := binary.NativeEndian
	r := Report{
		State: State(e.Uint32(b[ReportState:])), Why: Why(e.Uint32(b[ReportWhy:])), ID: e.Uint64(b[ReportID:]),
		RxRing: e.Uint64(b[ReportRxRing:]), TxRing: e.Uint64(b[ReportTxRing:]),
		RxKernel: e.Uint64(b[ReportRxKernel:]), TxKernel: e.Uint64(b[ReportTxKernel:]),
		TokensRx: e.Uint64(b[ReportTokensRx:]), TokensTx: e.Uint64(b[ReportTokensTx:]),
		Spills: e.Uint32(b[ReportSpills:]), Returns: e.Uint32(b[ReportReturns:]),
	}
	switch {
	case int(r.State) >= len(states):
		return Report{}, &ReportError{"state", uint64(r.State)}
	case r.Why >= whyEnd:
		return Report{}, &ReportError{"why", uint64(r.Why)}
	}
	return r, nil
}
