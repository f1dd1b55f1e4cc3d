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
	"github.com/smcgw/smcgw/gateway/internal/claim"
)

// reloadRequest is the body of POST /v1/reload.
type reloadRequest struct {
	// Replace is to have a new gateway take over in any case.
	Replace bool `json:"replace,omitempty"`
}

// Successor is a gateway that has been started to take over.
type Successor interface {
	// Ended tells that it has ended.
	Ended() <-chan error
	// Release leaves it alone, End has it end; one of them is called.
	Release()
	End()
}

// successorLimit is how long a reload may take, the start of a successor and the takeover
// included.
const successorLimit = TakeoverLimit + 30*time.Second

// leftPatience is for the last step of a takeover, which may end this gateway at once, before
// the step has come to its own end, and for the successor to let new connections in after it.
const leftPatience = adminStopTimeout / 3

var (
	errSuccessorLate = errors.New("the new gateway has not taken over in time")
	errReloadLate    = errors.New("the reload is not over yet: the server of the configuration, or of security.psk_file, may not answer")
)

// Change keeps other processes from taking over until done is called. It is an error while one
// does: what the gateway is stays as it is.
func (s *Server) Change() (done func(), err error) { return s.succession.Change() }

// postReload has the configuration read again, or another gateway take over.
func (s *Server) postReload(w http.ResponseWriter, r *http.Request) {
	var req reloadRequest
	if err := readRequest(r, &req); err != nil {
		writeError(w, http.StatusBadRequest, "reload: "+err.Error())
		return
	}
	if s.succession.Busy() {
		writeError(w, http.StatusConflict, claim.ErrUnderWay.Error())
		return
	}
	until := time.Now().Add(successorLimit)
	_ = http.NewResponseController(w).SetWriteDeadline(until.Add(adminWriteLimit))
	ctx, cancel := context.WithDeadlineCause(r.Context(), until, errReloadLate)
	defer cancel()
	successor, err := s.ctl.Renew(ctx, req.Replace)
	message := "the configuration is in force"
	if successor != nil {
		message = "a new gateway has taken over"
		if err = s.awaitSuccessor(successor, until); err != nil {
			err = s.besideOld(err)
		}
	}
	if err != nil {
		writeError(w, http.StatusConflict, s.withRemedy(err).Error())
		return
	}
	writeJSON(w, Result{Schema: ResultSchema, Verb: "reload", Message: message})
}

// withRemedy adds what puts a configuration in force that is refused.
func (s *Server) withRemedy(err error) error {
	if errors.Is(err, config.ErrStop) {
		return fmt.Errorf("%w\nsmcgw drain --socket %s ends this gateway when its connections have ended; the next one starts with all of it", err, s.socket.path)
	}
	return err
}

// besideOld names what keeps any successor from taking over: a gateway that drains.
func (s *Server) besideOld(err error) error {
	old := s.predecessor()
	if old == nil {
		return err
	}
	return fmt.Errorf("%w (connections: %d, for %v at most); to reset them now: smcgw drain --timeout 1s --socket %s",
		claim.ErrDraining, old.Flows+old.Lingering, time.Duration(old.RemainingSeconds)*time.Second, s.socket.path+config.DrainingSuffix)
}

// awaitSuccessor waits until this gateway has left new connections to the successor, which
// lets them in. One that has not come that far by then is ended: what it is for has failed.
func (s *Server) awaitSuccessor(next Successor, until time.Time) error {
	limit := time.NewTimer(time.Until(until))
	defer limit.Stop()
	var err error
	select {
	case <-s.succession.Left():
	case err = <-next.Ended():
	case <-limit.C:
		err = errSuccessorLate
	case <-s.over:
		err = errors.New("the gateway ends")
	}
	select {
	case <-s.succession.Left():
	case <-time.After(leftPatience):
		s.log.Error("no other gateway takes over", "error", err)
		next.End()
		return err
	}
	defer next.Release()
	select {
	case <-s.succession.Heir():
	case <-time.After(leftPatience):
	}
	return nil
}

// Reload has the daemon read its configuration again, or a new gateway take over if the
// installed program is another one than runs, if the configuration takes a restart, or if
// replace says so. It returns when
// that is done; what fails has changed nothing.
func (c *Client) Reload(ctx context.Context, replace bool) (r Result, err error) {
	ctx, cancel := context.WithTimeout(ctx, successorLimit+clientTimeout)
	defer cancel()
	resp, err := c.lasting(ctx, "/v1/reload", reloadRequest{Replace: replace})
	if err != nil {
		return r, err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(io.LimitReader(resp.Body, adminMaxBody)).Decode(&r); err != nil {
		return r, c.unreachable(fmt.Errorf("read answer of the daemon: %w", err))
	}
	if r.Schema != ResultSchema {
		return r, fmt.Errorf("read answer of the daemon: schema %q instead of %q", r.Schema, ResultSchema)
	}
	return r, nil
}
