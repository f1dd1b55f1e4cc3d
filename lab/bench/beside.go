package bench

import (
	"context"
	"errors"
	"os"
	"strconv"
	"time"

	"github.com/smcgw/smcgw/lab/testnet"
)

// ahead is how long the stream flows before a work beside it.
const ahead = 300 * time.Millisecond

var errStreamEnded = errors.New("the stream ended before the work beside it")

// besideBulk does a work while one stream of iperf3 goes the same way, from before
// the work until after it: so many numbers of the work, and the rate of the stream.
func besideBulk(do run, numbers int) run {
	return func(ctx context.Context, w way, d time.Duration) ([]float64, error) {
		streaming, enough := context.WithCancel(ctx)
		defer enough()
		var rate float64
		var errStream error
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			rate, errStream = w.endless(streaming)
		}()
		err := testnet.Sleep(ctx, ahead)
		var values []float64
		if err == nil {
			values, err = do(ctx, w, d)
		}
		select {
		case <-ended:
			return nil, errors.Join(err, errStreamEnded, errStream)
		default:
		}
		enough()
		<-ended
		if err := errors.Join(err, errStream); err != nil {
			return nil, err
		}
		return append(values[:numbers:numbers], rate), nil
	}
}

// endless is a stream of iperf3 until the context ends, and its rate in Gbit/s.
func (w way) endless(ctx context.Context) (float64, error) {
	ip, port := w.address(iperfPort)
	cmd := w.client.Command(ctx, "iperf3", "-J", "-c", ip, "-p", port, "-t", strconv.Itoa(int(time.Hour.Seconds())))
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	out, runErr := cmd.Output() // what went wrong is in the JSON
	rate, err := parseInterrupted(string(out))
	if err != nil {
		return 0, errors.Join(err, runErr)
	}
	return rate, nil
}
