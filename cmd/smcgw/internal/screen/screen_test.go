package screen

import (
	"bytes"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func rows() [][]string {
	return [][]string{
		{"ID", "ADDRESS", "SIDE", "STATE", "WHY"},
		{"1", "10.0.0.2:6379", "client", "carrying", "because it is carried and has a reason of several words that is long"},
		{"22", "[2001:db8:1234:5678:9abc:def0:1234:5678]:65535", "", "native", "short"},
	}
}

func list(t *testing.T, terminal int, colour bool, l Listing) string {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, New(&out, terminal, colour).List(l))
	return out.String()
}

func TestList(t *testing.T) {
	require.Equal(t, ""+
		"ID  ADDRESS                                         STATE     WHY\n"+
		"1   10.0.0.2:6379                                   carrying  because it is carried and has a reason\n"+
		"                                                              of several words that is long\n"+
		"22  [2001:db8:1234:5678:9abc:def0:1234:5678]:65535  native    short\n",
		list(t, 200, false, Listing{Rows: rows(), Wide: []string{"SIDE"}, Prose: true}))
	require.Contains(t, list(t, 0, true, Listing{Rows: rows(), Prose: true}), "a reason of several words that is long\n")
	wide := list(t, 80, false, Listing{Rows: rows(), Wide: []string{"SIDE"}, Prose: true, All: true})
	require.Len(t, strings.Split(wide, "\n"), 4)
	require.Contains(t, wide, "5678]:65535  -       native    short\n")
	require.Equal(t, "1   10.0.0.2:6379  x\n22  10.0.0.3:80    -\n",
		list(t, 0, false, Listing{Rows: [][]string{{"NUMBER", "B", "C"}, {"1", "10.0.0.2:6379", "x"}, {"22", "10.0.0.3:80", ""}}, NoHeader: true}))
	require.Empty(t, list(t, 0, false, Listing{}))
	require.Equal(t, "\x1b[1mA\x1b[0m  \x1b[1mSTATE\x1b[0m\nx  \x1b[33mnative\x1b[0m\n",
		list(t, 80, true, Listing{Rows: [][]string{{"A", "STATE"}, {"x", "native"}}}))
	require.Equal(t, "A  B\nx  ?[2Jy\n", list(t, 0, false, Listing{Rows: [][]string{{"A", "B"}, {"x", "\x1b[2Jy"}}}))
}

// Spare columns go one by one before anything is shortened, and never from a pipe.
func TestSpareColumns(t *testing.T) {
	l := Listing{Rows: rows(), Spare: []string{"SIDE", "ID", "none", "STATE"}}
	header := func(terminal int) string {
		first, _, _ := strings.Cut(list(t, terminal, false, l), "\n")
		return strings.Join(strings.Fields(first), " ")
	}
	l.Rows = [][]string{{"ID", "ADDRESS", "SIDE", "STATE"}, {"1", strings.Repeat("x", 60), "client", "carrying"}}
	for terminal, want := range map[int]string{0: "ID ADDRESS SIDE STATE", 82: "ID ADDRESS SIDE STATE", 76: "ID ADDRESS STATE", 70: "ADDRESS STATE"} {
		require.Equal(t, want, header(terminal), terminal)
	}
	l.All = true
	require.Equal(t, "ID ADDRESS SIDE STATE", header(70))
}

// Lines of a terminal fit, whatever the cells are, and every row has all fields.
func TestListFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		terminal := rapid.IntRange(70, 200).Draw(t, "columns")
		n := rapid.IntRange(1, 9).Draw(t, "fields")
		cell := rapid.StringMatching(`[a-z:.]{0,60}`)
		table := rapid.SliceOfN(rapid.SliceOfN(cell, n, n), 1, 5).Draw(t, "table")
		var out bytes.Buffer
		require.NoError(t, New(&out, terminal, false).List(Listing{Rows: table}))
		for line := range strings.Lines(out.String()) {
			if n <= 5 { // else cells would have to be too short
				require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimRight(line, " \n")), min(terminal, Columns))
			}
			require.Len(t, strings.Fields(line), n)
		}
	})
}

func TestParagraphs(t *testing.T) {
	s := New(nil, 42, false)
	require.Equal(t, "degraded   one two three four five six\n           seven\n", s.Field("degraded", "one two three  four five six seven"))
	long := strings.Repeat("word ", 30) + "end"
	require.Equal(t, "note       "+long+"\n", New(nil, 0, false).Field("note", long))
	require.Equal(t, "a-name-that-is-long one two\n", New(nil, 0, false).Field("a-name-that-is-long", "one two"))
	require.Equal(t, strings.Repeat("word ", 7)+"word\nword\n", s.Paragraph(strings.Repeat("word ", 9)))
}

// Paragraphs of a help text fit a narrow terminal; lists and wider terminals keep their lines.
func TestProse(t *testing.T) {
	text := strings.Repeat("word ", 10) + "\n" + "more words here\n\n  list   " + strings.Repeat("x ", 30) + "\n\nshort\nlines"
	require.Equal(t, text, New(nil, 0, false).Prose(text))
	require.Equal(t, text, New(nil, 90, false).Prose(text))
	narrow := New(nil, 42, false).Prose(text)
	require.Equal(t, strings.Repeat("word ", 7)+"word\nword word more words here\n\n  list   "+strings.Repeat("x ", 30)+"\n\nshort\nlines", narrow)
}

// A text without room beside its row stands below it.
func TestProseBelow(t *testing.T) {
	l := Listing{Prose: true, Rows: [][]string{{"ADDRESS", "WHY"}, {strings.Repeat("a", 40), strings.Repeat("word ", 10) + "end"}, {"b", "short"}}}
	require.Equal(t, ""+
		"ADDRESS                                   WHY\n"+
		strings.Repeat("a", 40)+"  \n    word word word word word word word word word word end\n"+
		"b                                         short\n", list(t, 60, false, l))
}

func TestProgress(t *testing.T) {
	var out bytes.Buffer
	p := New(&out, 80, false).Progress()
	p.Show(1, 4, "first")
	require.Equal(t, "\r"+strings.Repeat("█", 7)+strings.Repeat("░", 23)+"  25%  first\x1b[K", out.String())
	out.Reset()
	p.Show(2, 4, "too soon")
	require.Empty(t, out.String())
	p.drawn = time.Time{}
	p.Show(4, 4, "all")
	require.Contains(t, out.String(), "100%  all")
	out.Reset()
	p.Clear()
	p.Clear()
	require.Equal(t, "\r\x1b[K", out.String())

	quiet := New(&out, 0, false).Progress()
	out.Reset()
	quiet.Show(1, 2, "x")
	quiet.Clear()
	require.Empty(t, out.String())
}

func TestMoment(t *testing.T) {
	now := time.Date(2026, 11, 22, 15, 0, 0, 0, time.Local)
	require.Equal(t, "14:59:01", Moment(now.Add(-59*time.Second), now))
	require.Equal(t, "2026-11-20", Moment(now.Add(-48*time.Hour), now))
	require.Empty(t, Moment(time.Time{}, now))
}
