package negotiate

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Records (docs/PROTOCOL.md "Records") are all that a wire leg contains after CONFIRM.
const (
	// recordHeaderLen is the size of a record header: type(1), flags(1) = 0, zero(2), length of the body(4).
	recordHeaderLen = 8
	// DataHeaderLen is the length of what precedes the payload of a DATA record: header and offset.
	DataHeaderLen = recordHeaderLen + 8
	// maxDataLen bounds the payload of one DATA record.
	maxDataLen = 256 << 10

	offsetLen = 8
	haveLen   = 16
	abortLen  = 4
)

// RecordType is the type of a record.
type RecordType uint8

// The records.
const (
	RecordData       RecordType = 1 // bytes of the stream
	RecordEnd        RecordType = 2 // the direction ends, in order
	RecordHave       RecordType = 3 // what the application has taken, and room for DATA
	RecordDemote     RecordType = 4 // stop using the queue pair
	RecordDemoteDone RecordType = 5 // the sender has stopped
	RecordAbort      RecordType = 6 // both directions end now
	RecordKeepalive  RecordType = 7 // empty; only the peer's TCP must acknowledge it
)

// Record is a record, or a piece of a DATA record.
type Record struct {
	Type RecordType
	// Offset is an absolute byte count of the direction: for DATA that of Payload[0], for END the final one, for HAVE
	// how much the application has consumed.
	Offset uint64
	// Window (HAVE) is how many bytes beyond Offset the peer may send in DATA records.
	Window uint64
	// Reason is that of an ABORT.
	Reason Reason
	// Payload (DATA) aliases the bytes that were parsed and is valid until they are reused.
	Payload []byte
}

// AppendDataHeader appends the header and offset of a DATA record. The caller sends the n bytes of payload (1 to 256
// KiB) after it, in a separate write if it likes.
func AppendDataHeader(b []byte, offset uint64, n int) []byte {
	b = appendRecordHeader(b, RecordData, offsetLen+n)
	return binary.BigEndian.AppendUint64(b, offset)
}

// AppendData appends a DATA record of 1 byte to 256 KiB.
func AppendData(b []byte, offset uint64, payload []byte) []byte {
	return append(AppendDataHeader(b, offset, len(payload)), payload...)
}

// AppendEnd appends END: the direction ends after final bytes.
func AppendEnd(b []byte, final uint64) []byte {
	b = appendRecordHeader(b, RecordEnd, offsetLen)
	return binary.BigEndian.AppendUint64(b, final)
}

// AppendHave appends HAVE: the application has consumed the given number of bytes, and DATA may carry window more.
func AppendHave(b []byte, consumed, window uint64) []byte {
	b = appendRecordHeader(b, RecordHave, haveLen)
	b = binary.BigEndian.AppendUint64(b, consumed)
	return binary.BigEndian.AppendUint64(b, window)
}

// AppendDemote appends DEMOTE: the peer must stop using the queue pair.
func AppendDemote(b []byte) []byte { return appendRecordHeader(b, RecordDemote, 0) }

// AppendDemoteDone appends DEMOTE-DONE: the sender no longer writes to memory of the peer.
func AppendDemoteDone(b []byte) []byte { return appendRecordHeader(b, RecordDemoteDone, 0) }

// AppendAbort appends ABORT: both directions end now, bytes may be lost, as with RST.
func AppendAbort(b []byte, r Reason) []byte {
	b = appendRecordHeader(b, RecordAbort, abortLen)
	return append(b, uint8(r), 0, 0, 0)
}

// AppendKeepalive appends KEEPALIVE.
func AppendKeepalive(b []byte) []byte { return appendRecordHeader(b, RecordKeepalive, 0) }

// bodyLen returns the length of the body without the payload.
func bodyLen(t RecordType) int {
	switch t {
	case RecordData, RecordEnd:
		return offsetLen
	case RecordHave:
		return haveLen
	case RecordAbort:
		return abortLen
	case RecordDemote, RecordDemoteDone, RecordKeepalive:
	}
	return 0
}

func appendRecordHeader(b []byte, t RecordType, n int) []byte {
	b = append(b, uint8(t), 0, 0, 0)
	return binary.BigEndian.AppendUint32(b, uint32(n))
}

