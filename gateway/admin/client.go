package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/report"
)

// ErrDaemonUnreachable is returned when no daemon answers on the admin socket: there is none,
// or it does not respond in time.
var ErrDaemonUnreachable = errors.New("daemon not reachable")

// Absent reports whether an error means that there is no daemon on a socket: the socket does
// not exist, or no process listens on it. A daemon that fails to answer for another reason
// may be alive.
func Absent(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED)
}

// ErrForbidden is returned when the daemon refuses the caller.
var ErrForbidden = fmt.Errorf("refused by the daemon: %w", os.ErrPermission)

// errRefused is returned when a daemon currently refuses a request.
var errRefused = errors.New("refused by the daemon")

// Bounds of the client. An answer is read completely, so a broken daemon could otherwise
// exhaust the memory of a tool. 20,000 connections take 6 MiB.
const (
	clientTimeout  = 10 * time.Second
	clientMaxReply = 256 << 20
)

// Client sends requests to a daemon over its admin socket. It is safe for concurrent use.
type Client struct {
	path string
	http *http.Client
}

// NewClient returns a client for the daemon at the socket path. It does not dial yet.
func NewClient(path string) *Client {
	return &Client{path: path, http: &http.Client{Timeout: clientTimeout, Transport: transportTo(path)}}
}

// transportTo returns a transport to the daemon at the socket path.
func transportTo(path string) *http.Transport {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}
	return &http.Transport{DialContext: dial, MaxIdleConns: 1, DisableCompression: true}
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Status returns what the gateway is doing.
func (c *Client) Status(ctx context.Context) (report.Status, error) {
	return ask[report.Status](ctx, c, http.MethodGet, "/v1/status", statusSchema)
}

// Stats returns the totals since the start.
func (c *Client) Stats(ctx context.Context) (report.Stats, error) {
	return ask[report.Stats](ctx, c, http.MethodGet, "/v1/stats", statsSchema)
}

// Conns lists connections.
func (c *Client) Conns(ctx context.Context, q report.ConnQuery) (ConnList, error) {
	return ask[ConnList](ctx, c, http.MethodGet, "/v1/conns?"+valuesOf(q).Encode(), connsSchema)
}

// Peers lists what is known about peers.
func (c *Client) Peers(ctx context.Context) (PeerList, error) {
	return ask[PeerList](ctx, c, http.MethodGet, "/v1/peers", peersSchema)
}

// Devices lists the RDMA devices.
func (c *Client) Devices(ctx context.Context) (DeviceList, error) {
	return ask[DeviceList](ctx, c, http.MethodGet, "/v1/devices", devicesSchema)
}

// Metrics returns the metrics in Prometheus' text format.
func (c *Client) Metrics(ctx context.Context) ([]byte, error) {
	return c.do(ctx, http.MethodGet, "/metrics", nil)
}

// Version returns which binary the daemon runs.
func (c *Client) Version(ctx context.Context) (report.VersionInfo, error) {
	return ask[report.VersionInfo](ctx, c, http.MethodGet, "/v1/version", versionSchema)
}

// FlushPeers forgets remembered refusals.
func (c *Client) FlushPeers(ctx context.Context) (Result, error) {
	return ask[Result](ctx, c, http.MethodPost, "/v1/peers/flush", ResultSchema)
}

// SetOff sets or clears the kill switch.
func (c *Client) SetOff(ctx context.Context, off bool) (Result, error) {
	path := "/v1/on"
	if off {
		path = "/v1/off"
	}
	return ask[Result](ctx, c, http.MethodPost, path, ResultSchema)
}

// OffNow sets the kill switch and resets carried connections.
func (c *Client) OffNow(ctx context.Context) (Result, error) {
	return ask[Result](ctx, c, http.MethodPost, "/v1/off?now=true", ResultSchema)
}

// ask sends one request and reads a document of the given schema.
func ask[T any](ctx context.Context, c *Client, method, path, schema string) (T, error) {
	return askWith[T](ctx, c, method, path, nil, schema)
}

