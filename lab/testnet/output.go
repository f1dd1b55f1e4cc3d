package testnet

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// ErrOutput says that the output of a program has an unexpected form.
var ErrOutput = errors.New("not the output of the program")

// iperf3 is the output of iperf3 -J.
type iperf3 struct {
	Error string `json:"error"`
	End   struct {
		Sent       iperf3Sum `json:"sum_sent"`
		Received   iperf3Sum `json:"sum_received"`
		Congestion string    `json:"sender_tcp_congestion"`
	} `json:"end"`
}

type iperf3Sum struct {
	Bytes   int64   `json:"bytes"`
	Seconds float64 `json:"seconds"`
	Rate    float64 `json:"bits_per_second"`
	Packets int64   `json:"packets"`
	Lost    int64   `json:"lost_packets"`
}

// IPerf3 is the result of a run of iperf3.
type IPerf3 struct {
	Seconds                  float64
	SentBytes, ReceivedBytes int64
	BitsPerSecond            float64 // at the receiver
	Congestion               string  // congestion control of the sending socket, for streams
	// For datagrams only (-u): how many were sent, and how many of them were not received. The receiver counts up to
	// the highest number it has seen.
	Packets, Lost int64
}

// ParseIPerf3 parses the output of iperf3 -J.
func ParseIPerf3(out string) (IPerf3, error) {
	var r iperf3
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		return IPerf3{}, fmt.Errorf("iperf3: %w: %w: %s", ErrOutput, err, out)
	}
	if r.Error != "" {
		return IPerf3{}, fmt.Errorf("iperf3: %s", r.Error)
	}
	got := r.End.Received
	return IPerf3{
		Seconds: got.Seconds, SentBytes: r.End.Sent.Bytes, ReceivedBytes: got.Bytes, BitsPerSecond: got.Rate, Congestion: r.End.Congestion,
		Packets: got.Packets, Lost: got.Lost,
	}, nil
}

// ParseIPerf3Rate is ParseIPerf3 for a run that must have a rate. For a short run iperf3 may report that nothing was
// received.
func ParseIPerf3Rate(out string) (IPerf3, error) {
	r, err := ParseIPerf3(out)
	if err == nil && (r.ReceivedBytes <= 0 || r.Seconds <= 0) {
		return IPerf3{}, fmt.Errorf("iperf3: %w: nothing received", ErrOutput)
	}
	return r, err
}

// iperf3Interrupted is the error of an iperf3 that a signal has ended.
const iperf3Interrupted = "interrupt - the client has terminated"

// ParseInterruptedIPerf3 returns the rate in Gbit/s of an iperf3 -J that a signal has ended. Such an iperf3 only knows
// what it has sent.
func ParseInterruptedIPerf3(out string) (float64, error) {
	var r iperf3
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		return 0, fmt.Errorf("iperf3: %w: %w", ErrOutput, err)
	}
	if r.Error != iperf3Interrupted {
		return 0, fmt.Errorf("iperf3: not interrupted: %s", r.Error)
	}
	// Until it hears from the server, it counts what it has sent as received instead.
	sum := r.End.Sent
	if sum.Bytes == 0 {
		sum = r.End.Received
	}
	if sum.Bytes <= 0 || sum.Seconds <= 0 {
		return 0, fmt.Errorf("iperf3: %w: nothing sent", ErrOutput)
	}
	return float64(sum.Bytes) * 8 / 1e9 / sum.Seconds, nil
}

// number parses a text that can be a measurement.
func number(text string) (float64, error) {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || v <= 0 || math.IsInf(v, 0) || math.IsNaN(v) {
		return 0, fmt.Errorf("%w: %q is not a positive number", ErrOutput, text)
	}
	return v, nil
}

// ParseRedis parses the CSV of redis-benchmark and returns requests per second by the name of the test, such as "GET".
// A test that took no time has an infinite rate.
func ParseRedis(out string) (map[string]float64, error) {
	rows, err := csv.NewReader(strings.NewReader(out)).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("redis-benchmark: %w: %w: %s", ErrOutput, err, out)
	}
	rates := map[string]float64{}
	for _, row := range rows {
		if len(row) < 2 || row[0] == "test" {
			continue
		}
		if rates[row[0]], err = strconv.ParseFloat(row[1], 64); err != nil || !(rates[row[0]] > 0) {
			return nil, fmt.Errorf("redis-benchmark: %w: %q is not a rate", ErrOutput, row[1])
		}
	}
	if len(rates) == 0 {
		return nil, fmt.Errorf("redis-benchmark: %w: no rate: %s", ErrOutput, out)
	}
	return rates, nil
}

var (
	wrkRate   = regexp.MustCompile(`(?m)^Requests/sec: +([0-9.]+)\n`)
	wrkCount  = regexp.MustCompile(`(?m)^ *([0-9]+) requests in `)
	wrkErrors = regexp.MustCompile(`(?m)^ *(Socket errors: .*|Non-2xx or 3xx responses: .*)$`)
)

// ParseWrk returns the requests per second, and their number. It fails if single requests failed.
func ParseWrk(out string) (rate, count float64, err error) {
	if m := wrkErrors.FindStringSubmatch(out); m != nil {
		return 0, 0, fmt.Errorf("wrk: %s", m[1])
	}
	for re, to := range map[*regexp.Regexp]*float64{wrkRate: &rate, wrkCount: &count} {
		m := re.FindStringSubmatch(out)
		if m == nil {
			return 0, 0, fmt.Errorf("wrk: %w: no rate, or no count", ErrOutput)
		}
		if *to, err = number(m[1]); err != nil {
			return 0, 0, fmt.Errorf("wrk: %w", err)
		}
	}
	return rate, count, nil
}

// Sockperf is the result of a run of sockperf ping-pong. The counts include messages whose times do not count.
type Sockperf struct {
	Sent, Received, Dropped, Duplicated, OutOfOrder int64
	// Half of the time from a message to its answer, or all of it with --full-rtt.
	Median, P99 time.Duration
}

var sockperfLines = []*regexp.Regexp{
	regexp.MustCompile(`\[Total Run\].* SentMessages=(\d+); ReceivedMessages=(\d+)\n`),
	regexp.MustCompile(`# dropped messages = (\d+); # duplicated messages = (\d+); # out-of-order messages = (\d+)\n`),
	regexp.MustCompile(`percentile 99\.000 = +([\d.]+)\n(?s:.*)percentile 50\.000 = +([\d.]+)\n`),
}

// ParseSockperf parses the output of sockperf ping-pong.
func ParseSockperf(out string) (s Sockperf, err error) {
	var texts []string
	for _, line := range sockperfLines {
		m := line.FindStringSubmatch(out)
		if m == nil {
			return s, fmt.Errorf("sockperf: %w: no %v: %s", ErrOutput, line, out)
		}
		texts = append(texts, m[1:]...)
	}
	for i, into := range []*int64{&s.Sent, &s.Received, &s.Dropped, &s.Duplicated, &s.OutOfOrder} {
		if *into, err = strconv.ParseInt(texts[i], 10, 64); err != nil {
			return s, fmt.Errorf("sockperf: %w: %w", ErrOutput, err)
		}
	}
	for i, into := range []*time.Duration{&s.P99, &s.Median} {
		µs, err := number(texts[5+i])
		if err != nil {
			return s, fmt.Errorf("sockperf: %w", err)
		}
		*into = time.Duration(math.Round(µs * float64(time.Microsecond)))
	}
	if s.Received == 0 {
		return s, fmt.Errorf("sockperf: %w: no answers", ErrOutput)
	}
	return s, nil
}
