package inprocess

import (
	"encoding/binary"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/internal/golden"
	"github.com/smcgw/smcgw/lab/leak"
)

func anyRecord(t *rapid.T) Record {
	return Record{
		What: What(rapid.Uint32Range(uint32(Hello), uint32(Count)).Draw(t, "what")), Tag: rapid.Uint32().Draw(t, "tag"),
		Side: rapid.Uint32Range(0, 1).Draw(t, "side"), Why: Why(rapid.Uint32Range(0, uint32(WhyCount-1)).Draw(t, "why")),
		ID: rapid.Uint64().Draw(t, "id"), A: rapid.Uint64().Draw(t, "a"), B: rapid.Uint64().Draw(t, "b"),
	}
}

func TestRecordRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := anyRecord(t)
		b := r.Append([]byte("x"))[1:]
		if len(b) != RecordSize {
			t.Fatal(len(b))
		}
		got, err := ParseRecord(b)
		if err != nil || got != r {
			t.Fatal(got, r, err)
		}
	})
}

func TestTruncatedRecords(t *testing.T) {
	b := Record{What: Ask, Tag: 1}.Append(nil)
	for n := range len(b) + 2 {
		_, err := ParseRecord(append(b, 0)[:n])
		if n == len(b) {
			require.NoError(t, err)
			continue
		}
		require.Equal(t, &RecordError{"size", uint64(n)}, err)
	}
}

func TestImpossibleRecords(t *testing.T) {
	for field, r := range map[string]Record{"what": {}, "side": {What: Grant, Side: 2}, "why": {What: Deny, Why: whyEnd}} {
		_, err := ParseRecord(r.Append(nil))
		var wrong *RecordError
		require.ErrorAs(t, err, &wrong)
		require.Equal(t, field, wrong.Field)
		require.Contains(t, err.Error(), field)
	}
	_, err := ParseRecord(Record{What: Socket + 1}.Append(nil))
	require.Error(t, err)
}

func FuzzParseRecord(f *testing.F) {
	f.Add(Record{What: Hello, A: Version, B: 1}.Append(nil))
	f.Add(Record{What: Deny, Tag: 1, Why: WhyDescriptor}.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		golden.RoundTrip(t, b, ParseRecord, func(r Record) []byte { return r.Append(nil) })
	})
}

func FuzzParseReport(f *testing.F) {
	f.Add(make([]byte, ReportSize))
	b := make([]byte, ReportSize)
	b[ReportState], b[ReportFamily] = byte(StatePromoted), 2
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := ParseReport(b); err == nil && (r.State.String() == "" || r.Why.Meaning() == "") {
			t.Fatal(r)
		}
	})
}

func TestTruncatedReports(t *testing.T) {
	b := make([]byte, ReportSize)
	for n := range b {
		_, err := ParseReport(b[:n])
		require.Equal(t, &ReportError{"size", uint64(n)}, err)
	}
	r, err := ParseReport(b)
	require.NoError(t, err)
	require.Equal(t, Report{}, r)
	for at, field := range map[int]string{ReportState: "state", ReportWhy: "why", ReportSide: "side", ReportFamily: "family"} {
		b[at] = 99
		_, err = ParseReport(b)
		require.Equal(t, &ReportError{field, 99}, err)
		b[at] = 0
	}
}

// TestNames: every reason, state and record has a name of its own.
func TestNames(t *testing.T) {
	seen := map[string]bool{WhyNone.String(): true}
	for _, w := range Whys() {
		require.False(t, seen[w.String()], w)
		seen[w.String()] = true
		require.NotEmpty(t, w.Meaning())
	}
	require.Len(t, seen, WhyCount)
	require.Equal(t, "why 99", Why(99).String())
	require.Empty(t, Why(99).Meaning())
	require.Equal(t, "state 99", State(99).String())
	require.Equal(t, "what 0", What(0).String())
	require.Equal(t, "count", Count.String())
}

// TestVectors compares the records with the bytes of the protocol, which are those of a little-endian host.
func TestVectors(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("a big-endian host: records are in host byte order")
	}
	const tag, id = 3<<IndexBits | 7, 0x0102030405060708
	for name, r := range map[string]Record{
		"inprocess-hello":  {What: Hello, ID: 123456789, A: Version, B: 65536},
		"inprocess-ask":    {What: Ask, Tag: tag, A: 4096, B: 65536},
		"inprocess-grant":  {What: Grant, Tag: tag, Side: 1, ID: id, A: 42},
		"inprocess-deny":   {What: Deny, Tag: tag, Why: WhyNoPeer},
		"inprocess-closed": {What: Closed, Tag: tag, ID: id, A: 4096, B: 65536},
	} {
		t.Run(name, func(t *testing.T) {
			want := golden.Vector(t, name)
			require.Equal(t, want, r.Append(nil))
			back, err := ParseRecord(want)
			require.NoError(t, err)
			require.Equal(t, r, back)
		})
	}
}

// TestMain fails the run if a test left a goroutine or a descriptor behind.
func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }
