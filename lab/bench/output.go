package bench

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// errOutput says that a program printed something else than it does.
var errOutput = errors.New("not the output of the program")

// iperf is the output of iperf3 -J.
type iperf struct {
	Error string `json:"error"`
	End   struct {
		Sent       iperfSum `json:"sum_sent"`
		Received   iperfSum `json:"sum_received"`
		Congestion string   `json:"sender_tcp_congestion"`
	} `json:"end"`
}

type iperfSum struct {
	Bytes   float64 `json:"bytes"`
	Seconds float64 `json:"seconds"`
}

// parseIPerf returns what iperf3 -J says arrived, in how many seconds, and the
// congestion control of the socket that sent.
func parseIPerf(out string) (bytes, seconds float64, congestion string, err error) {
	var r iperf
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		return 0, 0, "", fmt.Errorf("iperf3: %w: %w", errOutput, err)
	}
	if r.Error != "" {
		return 0, 0, "", fmt.Errorf("iperf3: %s", r.Error)
	}
	if r.End.Received.Bytes <= 0 || r.End.Received.Seconds <= 0 {
		return 0, 0, "", fmt.Errorf("iperf3: %w: nothing received", errOutput)
	}
	return r.End.Received.Bytes, r.End.Received.Seconds, r.End.Congestion, nil
}

// iperfInterrupted is what iperf3 says when a signal has ended it.
const iperfInterrupted = "interrupt - the client has terminated"

// parseInterrupted returns the rate in Gbit/s of an iperf3 -J that a signal has
// ended. It knows only what it has sent.
func parseInterrupted(out string) (float64, error) {
	var r iperf
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		return 0, fmt.Errorf("iperf3: %w: %w", errOutput, err)
	}
	if r.Error != iperfInterrupted {
		return 0, fmt.Errorf("iperf3: not interrupted: %s", r.Error)
	}
	// Until it hears of the server it counts both as received.
	sum := r.End.Sent
	if sum.Bytes == 0 {
		sum = r.End.Received
	}
	if sum.Bytes <= 0 || sum.Seconds <= 0 {
		return 0, fmt.Errorf("iperf3: %w: nothing sent", errOutput)
	}
	return sum.Bytes * 8 / 1e9 / sum.Seconds, nil
}

var (
	percentile = regexp.MustCompile(`percentile (50|99)\.000 = +([0-9.]+)\n`)
	roundTrips = regexp.MustCompile(`\[Total Run\].* ReceivedMessages=([0-9]+)\n`)
)

// pings are what sockperf says of round trips: the median and the 99th percentile
// in microseconds, and how many there were, those included that do not count.
type pings struct{ p50, p99, trips float64 }

func parseSockperf(out string) (p pings, err error) {
	for _, m := range percentile.FindAllStringSubmatch(out, -1) {
		v, err := number(m[2])
		if err != nil {
			return p, fmt.Errorf("sockperf: %w", err)
		}
		if m[1] == "50" {
			p.p50 = v
		} else {
			p.p99 = v
		}
	}
	if m := roundTrips.FindStringSubmatch(out); m != nil {
		if p.trips, err = number(m[1]); err != nil {
			return p, fmt.Errorf("sockperf: %w", err)
		}
	}
	if p.p50 == 0 || p.p99 == 0 || p.trips == 0 {
		return p, fmt.Errorf("sockperf: %w: no percentiles, or no count", errOutput)
	}
	return p, nil
}

// number accepts what can be a measurement.
func number(text string) (float64, error) {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || v <= 0 || math.IsInf(v, 0) || math.IsNaN(v) {
		return 0, fmt.Errorf("%w: %q is not a positive number", errOutput, text)
	}
	return v, nil
}

// parseRedis returns the requests per second of the first test in the CSV.
func parseRedis(out string) (float64, error) {
	rows, err := csv.NewReader(strings.NewReader(out)).ReadAll()
	if err != nil {
		return 0, fmt.Errorf("redis-benchmark: %w: %w", errOutput, err)
	}
	for _, row := range rows {
		if len(row) < 2 || row[0] == "test" {
			continue
		}
		v, err := number(row[1])
		if err != nil {
			return 0, fmt.Errorf("redis-benchmark: %w", err)
		}
		return v, nil
	}
	return 0, fmt.Errorf("redis-benchmark: %w: no rate", errOutput)
}

var (
	wrkRate   = regexp.MustCompile(`(?m)^Requests/sec: +([0-9.]+)\n`)
	wrkCount  = regexp.MustCompile(`(?m)^ *([0-9]+) requests in `)
	wrkErrors = regexp.MustCompile(`(?m)^ *(Socket errors: .*|Non-2xx or 3xx responses: .*)$`)
)

// parseWrk returns the requests per second, and how many there were; errors of single requests
// fail it.
func parseWrk(out string) (rate, count float64, err error) {
	if m := wrkErrors.FindStringSubmatch(out); m != nil {
		return 0, 0, fmt.Errorf("wrk: %s", m[1])
	}
	for re, to := range map[*regexp.Regexp]*float64{wrkRate: &rate, wrkCount: &count} {
		m := re.FindStringSubmatch(out)
		if m == nil {
			return 0, 0, fmt.Errorf("wrk: %w: no rate, or no count", errOutput)
		}
		if *to, err = number(m[1]); err != nil {
			return 0, 0, fmt.Errorf("wrk: %w", err)
		}
	}
	return rate, count, nil
}

// address splits an address for programs that take host and port apart.
func (w way) address(service uint16) (ip, port string) {
	at := w.to(service)
	return at.Addr().String(), strconv.Itoa(int(at.Port()))
}
