package negotiate

// RecordReader cuts the byte stream of a carrying wire leg into records. It buffers headers only; the payload of DATA is
// handed out in the pieces in which it arrives. The zero value is ready. It does not allocate.
type RecordReader struct {
	head [recordHeaderLen + haveLen]byte
	n    int // bytes of head that are filled
	// The DATA record under way:
	offset uint64 // of the next byte of payload
	left   int    // payload still to come
	err    error
}

// Next consumes bytes from b and returns how many, with a record (or a piece of a DATA record) when there is one:
// Record.Type is zero when all of b was consumed and more is needed. Call it until then. A Payload aliases b. An error is
// final.
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

// data returns the next piece of payload.
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
