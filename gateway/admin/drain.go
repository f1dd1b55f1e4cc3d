package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/process"
	"github.com/smcgw/smcgw/gateway/report"
)

// drainReport is how often a client that waits for a drain hears of it.
const drainReport = time.Second

// drainRequest is the body of POST /v1/drain.
type drainRequest struct {
	// TimeoutSeconds is after which time the connections that are left are reset;
	// 0: that of the configuration.
	TimeoutSeconds float64 `json:"timeout_seconds,omitempty"`
}

// timeout checks the request.
func (r drainRequest) timeout() (time.Duration, error) {
	if r.TimeoutSeconds < 0 || r.TimeoutSeconds > config.MaxDrainTimeout.Seconds() {
		return 0, fmt.Errorf("drain: a timeout of %v s is not in 0..%v", r.TimeoutSeconds, config.MaxDrainTimeout.Seconds())
	}
	return time.Duration(r.TimeoutSeconds * float64(time.Second)), nil
}

// readRequest reads the body of a POST to its end, strictly.
func readRequest(r *http.Request, into any) error {
	dec := json.NewDecoder(r.Body)
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	// The end of the connection is noticed only after the end of the body.
	if n, err := io.Copy(io.Discard, io.MultiReader(dec.Buffered(), r.Body)); err != nil || n > 2 {
		return errors.New("more than one document")
	}
	return nil
}

// postDrain begins a drain. It tells its progress, a document a line, until it is
// over. The drain goes on when the client goes.
func (s *Server) postDrain(w http.ResponseWriter, r *http.Request) {
	var req drainRequest
	err := readRequest(r, &req)
	timeout, errRange := req.timeout()
	if err = errors.Join(err, errRange); err != nil {
		writeError(w, http.StatusBadRequest, "drain: "+err.Error())
		return
	}
	over, err := s.ctl.Drain(timeout)
	if err != nil {
		writeError(w, http.StatusInternalServerError, err.Error())
		return
	}
	tick := time.NewTicker(drainReport)
	defer tick.Stop()
	for {
		select {
		case <-over:
			_ = s.report(w)
			return
		default:
		}
		if s.report(w) != nil {
			return
		}
		select {
		case <-tick.C:
		case <-over:
		case <-r.Context().Done():
			return
		case <-s.life.Done():
			select {
			case <-over: // which is why the server ends
			default:
				return
			}
		}
	}
}

// report sends one document about the drain. A drain may outlast the time limit
// of answers.
func (s *Server) report(w http.ResponseWriter) error {
	i := s.ctl.Draining()
	if i == nil {
		return errors.New("no drain")
	}
	c := http.NewResponseController(w)
	_ = c.SetWriteDeadline(time.Now().Add(adminWriteLimit)) // an error shows with the next write
	writeJSON(w, i)
	return c.Flush()
}

// Drain has the daemon take no new connections and end when those it carries
// have, at the latest after timeout (0: what its configuration says); progress is
// called for what it tells meanwhile, at least once. It returns the last of that, when
// the processes of the gateway have ended: another one can start then.
func (c *Client) Drain(ctx context.Context, timeout time.Duration, progress func(report.DrainInfo)) (last report.DrainInfo, err error) {
	pid, err := c.DaemonPID(ctx)
	if err != nil {
		return last, err
	}
	gateway, err := process.WatchEnding(pid)
	if err != nil {
		return last, err
	}
	defer gateway.Close()
	resp, err := c.lasting(ctx, "/v1/drain", drainRequest{TimeoutSeconds: timeout.Seconds()})
	if err != nil {
		return last, err
	}
	defer resp.Body.Close()
	for dec := json.NewDecoder(resp.Body); ; {
		var i report.DrainInfo
		if err := dec.Decode(&i); err != nil {
			return last, c.unreachable(fmt.Errorf("the daemon has ended: %w", err))
		}
		if i.Schema != report.DrainSchema {
			return last, fmt.Errorf("read answer of the daemon: schema %q instead of %q", i.Schema, report.DrainSchema)
		}
		last = i
		if i.Done {
			err := gateway.Await(ctx)
			progress(i)
			return last, err
		}
		progress(i)
	}
}
