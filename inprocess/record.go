package inprocess

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// What is the type of a record.
type What uint32

const (
	Hello   What = 1 + iota // library: files [slab]; ID = run, A = version, B = entries of the slab
	Welcome                 // broker: files [desk, writable; news, readable]
	Ask                     // library: files [socket]; Tag; A = bytes read, B = bytes written so far
	// broker: files [own memory, writable; the peer's, readable; the peer's desk, readable]; Tag, ID, Side; A = number
	// of the peer's process. A = 0: the peer is on another host, and files are [own memory, writable; mirror, readable;
	// bell, writable].
	Grant
	Deny   // broker: Tag, Why; answers Hello (Tag 0) or Ask, or revokes a Grant
	Closed // library: Tag, ID, Why: an asking or promoted end was closed, or is native for good
	Count  // both: ID = run, Why = reason; for A and B of the answer see the protocol
	Socket // library: files [socket]; Tag, ID of a Grant between hosts whose memory it has
)

var whats = [...]string{Hello: "hello", Welcome: "welcome", Ask: "ask", Grant: "grant", Deny: "deny", Closed: "closed", Count: "count", Socket: "socket"}

// String returns the name in the documentation.
func (w What) String() string {
	if w >= Hello && int(w) < len(whats) {
		return whats[w]
	}
	return fmt.Sprintf("what %d", uint32(w))
}

// RecordSize is the size of a record. Each record is one packet.
const RecordSize = 64

// Record is a message between library and broker (struct smci_record). [What] says which fields each type uses.
type Record struct {
	What What
	Tag  uint32 // of the entry of the slab, see [Index]; 0 only in an answer to Hello
	Side uint32 // 0 or 1
	Why  Why
	ID   uint64
	A, B uint64
}

// Append appends the encoded record to b. Reserved words are 0.
func (r Record) Append(b []byte) []byte {
	e := binary.NativeEndian
	b = e.AppendUint32(b, uint32(r.What))
	b = e.AppendUint32(b, r.Tag)
	b = e.AppendUint32(b, r.Side)
	b = e.AppendUint32(b, uint32(r.Why))
	b = e.AppendUint64(b, r.ID)
	b = e.AppendUint64(b, r.A)
	b = e.AppendUint64(b, r.B)
	return append(b, make([]byte, 24)...)
}

// RecordError reports a field of a record with an impossible value.
type RecordError struct {
	Field string // "size", "what", "side" or "why"
	Value uint64
}

// Error returns the field and its value.
func (e *RecordError) Error() string { return fmt.Sprintf("record: %s %d", e.Field, e.Value) }

// ParseRecord decodes a packet, which must have the size of a record. It ignores reserved words. Its error is a
// *RecordError.
func ParseRecord(b []byte) (Record, error) {
	if len(b) != RecordSize {
		return Record{}, &RecordError{"size", uint64(len(b))}
	}
	e := binary.NativeEndian
	r := Record{
		What: What(e.Uint32(b)), Tag: e.Uint32(b[4:]), Side: e.Uint32(b[8:]), Why: Why(e.Uint32(b[12:])),
		ID: e.Uint64(b[16:]), A: e.Uint64(b[24:]), B: e.Uint64(b[32:]),
	}
	switch {
	case r.What < Hello || r.What > Socket:
		return Record{}, &RecordError{"what", uint64(r.What)}
	case r.Side > 1:
		return Record{}, &RecordError{"side", uint64(r.Side)}
	case r.Why >= whyEnd:
		return Record{}, &RecordError{"why", uint64(r.Why)}
	}
	return r, nil
}

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
