package negotiate

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/internal/golden"
)

type recordCase struct {
	name  string
	rec   Record
	bytes []byte
}

func recordCases(t testing.TB) []recordCase {
	hello := []byte("hello")
	return []recordCase{
		{"record-data", Record{Type: RecordData, Offset: 1<<32 + 2, Payload: hello}, AppendData(nil, 1<<32+2, hello)},
		{"record-end", Record{Type: RecordEnd, Offset: 1<<32 + 7}, AppendEnd(nil, 1<<32+7)},
		{"record-have", Record{Type: RecordHave, Offset: 1<<32 + 2, Window: 262144}, AppendHave(nil, 1<<32+2, 262144)},
		{"record-demote", Record{Type: RecordDemote}, AppendDemote(nil)},
		{"record-demote-done", Record{Type: RecordDemoteDone}, AppendDemoteDone(nil)},
		{"record-abort", Record{Type: RecordAbort, Reason: ReasonLostBytes}, AppendAbort(nil, ReasonLostBytes)},
		{"record-keepalive", Record{Type: RecordKeepalive}, AppendKeepalive(nil)},
	}
}

func parseRecordOnly(b []byte) error {
	_, _, err := parseRecord(b)
	return err
}

func TestRecordGolden(t *testing.T) {
	for _, c := range recordCases(t) {
		b := vector(t, c.name)
		require.Equal(t, b, c.bytes, c.name)
		require.Equal(t, len(b), recordLen(c.rec.Type, len(c.rec.Payload)), c.name)
		got, n, err := parseRecord(b)
		require.NoError(t, err, c.name)
		require.Equal(t, len(b), n)
		require.Equal(t, c.rec, got)
	}
}

func TestRecordTruncated(t *testing.T) {
	for _, c := range recordCases(t) {
		requireTruncationFails(t, c.bytes, parseRecordOnly)
	}
}

func TestRecordMalformed(t *testing.T) {
	for name, text := range map[string]string{
		"type 0":            `00 00 00 00  00 00 00 00`,
		"type 8":            `08 00 00 00  00 00 00 00`,
		"flags":             `07 01 00 00  00 00 00 00`,
		"zero 1":            `07 00 01 00  00 00 00 00`,
		"zero 2":            `07 00 00 01  00 00 00 00`,
		"keepalive length":  `07 00 00 00  00 00 00 01`,
		"have length":       `03 00 00 00  00 00 00 08`,
		"end length":        `02 00 00 00  80 00 00 08`,
		"data without body": `01 00 00 00  00 00 00 00`,
		"data empty":        `01 00 00 00  00 00 00 08`,
		"data too long":     `01 00 00 00  00 04 00 09`,
		"data huge":         `01 00 00 00  ff ff ff ff`,
		"data offset":       `01 00 00 00  00 00 00 09  7f ff ff ff ff ff ff ff  00`,
		"end offset":        `02 00 00 00  00 00 00 08  80 00 00 00 00 00 00 00`,
		"have overflow":     `03 00 00 00  00 00 00 10  00 00 00 00 00 00 00 02  7f ff ff ff ff ff ff fe`,
		"abort reason zero": `06 00 00 00  00 00 00 04  00 00 00 00`,
		"abort zero":        `06 00 00 00  00 00 00 04  3c 00 01 00`,
	} {
		require.ErrorIs(t, parseRecordOnly(golden.Unhex(t, text)), ErrMalformed, name)
		var r RecordReader
		_, _, err := r.Next(golden.Unhex(t, text))
		require.ErrorIs(t, err, ErrMalformed, name)
		_, _, again := r.Next(nil)
		require.Equal(t, err, again, "errors are final")
	}
}

func TestRecordBounds(t *testing.T) {
	b := AppendData(nil, math.MaxInt64-maxDataLen, make([]byte, maxDataLen))
	rec, n, err := parseRecord(b)
	require.NoError(t, err)
	require.Equal(t, len(b), n)
	require.Len(t, rec.Payload, maxDataLen)
	require.NoError(t, parseRecordOnly(AppendEnd(nil, math.MaxInt64)))
	require.NoError(t, parseRecordOnly(AppendHave(nil, 0, math.MaxInt64)))
}

func FuzzParseRecord(f *testing.F) {
	for _, c := range recordCases(f) {
		f.Add(c.bytes)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		rec, n, err := parseRecord(b)
		var r RecordReader
		piece, m, rerr := r.Next(b)
		if err != nil {
			require.True(t, rec.Type == 0 && n == 0)
			return
		}
		require.NoError(t, rerr)
		require.Equal(t, rec, piece)
		require.Equal(t, n, m)
		require.Equal(t, int(binary.BigEndian.Uint32(b[4:]))+recordHeaderLen, n)
	})
}

// recordLen returns the length of a whole record of this type; payload counts for DATA only.
func recordLen(t RecordType, payload int) int {
	if t == RecordData {
		return DataHeaderLen + payload
	}
	return recordHeaderLen + bodyLen(t)
}

