package apps

import (
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// web is an ordinary net/http server: GET /N returns N bytes, and GET /N?seed=S those of a stream.
func web(args []string, p *printer) error {
	if len(args) != 1 {
		return errUsage
	}
	ln, err := net.Listen("tcp", args[0])
	if err != nil {
		p.print(Event{Event: "result", Mode: "web", Failed: 1}.withError(err))
		return err
	}
	p.print(Event{Event: "listening", Mode: "web", Local: addrText(ln.Addr())})
	return NewWeb().Serve(ln)
}

// NewWeb returns the server of the web app.
func NewWeb() *http.Server {
	return &http.Server{Handler: http.HandlerFunc(serveBytes), ReadHeaderTimeout: time.Minute}
}

func serveBytes(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.ParseInt(r.URL.Path[1:], 10, 64)
	if err != nil || n < 0 {
		http.Error(w, "not a number of bytes", http.StatusBadRequest)
		return
	}
	seed, err := strconv.ParseUint(r.URL.Query().Get("seed"), 10, 64)
	patterned := err == nil
	w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
	chunk := make([]byte, 256<<10)
	for off := int64(0); off < n; {
		m := min(n-off, int64(len(chunk)))
		if patterned {
			stream{seed}.fill(chunk[:m], off)
		}
		if _, err := w.Write(chunk[:m]); err != nil {
			return
		}
		off += m
	}
}

// fetch is an ordinary net/http client: it gets a URL a number of times over one connection and reports the median
// time. With a seed it checks every byte.
func fetch(args []string, p *printer) error {
	var to string
	var count int
	var size int64
	var seed uint64
	var limit time.Duration
	fs := flag.NewFlagSet("fetch", flag.ContinueOnError)
	fs.StringVar(&to, "to", "", "address and port of the web server")
	fs.IntVar(&count, "count", 1, "requests, one after the other")
	fs.Int64Var(&size, "size", 100, "bytes of an answer")
	fs.Uint64Var(&seed, "seed", 0, "seed of the answers, which are checked; 0: they are not")
	fs.DurationVar(&limit, "limit", time.Minute, "give up on a request after it")
	if err := fs.Parse(args); err != nil || count < 1 {
		return errUsage
	}
	e := fetchAll(&http.Client{Timeout: limit, Transport: &http.Transport{}}, to, size, seed, count)
	p.print(e)
	if e.Failed > 0 {
		return errFailed
	}
	return nil
}

func fetchAll(c *http.Client, to string, size int64, seed uint64, count int) Event {
	e := Event{Event: "result", Mode: "fetch", Remote: to}
	url := "http://" + to + "/" + strconv.FormatInt(size, 10)
	if seed != 0 {
		url += "?seed=" + strconv.FormatUint(seed, 10)
	}
	err := getAll(&e, c, url, seed, count)
	if err != nil {
		e.Failed = 1
	}
	return e.withError(err)
}

func getAll(e *Event, c *http.Client, url string, seed uint64, count int) error {
	times := make([]int64, 0, count)
	defer c.CloseIdleConnections()
	for range count {
		start := time.Now()
		n, err := get(c, url, seed)
		e.Received += n
		if err != nil {
			return err
		}
		times = append(times, time.Since(start).Microseconds())
		e.OK++
	}
	slices.Sort(times)
	e.Micros, e.MedianMicros = times[len(times)-1], times[len(times)/2]
	return nil
}

func get(c *http.Client, url string, seed uint64) (int64, error) {
	resp, err := c.Get(url)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if seed != 0 {
		var n int64
		err := receive(resp.Body, stream{seed}, resp.ContentLength, &n)
		return n, err
	}
	n, err := io.CopyBuffer(io.Discard, struct{ io.Reader }{resp.Body}, make([]byte, 256<<10))
	if err == nil && n != resp.ContentLength {
		err = fmt.Errorf("%d of %d bytes: %w", n, resp.ContentLength, io.ErrUnexpectedEOF)
	}
	return n, err
}
