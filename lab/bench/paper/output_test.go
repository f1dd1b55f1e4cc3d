package paper

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/bench/comparison"
)

var nan = math.NaN()

var update = flag.Bool("update", false, "rewrite the golden files of testdata")

// example has what reports can have: works either way, rounds that failed, one
// round only, a variant that was not there.
func example() *Report {
	return &Report{Report: comparison.Report{
		Machine: comparison.Machine{
			CPU: "Example CPU @ 2.0 GHz", CPUs: 2, Kernel: "6.18.5", Arch: "amd64", GoVersion: "go1.26.3",
			CongestionControl: "cubic", Load1: 0.25, Time: time.Date(2026, 12, 1, 10, 30, 0, 0, time.UTC),
		},
		Commands: []string{"smcgw-lab bench --rounds 3"}, Rounds: 3,
		Series: []comparison.Series{
			{Work: "bulk, 1 stream", Variant: comparison.TCP, Unit: "MB/s", Values: []float64{4000, 4200, 4100}},
			{Work: "bulk, 1 stream", Variant: "chain1", Unit: "MB/s", Values: []float64{2000, 2300, 2050}},
			{Work: "bulk, 1 stream", Variant: "shm", Unit: "MB/s", Values: []float64{4800, 5460, 4510}},
			{Work: "bulk, 1 stream", Variant: "soft9000", Unit: "MB/s", Values: []float64{4100, 4100, 4000}},
			{Work: "bulk, 1 stream", Variant: "hw", Unit: "MB/s", Note: "not available in this version"},
			{Work: "ping-pong 64 B, p50", Variant: comparison.TCP, Unit: "µs", Better: comparison.Less, Values: []float64{21.5, 22, nan}},
			{Work: "ping-pong 64 B, p50", Variant: "shm", Unit: "µs", Better: comparison.Less, Values: []float64{33, 35.2, 30}},
			{Work: "ping-pong 64 B, p50", Variant: "soft9000", Unit: "µs", Better: comparison.Less, Values: []float64{nan, nan, nan}, Note: "fallback: carrier_unreachable"},
			{Work: "once", Variant: comparison.TCP, Unit: "s/GB", Better: comparison.Less, Values: []float64{0.5}},
			{Work: "once", Variant: "shm", Unit: "s/GB", Better: comparison.Less, Values: []float64{0.4}},
		},
		Notes: []string{"one machine, two namespaces"},
	}, Profiles: []Profile{
		{Work: "bulk, 1 stream", Variant: comparison.TCP, Value: 32, Unit: "Gbit/s", Samples: 1000, Parts: []Part{
			{Item: "TCP", Share: 0.5, By: map[string]float64{"client": 0.3, "server": 0.2}, Functions: []string{"tcp_ack 12.0 %"}},
			{Item: IdleItem, Share: 0.3, By: map[string]float64{"kernel": 0.3}, Functions: []string{"halt 30.0 %"}},
			{Item: "copies", Share: 0.2, By: map[string]float64{"client": 0.2}, Functions: []string{"copy 20.0 %"}},
		}},
		{Work: "bulk, 1 stream", Variant: "shm", Value: 40, Unit: "Gbit/s", Samples: 900, Parts: many()},
	}}
}

// many has more items than a table.
func many() (list []Part) {
	for i := range 12 {
		list = append(list, Part{Item: "item " + string(rune('a'+i)), Share: 1. / 12})
	}
	return list
}

// hostile has names that try to leave their place.
func hostile() *Report {
	name := "a|b`c`*d*_e_[f](g)<h>&\"'\\\x1b[31m\x00\nnext\u2028line ]]></text><script>"
	return &Report{Report: comparison.Report{
		Machine: comparison.Machine{CPU: name, Kernel: name}, Commands: []string{name}, Notes: []string{name, ""},
		Series: []comparison.Series{
			{Work: name, Variant: comparison.TCP, Unit: name, Values: []float64{1}, Note: name},
			{Work: name, Variant: name, Unit: name, Values: []float64{-1, 0}, Note: name},
			{Work: name, Variant: "\xff\xfe", Unit: name},
			{Work: "", Variant: "", Values: []float64{0, nan}},
		},
	}, Profiles: []Profile{{Work: name, Variant: name, Unit: name, Value: -1, Parts: []Part{{Item: name, Share: 1, Functions: []string{name}}}}}}
}

var writers = map[string]func(*Report, io.Writer) error{
	"txt": (*Report).Text, "json": (*Report).JSON, "md": (*Report).Markdown, "svg": (*Report).SVG,
}

func TestGolden(t *testing.T) {
	for name, r := range map[string]*Report{"example": example(), "hostile": hostile(), "empty": {}} {
		for kind, write := range writers {
			t.Run(name+"-"+kind, func(t *testing.T) {
				var b bytes.Buffer
				require.NoError(t, write(r, &b))
				golden := filepath.Join("testdata", name+"."+kind)
				if *update {
					require.NoError(t, os.MkdirAll("testdata", 0o755))
					require.NoError(t, os.WriteFile(golden, b.Bytes(), 0o600))
				}
				want, err := os.ReadFile(golden)
				require.NoError(t, err)
				require.Equal(t, string(want), b.String())
			})
		}
	}
}

// TestSVGIsXML: also where names are hostile, elements are those we wrote.
func TestSVGIsXML(t *testing.T) {
	for name, r := range map[string]*Report{"example": example(), "hostile": hostile(), "empty": {}} {
		var b bytes.Buffer
		require.NoError(t, r.SVG(&b))
		dec := xml.NewDecoder(&b)
		for {
			tok, err := dec.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err, name)
			if e, ok := tok.(xml.StartElement); ok {
				require.Contains(t, []string{"svg", "style", "rect", "path", "text"}, e.Name.Local, name)
			}
		}
	}
}

// TestTextIsPlain: nothing of a name reaches the terminal as a command.
func TestTextIsPlain(t *testing.T) {
	for _, write := range []func(*Report, io.Writer) error{(*Report).Text, (*Report).Markdown} {
		var b bytes.Buffer
		require.NoError(t, write(hostile(), &b))
		require.NotContains(t, b.String(), "\x1b")
		require.NotContains(t, b.String(), "\x00")
		for line := range strings.Lines(b.String()) {
			require.False(t, strings.HasPrefix(line, "next"), "a name ends its line")
		}
	}
	var b bytes.Buffer
	require.NoError(t, hostile().Markdown(&b))
	require.NoError(t, hostile().ProfileMarkdown(&b, hostile().Profiles[0].Work))
	require.NotContains(t, b.String(), "\x1b")
	require.NotContains(t, strings.ReplaceAll(b.String(), "    ", ""), " <script>")
}

// full refuses to be written to.
type full struct{}

var errFull = errors.New("disk full")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestWriteErrorsAreReported(t *testing.T) {
	for kind, write := range writers {
		require.ErrorIs(t, write(example(), full{}), errFull, kind)
	}
	require.ErrorIs(t, example().ProfileMarkdown(full{}, "bulk, 1 stream"), errFull)
}
