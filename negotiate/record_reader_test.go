package negotiate

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

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
