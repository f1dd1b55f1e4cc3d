package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/process"
	"github.com/smcgw/smcgw/gateway/report"
)

// drainReport is how often a client waiting for a drain receives its progress.
const drainReport = time.Second

// drainRequest is the body of POST /v1/drain.
type drainRequest struct {
	// TimeoutSeconds is the time after which the remaining connections are reset; 0 means the
	// configured one.
	TimeoutSeconds float64 `json:"timeout_seconds,omitempty"`
}

// timeout validates and returns the timeout.
func (r drainRequest) timeout() (time.Duration, error) {
	if r.TimeoutSeconds < 0 || r.TimeoutSeconds > config.MaxDrainTimeout.Seconds() {
		return 0, fmt.Errorf("drain: a timeout of %v s is not in 0..%v", r.TimeoutSeconds, config.MaxDrainTimeout.Seconds())
	}
	return time.Duration(r.TimeoutSeconds * float64(time.Second)), nil
}

// postDrain begins a drain and sends its progress, one document per line, until it is over.
// The drain continues if the client disconnects.
func (s *Server) postDrain(w http.ResponseWriter, r *http.Request) {
	var req drainRequest
	err := readOptional(r, &req)
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
			case <-over: // which is why the server is ending
			default:
				return
			}
		}
	}
}

// report sends one document about the drain. It extends the write deadline, since a drain may
// last longer than that.
func (s *Server) report(w http.ResponseWriter) error {
	i := s.ctl.Draining()
	if i == nil {
		return errors.New("no drain")
	}
	c := http.NewResponseController(w)
	_ = c.SetWriteDeadline(time.Now().Add(adminWriteLimit)) // the next write shows an error
	writeJSON(w, i)
	return c.Flush()
}

// errDrainSilent says that a daemon has stopped reporting on its drain.
var errDrainSilent = errors.New("it has stopped reporting on the drain, which may go on")

// Drain makes the daemon accept no new connections and end when those it carries have ended,
// but no later than after timeout (0: the configured one). progress is called with each
// progress report, at least once. Drain returns the last report once the processes of the
// gateway have ended, so that another one can start. A daemon that sends no report for as long
// as any other answer may take is not reachable.
func (c *Client) Drain(ctx context.Context, timeout time.Duration, progress func(report.DrainInfo)) (report.DrainInfo, error) {
	return c.drain(ctx, timeout, reloadLimit, progress)
}

// drain is Drain; before the first report the daemon may take longer by the time before, since
// a reload that is under way comes first.
func (c *Client) drain(ctx context.Context, timeout, before time.Duration, progress func(report.DrainInfo)) (last report.DrainInfo, err error) {
	hears, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	silence := time.AfterFunc(c.http.Timeout, func() { stop(errDrainSilent) })
	defer silence.Stop()
	pid, err := c.DaemonPID(hears)
	if err != nil {
		return last, c.silent(hears, err)
	}
	gateway, err := process.WatchEnding(pid)
	if err != nil {
		return last, err
	}
	defer gateway.Close()
	silence.Reset(before + c.http.Timeout)
	resp, err := c.lasting(hears, "/v1/drain", drainRequest{TimeoutSeconds: timeout.Seconds()})
	if err != nil {
		return last, c.silent(hears, err)
	}
	defer resp.Body.Close()
	for dec := json.NewDecoder(resp.Body); ; {
		var i report.DrainInfo
		if err := dec.Decode(&i); err != nil {
			return last, c.silent(hears, c.unreachable(fmt.Errorf("the daemon has ended: %w", err)))
		}
		silence.Reset(c.http.Timeout)
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

// silent returns the error of a drain whose daemon was silent for too long, and err for others.
func (c *Client) silent(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, errDrainSilent) {
		return c.unreachable(cause)
	}
	return err
}
