package inprocess

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
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
	Cookie             uint64         // of the socket
	Local, Remote      netip.AddrPort // invalid before the end asks
}

// Mapped reports whether the end has its memory, and is promoted or may be.
func (r *Report) Mapped() bool { return r.State == StateMapped || r.State == StatePromoted }

// ReportError is a report that is short, or whose state or reason cannot be.
type ReportError struct {
	Field string // "size", "state", "why" or "family"
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
		Spills: e.Uint32(b[ReportSpills:]), Returns: e.Uint32(b[ReportReturns:]), Cookie: e.Uint64(b[ReportCookie:]),
	}
	switch {
	case int(r.State) >= len(states):
		return Report{}, &ReportError{"state", uint64(r.State)}
	case r.Why >= whyEnd:
		return Report{}, &ReportError{"why", uint64(r.Why)}
	}
	local, remote := b[ReportLocal:][:16], b[ReportRemote:][:16]
	switch family := e.Uint16(b[ReportFamily:]); family {
	case unix.AF_UNSPEC:
		return r, nil
	case unix.AF_INET:
		local, remote = local[:4], remote[:4]
	case unix.AF_INET6:
	default:
		return Report{}, &ReportError{"family", uint64(family)}
	}
	r.Local, r.Remote = addrPort(local, e.Uint16(b[ReportLocalAt:])), addrPort(remote, e.Uint16(b[ReportRemoteAt:]))
	return r, nil
}

func addrPort(address []byte, port uint16) netip.AddrPort {
	a, _ := netip.AddrFromSlice(address) // 4 or 16 bytes
	return netip.AddrPortFrom(a, port)
}