// parseRecord reads one whole record at the start of b and returns the number of bytes it took.
func parseRecord(b []byte) (Record, int, error) {
	if len(b) < recordHeaderLen {
		return Record{}, 0, ErrShort
	}
	t, n, err := parseRecordHeader(b)
	if err != nil {
		return Record{}, 0, err
	}
	fixed := recordHeaderLen + bodyLen(t)
	if len(b) < recordHeaderLen+n {
		return Record{}, 0, ErrShort
	}
	rec, err := parseBody(t, b[recordHeaderLen:fixed], n)
	if err != nil {
		return Record{}, 0, err
	}
	if t == RecordData {
		rec.Payload = b[fixed : recordHeaderLen+n]
	}
	return rec, recordHeaderLen + n, nil
}

// collect feeds b in the given pieces and returns the records, with the pieces of a DATA record that follow each other
// joined (records of the tests never continue at each other's offsets).
func collect(t require.TestingT, r *RecordReader, pieces [][]byte) []Record {
	var out []Record
	for _, b := range pieces {
		for {
			rec, n, err := r.Next(b)
			require.NoError(t, err)
			b = b[n:]
			if rec.Type == 0 {
				break
			}
			out = join(out, rec)
		}
		require.Empty(t, b, "all consumed")
	}
	return out
}

func join(out []Record, rec Record) []Record {
	rec.Payload = bytes.Clone(rec.Payload)
	if len(out) > 0 && rec.Type == RecordData {
		last := &out[len(out)-1]
		if last.Type == RecordData && last.Offset+uint64(len(last.Payload)) == rec.Offset {
			last.Payload = append(last.Payload, rec.Payload...)
			return out
		}
	}
	return append(out, rec)
}

func drawRecord(t *rapid.T, i int) (Record, []byte) {
	rec := Record{Type: RecordType(rapid.IntRange(1, 7).Draw(t, "type"))}
	switch rec.Type {
	case RecordData:
		rec.Offset = uint64(i) << 32
		rec.Payload = rapid.SliceOfN(rapid.Byte(), 1, 300).Draw(t, "payload")
		return rec, AppendData(nil, rec.Offset, rec.Payload)
	case RecordEnd:
		rec.Offset = rapid.Uint64Max(1<<63-1).Draw(t, "final")
		return rec, AppendEnd(nil, rec.Offset)
	case RecordHave:
		rec.Offset = rapid.Uint64Max(1<<62).Draw(t, "consumed")
		rec.Window = rapid.Uint64Max(1<<62-1).Draw(t, "window")
		return rec, AppendHave(nil, rec.Offset, rec.Window)
	case RecordAbort:
		rec.Reason = Reason(rapid.IntRange(1, 255).Draw(t, "reason"))
		return rec, AppendAbort(nil, rec.Reason)
	case RecordDemote:
		return rec, AppendDemote(nil)
	case RecordDemoteDone:
		return rec, AppendDemoteDone(nil)
	case RecordKeepalive:
	}
	return rec, AppendKeepalive(nil)
}

func TestRecordReaderModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var want []Record
		var stream []byte
		for i := range rapid.IntRange(0, 20).Draw(t, "records") {
			rec, b := drawRecord(t, i)
			want, stream = append(want, rec), append(stream, b...)
		}
		var pieces [][]byte
		for len(stream) > 0 {
			n := rapid.IntRange(1, min(len(stream), 64)).Draw(t, "piece")
			pieces, stream = append(pieces, stream[:n]), stream[n:]
		}
		var r RecordReader
		require.Equal(t, want, collect(t, &r, pieces))
		require.True(t, r.n == 0 && r.left == 0 && r.err == nil)
	})
}

func TestRecordReaderIdle(t *testing.T) {
	b := vector(t, "record-data")
	for i := 1; i < len(b); i++ {
		var r RecordReader
		collect(t, &r, [][]byte{b[:i]})
		require.False(t, r.n == 0 && r.left == 0, "after %d bytes", i)
	}
}

func TestRecordReaderAllocs(t *testing.T) {
	var stream []byte
	for _, c := range recordCases(t) {
		stream = append(stream, c.bytes...)
	}
	var r RecordReader
	buf := make([]byte, 0, 64)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		for b := stream; ; {
			rec, n, err := r.Next(b)
			if err != nil || rec.Type == 0 {
				break
			}
			b = b[n:]
		}
		buf = AppendHave(AppendDataHeader(buf[:0], 7, 9), 1, 2)
		_, _, _ = parseRecord(stream)
	}))
}

func FuzzRecordReader(f *testing.F) {
	var all []byte
	for _, c := range recordCases(f) {
		all = append(all, c.bytes...)
	}
	f.Add(all, uint8(3))
	f.Fuzz(func(t *testing.T, b []byte, step uint8) {
		var whole, pieces RecordReader
		want, werr := drain(&whole, b, len(b))
		got, gerr := drain(&pieces, b, int(step)+1)
		require.Equal(t, werr, gerr)
		require.Equal(t, want, got)
	})
}

// drain feeds b step bytes at a time, until an error.
func drain(r *RecordReader, b []byte, step int) ([]Record, error) {
	var out []Record
	for len(b) > 0 {
		piece := b[:min(step, len(b))]
		b = b[len(piece):]
		for {
			rec, n, err := r.Next(piece)
			if err != nil {
				return out, err
			}
			if piece = piece[n:]; rec.Type == 0 {
				break
			}
			out = join(out, rec)
		}
	}
	return out, nil
}
