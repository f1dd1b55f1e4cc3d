package profile

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// two is as perf script prints it: a name with a space, and one without a stack.
const two = "redis server   4711 \n" +
	"\tffffffff82010ddb tcp_sendmsg ([kernel.kallsyms])\n" +
	"\t          4a1b2c main.(*x[go.shape.struct { F int }]).run (/usr/bin/a (deleted))\n" +
	"\t6629527982d9bbf9 [unknown] ([unknown])\n" +
	"\n" +
	"swapper     0 \n" +
	"\n"

func collect(text string) (list []Sample, err error) {
	for s, e := range Parse(text) {
		if e != nil {
			return list, e
		}
		list = append(list, s)
	}
	return list, nil
}

func TestParse(t *testing.T) {
	list, err := collect(two)
	require.NoError(t, err)
	require.Equal(t, []Sample{
		{Command: "redis server", PID: 4711, Stack: []Frame{
			{"tcp_sendmsg", "[kernel.kallsyms]"}, {"main.(*x[go.shape.struct { F int }]).run", "/usr/bin/a"}, {"[unknown]", "[unknown]"},
		}},
		{Command: "swapper"},
	}, list)
}

func TestParseEndsEarly(t *testing.T) {
	for range Parse(two) {
		return
	}
}

func TestParseRefuses(t *testing.T) {
	for _, text := range []string{
		"\tffff f (o)\n", "name\n", "name pid\n", "a 1\nffff\n", "a 1\n\tzz f (o)\n", "a 1\n\tffff f\n", "a 1\n\tffff f (o\n",
		"a 1\n" + strings.Repeat("\tf f (o)\n", maxStack+1),
	} {
		_, err := collect(text)
		require.ErrorIs(t, err, errScript, "%q", text)
		require.ErrorContains(t, err, "line ", "%q", text)
	}
}

// What perf did not finish writing is an error, or the samples until there; and
// never another process, or a deeper stack.
func TestParseTruncated(t *testing.T) {
	whole, err := collect(two)
	require.NoError(t, err)
	for i := range two {
		list, err := collect(two[:i])
		if err != nil {
			require.ErrorIs(t, err, errScript)
		}
		require.LessOrEqual(t, len(list), len(whole))
		for j, s := range list {
			require.LessOrEqual(t, len(s.Stack), len(whole[j].Stack))
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(two)
	f.Add("")
	b, err := os.ReadFile("testdata/samples.txt")
	require.NoError(f, err)
	f.Add(string(b))
	f.Fuzz(func(t *testing.T, text string) {
		for s, err := range Parse(text) {
			if err != nil {
				return
			}
			if len(s.Stack) > maxStack {
				t.Fatal("a stack of", len(s.Stack))
			}
			for _, role := range Roles {
				Classify(s.Stack, role)
			}
		}
	})
}