// askWith is ask with a document in the request; nil: none.
func askWith[T any](ctx context.Context, c *Client, method, path string, about any, schema string) (T, error) {
	var doc T
	var request []byte
	if about != nil {
		var err error
		if request, err = json.Marshal(about); err != nil {
			return doc, fmt.Errorf("make request: %w", err)
		}
	}
	body, err := c.do(ctx, method, path, request)
	if err != nil {
		return doc, err
	}
	var head struct {
		Schema string `json:"schema"`
	}
	if err := json.Unmarshal(body, &head); err != nil {
		return doc, fmt.Errorf("read answer of the daemon: %w", err)
	}
	if head.Schema != schema {
		return doc, fmt.Errorf("read answer of the daemon: schema %q instead of %q", head.Schema, schema)
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		return doc, fmt.Errorf("read answer of the daemon: %w", err)
	}
	return doc, nil
}

func (c *Client) do(ctx context.Context, method, path string, request []byte) ([]byte, error) {
	body, _, err := c.fetch(ctx, method, path, request)
	return body, err
}

func (c *Client) fetch(ctx context.Context, method, path string, request []byte) ([]byte, http.Header, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://smcgw"+path, bytes.NewReader(request))
	if err != nil {
		return nil, nil, fmt.Errorf("make request: %w", err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, nil, c.unreachable(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, clientMaxReply))
	if err != nil {
		return nil, nil, c.unreachable(err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, nil, replyError(resp.StatusCode, body)
	}
	return body, resp.Header, nil
}

// lasting posts a document and returns a response that may last indefinitely.
func (c *Client) lasting(ctx context.Context, path string, doc any) (*http.Response, error) {
	body, err := json.Marshal(doc)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://smcgw"+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	return c.open(req, 0)
}

// open sends a request by a connection of its own, since one that is kept may lead to the gateway
// before, and returns a response that may last indefinitely. It must begin within patience; 0: at
// any time.
func (c *Client) open(req *http.Request, patience time.Duration) (*http.Response, error) {
	t := transportTo(c.path)
	t.DisableKeepAlives, t.ResponseHeaderTimeout = true, patience
	resp, err := (&http.Client{Transport: t}).Do(req)
	if err != nil {
		return nil, c.unreachable(err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, adminMaxBody)) // a truncated text does not parse as a document
	if resp.StatusCode == http.StatusConflict {
		return nil, fmt.Errorf("%w: %s", errRefused, replyText(resp.StatusCode, text))
	}
	return nil, replyError(resp.StatusCode, text)
}

// unreachable explains why there was no answer. It distinguishes a lack of permission to
// connect from a missing daemon.
func (c *Client) unreachable(err error) error {
	switch {
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("admin socket %s: %w: it answers root, the daemon's user, and members of its group", c.path, os.ErrPermission)
	case errors.Is(err, context.Canceled):
		return err
	default:
		if op, ok := errors.AsType[*net.OpError](err); ok {
			err = op.Err
		} else if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
			err = errors.New("what listens there does not answer in time")
		}
		return fmt.Errorf("%w at %s: %w", ErrDaemonUnreachable, c.path, err)
	}
}

// replyError returns the error reported by the daemon.
func replyError(code int, body []byte) error {
	text := replyText(code, body)
	if code == http.StatusForbidden {
		return fmt.Errorf("%w: %s", ErrForbidden, text)
	}
	return fmt.Errorf("answer of the daemon: %s", text)
}

// replyText returns the text of the daemon's error.
func replyText(code int, body []byte) string {
	var doc errorDoc
	if err := json.Unmarshal(body, &doc); err != nil || doc.Error == "" {
		return http.StatusText(code)
	}
	return doc.Error
}

// successorPoll is how often a client that follows looks for the gateway that has taken over.
const successorPoll = 50 * time.Millisecond

// session is what a client has with one gateway, such as a stream of events.
type session struct {
	wait  func() error // returns when it is over
	close func()       // ends it; may be called twice
}

// follow begins a session with the gateway whose socket is there, and with each that takes over,
// until ctx ends, which is not an error, a session fails, or none is left. ready is called once
// the first session has begun. follow returns when all sessions are over.
func (c *Client) follow(ctx context.Context, ready func(), begin func(context.Context) (session, error)) error {
	ctx, cancel := context.WithCancel(ctx)
	f := following{client: c, begin: begin, ended: make(chan followed)}
	defer f.sessions.Wait()
	defer cancel()
	err := f.next(ctx)
	if err == nil {
		ready()
	}
	poll := time.NewTicker(successorPoll)
	defer poll.Stop()
	for err == nil && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case g := <-f.ended:
			f.live = slices.DeleteFunc(f.live, g.is)
			if err = g.err; err == nil && f.next(ctx) != nil && len(f.live) == 0 {
				err = c.unreachable(errors.New("the daemon has ended"))
			}
		case <-poll.C:
			_ = f.next(ctx) // else the next time
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// followed is a gateway by the file of its socket, and why the session with it ended.
type followed struct {
	at  os.FileInfo
	err error
}

// is reports whether the other one is the same. A later file may have the number of one that
// is gone.
func (g followed) is(other followed) bool {
	return g.at == nil || os.SameFile(g.at, other.at) && g.at.ModTime().Equal(other.at.ModTime())
}

// following is a call of follow.
type following struct {
	client  *Client
	begin   func(context.Context) (session, error)
	live    []followed
	refused followed // is not asked again while another is live

	sessions sync.WaitGroup
	ended    chan followed
}

// next begins a session with the gateway whose socket is there, unless there is one already.
func (f *following) next(ctx context.Context) error {
	for {
		g := f.client.gatewayAt()
		if len(f.live) > 0 && (g.is(f.refused) || slices.ContainsFunc(f.live, g.is)) {
			return nil
		}
		s, err := f.begin(ctx)
		if err != nil {
			if !errors.Is(err, ErrDaemonUnreachable) { // else it may not serve yet
				f.refused = g
			}
			return err
		}
		if !g.is(f.client.gatewayAt()) { // which of them it is with is not known
			s.close()
			continue
		}
		f.live = append(f.live, g)
		f.sessions.Go(func() {
			defer s.close()
			defer context.AfterFunc(ctx, s.close)()
			g.err = s.wait()
			select {
			case f.ended <- g:
			case <-ctx.Done():
			}
		})
		return nil
	}
}

// gatewayAt returns the gateway whose socket is at the path of the client.
func (c *Client) gatewayAt() (g followed) {
	g.at, _ = os.Lstat(c.path)
	return g
}

// flagsOf returns the parameters of a request that are true or false.
func flagsOf(q *report.ConnQuery) map[string]*bool {
	return map[string]*bool{"closed": &q.Closed, "native": &q.Native, "all": &q.All, "details": &q.Details, "programs": &q.Programs}
}

// valuesOf returns the parameters of a request.
func valuesOf(q report.ConnQuery) url.Values {
	v := url.Values{}
	for name, on := range flagsOf(&q) {
		if *on {
			v.Set(name, "true")
		}
	}
	addFilter(v, q.Filter)
	return v
}

// parseConnQuery parses the parameters of a request.
func parseConnQuery(v url.Values) (q report.ConnQuery, err error) {
	for name, dst := range flagsOf(&q) {
		text := v.Get(name)
		if text == "" {
			continue
		}
		if *dst, err = strconv.ParseBool(text); err != nil {
			return report.ConnQuery{}, fmt.Errorf("%s: %q is not a boolean", name, text)
		}
	}
	q.Filter, err = parseConnFilter(v)
	return q, err
}

// filterParameter holds a ConnFilter as JSON.
const filterParameter = "filter"

func addFilter(v url.Values, f report.ConnFilter) {
	if f != (report.ConnFilter{}) {
		text, _ := json.Marshal(f) // it consists of texts and numbers
		v.Set(filterParameter, string(text))
	}
}

func parseConnFilter(v url.Values) (f report.ConnFilter, err error) {
	text := v.Get(filterParameter)
	if text == "" {
		return f, nil
	}
	if len(text) > adminMaxBody {
		return f, errors.New("filter: too long")
	}
	if err := json.Unmarshal([]byte(text), &f); err != nil {
		return report.ConnFilter{}, fmt.Errorf("filter: %w", err)
	}
	return f, nil
}
