package inprocess

import (
	"encoding/binary"
	"fmt"
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
