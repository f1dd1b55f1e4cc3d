package negotiate

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
