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
	"os"
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