// parseRecordHeader returns the type and body length from the first recordHeaderLen bytes of b.
func parseRecordHeader(b []byte) (RecordType, int, error) {
	t, n := RecordType(b[0]), binary.BigEndian.Uint32(b[4:])
	if b[1] != 0 || b[2] != 0 || b[3] != 0 {
		return 0, 0, errRecordFlags
	}
	switch t {
	case RecordData:
		if n <= offsetLen || n > offsetLen+maxDataLen {
			return 0, 0, errRecordLen
		}
	case RecordEnd, RecordHave, RecordAbort, RecordDemote, RecordDemoteDone, RecordKeepalive:
		if int64(n) != int64(bodyLen(t)) {
			return 0, 0, errRecordLen
		}
	default:
		return 0, 0, errRecordType
	}
	return t, int(n), nil
}

// parseBody parses the fixed part of a body of n bytes.
func parseBody(t RecordType, b []byte, n int) (Record, error) {
	rec := Record{Type: t}
	switch t {
	case RecordData, RecordEnd:
		rec.Offset = binary.BigEndian.Uint64(b)
		if rec.Offset > math.MaxInt64-uint64(n-offsetLen) {
			return Record{}, errRecordOffset
		}
	case RecordHave:
		rec.Offset, rec.Window = binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])
		if rec.Offset > math.MaxInt64 || rec.Window > math.MaxInt64-rec.Offset {
			return Record{}, errRecordOffset
		}
	case RecordAbort:
		rec.Reason = Reason(b[0])
		if rec.Reason == ReasonNone || b[1] != 0 || b[2] != 0 || b[3] != 0 {
			return Record{}, errRecordReason
		}
	case RecordDemote, RecordDemoteDone, RecordKeepalive:
	}
	return rec, nil
}

// The errors are variables because parsing a record must not allocate.
var (
	errRecordType   = fmt.Errorf("record type: %w", ErrMalformed)
	errRecordFlags  = fmt.Errorf("record flags: %w", ErrMalformed)
	errRecordLen    = fmt.Errorf("record length: %w", ErrMalformed)
	errRecordOffset = fmt.Errorf("record offset: %w", ErrMalformed)
	errRecordReason = fmt.Errorf("record reason: %w", ErrMalformed)
)

// RecordReader splits the byte stream of a wire leg into records. It buffers only headers; the payload of a DATA record
// is returned in the pieces in which it arrives. The zero value is ready to use. It does not allocate.
type RecordReader struct {
	head [recordHeaderLen + haveLen]byte
	n    int // valid bytes in head
	// The DATA record in progress:
	offset uint64 // of the next byte of payload
	left   int    // payload still to come
	err    error
}

// Next consumes bytes from b and returns how many, with a record or a piece of a DATA record. If Record.Type is zero,
// it has consumed all of b and needs more; call it until then. The Payload aliases b. After an error every call returns
// that error.
func (r *RecordReader) Next(b []byte) (Record, int, error) {
	if r.err != nil {
		return Record{}, 0, r.err
	}
	if r.left > 0 {
		rec, n := r.data(b)
		return rec, n, nil
	}
	used := r.fill(b, recordHeaderLen)
	if r.n < recordHeaderLen {
		return Record{}, used, nil
	}
	t, n, err := parseRecordHeader(r.head[:])
	if err != nil {
		return r.fail(err)
	}
	fixed := recordHeaderLen + bodyLen(t)
	used += r.fill(b[used:], fixed)
	if r.n < fixed {
		return Record{}, used, nil
	}
	rec, err := parseBody(t, r.head[recordHeaderLen:fixed], n)
	if err != nil {
		return r.fail(err)
	}
	r.n = 0
	if t != RecordData {
		return rec, used, nil
	}
	r.offset, r.left = rec.Offset, n-offsetLen
	rec, m := r.data(b[used:])
	return rec, used + m, nil
}

// fill copies from b until head holds want bytes.
func (r *RecordReader) fill(b []byte, want int) int {
	if r.n >= want {
		return 0
	}
	n := copy(r.head[r.n:want], b)
	r.n += n
	return n
}

// data returns the next piece of the payload.
func (r *RecordReader) data(b []byte) (Record, int) {
	n := min(len(b), r.left)
	if n == 0 {
		return Record{}, 0
	}
	rec := Record{Type: RecordData, Offset: r.offset, Payload: b[:n]}
	r.offset += uint64(n)
	r.left -= n
	return rec, n
}

func (r *RecordReader) fail(err error) (Record, int, error) {
	r.err = err
	return Record{}, 0, err
}
