package bench

import (
	"context"
	"errors"
	"math"
	"strconv"
	"time"

	"github.com/smcgw/smcgw/lab/testnet"
)

// overlap says when a work and the stream beside it begin, so that the stream
// flows from before the work counts until after it has ended.
type overlap struct {
	work, stream time.Duration
	lead         time.Duration // of the work, until it counts
	numbers      int           // of the work that are of interest, the first ones
}

var (
	besideSockperf = overlap{stream: time.Second, lead: sockperfLead, numbers: 2}
	besideOwn      = overlap{work: 300 * time.Millisecond, numbers: 3}
)

// besideSlack is how much longer than it should a work may take beside a stream.
const besideSlack = 500 * time.Millisecond

// streamTime is how long the stream beside a work of that length is, in whole
// seconds, which is what iperf3 knows.
func (o overlap) streamTime(d time.Duration) string {
	end := o.work + o.lead + max(d, time.Second) + besideSlack
	return strconv.Itoa(int(math.Ceil((end - o.stream).Seconds())))
}

var errStreamEnded = errors.New("the stream ended before the work beside it")

// besideBulk does a work while one stream of iperf3 goes the same way: numbers of
// the work, and the rate of the stream.
func besideBulk(do run, o overlap) run {
	return func(ctx context.Context, w way, d time.Duration) ([]float64, error) {
		ctx, cancel := context.WithCancel(ctx)
		type result struct {
			rate float64
			err  error
		}
		stream := make(chan result, 1)
		go func() {
			var r result
			if r.err = testnet.Sleep(ctx, o.stream); r.err == nil {
				var bytes, seconds float64
				bytes, seconds, r.err = w.iperf(ctx, o.streamTime(d), 1)
				r.rate = bytes * 8 / 1e9 / seconds
			}
			stream <- r
		}()
		err := testnet.Sleep(ctx, o.work)
		var values []float64
		if err == nil {
			values, err = do(ctx, w, d)
		}
		if err != nil {
			cancel()
			<-stream
			return nil, err
		}
		defer cancel()
		select {
		case r := <-stream:
			return nil, errors.Join(errStreamEnded, r.err)
		default:
		}
		r := <-stream
		return append(values[:o.numbers:o.numbers], r.rate), r.err
	}
}
