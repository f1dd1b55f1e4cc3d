package testnet

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
		r, err := ParseIPerf3(s)
		return []float64{float64(r.ReceivedBytes), r.Seconds, r.BitsPerSecond}, err
	}, []float64{1702100992, 1.00018, 13614357351.676697}},
	{"iperf3-interrupted.json", one(ParseInterruptedIPerf3), []float64{21.2019718}},
	{"sockperf.txt", func(s string) ([]float64, error) {
		p, err := ParseSockperf(s)
		return []float64{float64(p.Median), float64(p.P99), float64(p.Sent), float64(p.Received)}, err
	}, []float64{5011, 5999, 162966, 162965}},
	{"redis.csv", one(func(s string) (float64, error) {
		rates, err := ParseRedis(s)
		return rates["GET"], err
	}), []float64{80000}},
	{"wrk.txt", two(ParseWrk), []float64{120323.03, 132319}},
	{"wrk-close.txt", two(ParseWrk), []float64{26737.04, 29420}},
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

func read(t *testing.T, file string) string {
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

func TestParseErrors(t *testing.T) {
	_, err := ParseIPerf3(read(t, "iperf3-refused.json"))
	require.ErrorContains(t, err, "Connection refused")
	_, err = ParseIPerf3Rate(`{"end":{"sum_received":{"bytes":0,"seconds":1}}}`)
	require.ErrorIs(t, err, ErrOutput)
	_, err = ParseInterruptedIPerf3(read(t, "iperf3.json"))
	require.ErrorContains(t, err, "not interrupted")
	_, err = ParseInterruptedIPerf3(read(t, "iperf3-refused.json"))
	require.ErrorContains(t, err, "Connection refused")
	_, err = ParseInterruptedIPerf3(`{"error":"interrupt - the client has terminated","end":{}}`)
	require.ErrorIs(t, err, ErrOutput)
	_, _, err = ParseWrk(read(t, "wrk-refused.txt"))
	require.ErrorIs(t, err, ErrOutput)
	_, _, err = ParseWrk("  Socket errors: connect 0, read 3, write 0, timeout 0\n  9 requests in 1s\nRequests/sec: 5.00\n")
	require.ErrorContains(t, err, "read 3")
	_, _, err = ParseWrk("  9 requests in 1s\nRequests/sec: 0.00\n")
	require.ErrorIs(t, err, ErrOutput)
	for _, rate := range []string{"-1", "0", "NaN", "1x"} {
		_, err = ParseRedis("\"test\",\"rps\"\n\"GET\",\"" + rate + "\"\n")
		require.ErrorIs(t, err, ErrOutput, rate)
	}
	_, err = ParseRedis("\"test\",\"rps\"\n")
	require.ErrorIs(t, err, ErrOutput)
	_, err = ParseSockperf("sockperf: ---> percentile 99.000 =    0.000\nsockperf: ---> percentile 50.000 =    5.0\n")
	require.ErrorIs(t, err, ErrOutput)
	_, err = ParseSockperf("sockperf: ---> percentile 99.000 =    9.000\nsockperf: ---> percentile 50.000 =    5.0\n")
	require.ErrorIs(t, err, ErrOutput, "how many?")
}
