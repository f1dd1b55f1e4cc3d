package bench

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// parsers of the output of programs, and an output each.
var parsers = []struct {
	file  string
	parse func(string) ([]float64, error)
	want  []float64
}{
	{"iperf3.json", func(s string) ([]float64, error) {
		b, t, _, err := parseIPerf(s)
		return []float64{b, t}, err
	}, []float64{1702100992, 1.00018}},
	{"iperf3-interrupted.json", one(parseInterrupted), []float64{21.2019718}},
	{"sockperf.txt", func(s string) ([]float64, error) {
		p, err := parseSockperf(s)
		return []float64{p.p50, p.p99, p.trips}, err
	}, []float64{5.011, 5.999, 162965}},
	{"redis.csv", one(parseRedis), []float64{80000}},
	{"wrk.txt", two(parseWrk), []float64{120323.03, 132319}},
	{"wrk-close.txt", two(parseWrk), []float64{26737.04, 29420}},
	{"stat.txt", func(s string) ([]float64, error) {
		t, err := parseCPU(s)
		return []float64{float64(t.busy), float64(t.all)}, err
	}, []float64{1 + 2 + 3 + 6 + 7, 1 + 2 + 3 + 4 + 5 + 6 + 7 + 8}},
}

func one(parse func(string) (float64, error)) func(string) ([]float64, error) {
	return func(s string) ([]float64, error) {
		v, err := parse(s)
		return []float64{v}, err
	}
}

func two(parse func(string) (a, b float64, err error)) func(string) ([]float64, error) {
	return func(s string) ([]float64, error) {
		a, b, err := parse(s)
		return []float64{a, b}, err
	}
}

func read(t testing.TB, file string) string {
	b, err := os.ReadFile(filepath.Join("testdata", file))
	require.NoError(t, err)
	return string(b)
}

func TestParse(t *testing.T) {
	for _, p := range parsers {
		got, err := p.parse(read(t, p.file))
		require.NoError(t, err, p.file)
		require.InDeltaSlice(t, p.want, got, 1e-6, p.file)
	}
}

// What a program that was killed has printed is no result, or the same one.
func TestParseTruncated(t *testing.T) {
	for _, p := range parsers {
		text := read(t, p.file)
		for i := range text {
			if got, err := p.parse(text[:i]); err == nil {
				require.InDeltaSlice(t, p.want, got, 1e-6, "%s up to %d", p.file, i)
			}
		}
	}
}

func TestCongestionOfTheSocket(t *testing.T) {
	_, _, cc, err := parseIPerf(read(t, "iperf3.json"))
	require.NoError(t, err)
	require.Equal(t, "bbr", cc)

	var u used
	require.Empty(t, u.notes())
	for _, v := range []string{"tcp", "chain2", "tcp"} {
		u.add(v, cc)
	}
	u.add("shm", "reno")
	u.say("something")
	u.say("something")
	require.Equal(t, []string{"something", "congestion control of the sockets of iperf3: bbr of chain2, tcp; reno of shm"}, u.notes())
}

func TestParseErrors(t *testing.T) {
	_, _, _, err := parseIPerf(read(t, "iperf3-refused.json"))
	require.ErrorContains(t, err, "Connection refused")
	_, _, _, err = parseIPerf(`{"end":{"sum_received":{"bytes":0,"seconds":1}}}`)
	require.ErrorIs(t, err, errOutput)
	_, err = parseInterrupted(read(t, "iperf3.json"))
	require.ErrorContains(t, err, "not interrupted")
	_, err = parseInterrupted(read(t, "iperf3-refused.json"))
	require.ErrorContains(t, err, "Connection refused")
	_, err = parseInterrupted(`{"error":"interrupt - the client has terminated","end":{}}`)
	require.ErrorIs(t, err, errOutput)
	_, _, err = parseWrk(read(t, "wrk-refused.txt"))
	require.ErrorIs(t, err, errOutput)
	_, _, err = parseWrk("  Socket errors: connect 0, read 3, write 0, timeout 0\n  9 requests in 1s\nRequests/sec: 5.00\n")
	require.ErrorContains(t, err, "read 3")
	_, err = parseRedis("\"test\",\"rps\"\n\"GET\",\"-1\"\n")
	require.ErrorIs(t, err, errOutput)
	_, err = parseRedis("\"test\",\"rps\"\n")
	require.ErrorIs(t, err, errOutput)
	_, err = parseSockperf("sockperf: ---> percentile 99.000 =    0.000\nsockperf: ---> percentile 50.000 =    5.0\n")
	require.ErrorIs(t, err, errOutput)
	_, err = parseSockperf("sockperf: ---> percentile 99.000 =    9.000\nsockperf: ---> percentile 50.000 =    5.0\n")
	require.ErrorIs(t, err, errOutput, "how many?")
	_, err = parseCPU("cpu0 1 2 3 4 5 6 7 8 9 10\n")
	require.ErrorIs(t, err, errNoCPU)
}

// Whatever a program prints, what is read is a positive number or an error.
func FuzzParse(f *testing.F) {
	for _, p := range parsers {
		f.Add(read(f, p.file))
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, p := range parsers[:len(parsers)-1] {
			if got, err := p.parse(text); err == nil {
				for _, v := range got {
					require.Positive(t, v, p.file)
				}
			}
		}
		if got, err := parseCPU(text); err == nil {
			require.LessOrEqual(t, got.busy, got.all)
		}
	})
}

func TestParseProcess(t *testing.T) {
	rollup := "00400000-7fff Pss 1 rollup\nRss:   10 kB\nPss:     1234 kB\nPss_Dirty: 3 kB\nPss_Anon: 0 kB\n"
	pss, err := parseKiB(rollup, "Pss:")
	require.NoError(t, err)
	require.InDelta(t, 1234, pss, 1e-9)
	pss, err = parseKiB(rollup, "Pss_Anon:")
	require.NoError(t, err)
	require.Zero(t, pss)
	for _, bad := range []string{"Rss: 10 kB\n", "Pss: -1 kB\n", "Pss: many kB\n", "Pss: 1"} {
		_, err = parseKiB(bad, "Pss:")
		require.ErrorIs(t, err, errOutput, bad)
	}
}
