package inprocess

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// State is the state of an end as its own library reports it.
type State uint32

const (
	StateFree     State = iota // the entry is not in use
	StateNative                // native; has not asked
	StateAsked                 // waits for the broker
	StateMapped                // has the memory, waits for the peer
	StatePromoted              // bytes go through the ring
	StateNever                 // native for good
)

var states = [...]string{"free", "native", "asked", "mapped", "promoted", "never"}

// String returns the name that users see.
func (s State) String() string {
	if int(s) < len(states) {
		return states[s]
	}
	return fmt.Sprintf("state %d", uint32(s))
}

// MarshalText returns [State.String].
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Report is what a library reports about one end in its slab (struct smci_report). These are the process's own claims:
// they are for users to see, and nothing else may depend on them.
type Report struct {
	State              State
	Why                Why
	ID                 uint64
	RxRing, TxRing     uint64 // bytes
	RxKernel, TxKernel uint64 // bytes of data sent through the kernel while promoted
	TokensRx, TokensTx uint64
	Spills, Returns    uint32
	Cookie             uint64         // of the socket
	Local, Remote      netip.AddrPort // invalid until the end asks
	Side               uint16         // 0: it has connected; 1: it has accepted
}

// Mapped reports whether the end has its memory: it is promoted, or may become so.
func (r *Report) Mapped() bool { return r.State == StateMapped || r.State == StatePromoted }

// ReportError reports a report that is too short, or a field with an impossible value.
type ReportError struct {
	Field string // "size", "state", "why", "side" or "family"
	Value uint64
}

// Error returns the field and its value.
func (e *ReportError) Error() string { return fmt.Sprintf("report: %s %d", e.Field, e.Value) }

// ParseReport decodes the first ReportSize bytes of an entry. Its error is a *ReportError.
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
		Side: e.Uint16(b[ReportSide:]),
	}
	switch {
	case int(r.State) >= len(states):
		return Report{}, &ReportError{"state", uint64(r.State)}
	case r.Why >= whyEnd:
		return Report{}, &ReportError{"why", uint64(r.Why)}
	case r.Side > 1:
		return Report{}, &ReportError{"side", uint64(r.Side)}
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
