package admin

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/internal/claim"
)

// takeoverSchema is the schema of [TakeoverOffer].
const takeoverSchema = "smcgw.takeover/v1"

// TakeoverLimit bounds a takeover whose successor hangs: then everything is taken
// back.
const TakeoverLimit = time.Minute

// TakeoverOffer is what a gateway tells its successor.
type TakeoverOffer struct {
	Schema string `json:"schema"`
	// Token names the takeover in its later steps.
	Token string `json:"token"`
	// Neighbour is the datapath beside which the successor opens its own.
	Neighbour ebpf.Neighbour `json:"neighbour"`
}

// validate reports an offer that makes no sense.
func (o TakeoverOffer) validate() error {
	if o.Schema != takeoverSchema {
		return fmt.Errorf("takeover: schema %q instead of %q", o.Schema, takeoverSchema)
	}
	if o.Token == "" || len(o.Token) > 64 {
		return errors.New("takeover: no token")
	}
	return o.Neighbour.Validate()
}

// takeoverStep is the body of the later steps.
type takeoverStep struct {
	Token string `json:"token"`
	// DrainSeconds is how long the old gateway serves its connections; 0: what its
	// configuration says. Of the last step only.
	DrainSeconds float64 `json:"drain_seconds,omitempty"`
}

// takeoverAnswer is what the later steps are answered.
type takeoverAnswer struct {
	Result
	// Off is the kill switch of the old gateway, which a file may not tell. Of the last step only.
	Off bool `json:"off,omitempty"`
}

// postTakeover begins a takeover and holds it while the request lasts: when the
// successor goes before the last step, whatever the way, all is taken back. After it
// the successor ends the request when it lets new connections in.
func (s *Server) postTakeover(w http.ResponseWriter, r *http.Request) {
	if err := readRequest(r, &struct{}{}); err != nil {
		writeError(w, http.StatusBadRequest, "takeover: "+err.Error())
		return
	}
	var random [16]byte
	_, _ = rand.Read(random[:])
	token := hex.EncodeToString(random[:])
	var n ebpf.Neighbour
	revoked, err := s.succession.Claim(r.Context(), token, func() (err error) {
		n, err = s.ctl.Neighbour()
		return err
	})
	if err != nil {
		writeError(w, takeoverStatus(err), err.Error())
		return
	}
	s.log.Info("takeover begins")
	defer s.succession.Lost(token, s.takeBack)
	c := http.NewResponseController(w)
	_ = c.SetWriteDeadline(time.Now().Add(adminWriteLimit))
	writeJSON(w, TakeoverOffer{Schema: takeoverSchema, Token: token, Neighbour: n})
	if c.Flush() != nil {
		return
	}
	limit := time.NewTimer(TakeoverLimit)
	defer limit.Stop()
	select {
	case <-s.succession.Left():
		select {
		case <-r.Context().Done():
		case <-time.After(leftPatience):
		}
		s.succession.Followed()
	case <-r.Context().Done():
		s.log.Warn("takeover given up by the other process")
	case <-limit.C:
		s.end(w, "the takeover lasts too long")
	case <-revoked:
		s.end(w, "the gateway is to drain")
	case <-s.over:
	}
}

// end tells the successor why it is to end. One whose request ends without a word completes the
// takeover alone: this gateway has died.
func (s *Server) end(w http.ResponseWriter, why string) {
	s.log.Warn("takeover given up", "error", why)
	c := http.NewResponseController(w)
	_ = c.SetWriteDeadline(time.Now().Add(adminWriteLimit))
	writeJSON(w, why)
	_ = c.Flush() // it may be gone
}

// takeoverStatus tells a successor what to think of a refusal.
func takeoverStatus(err error) int {
	if errors.Is(err, claim.ErrUnderWay) || errors.Is(err, claim.ErrDraining) || errors.Is(err, claim.ErrNotSuccessor) || errors.Is(err, ErrNoTakeover) {
		return http.StatusConflict
	}
	return http.StatusInternalServerError
}

// postYield gives up what only one gateway can have.
func (s *Server) postYield(w http.ResponseWriter, r *http.Request) {
	s.takeoverStep(w, r, claim.Claimed, claim.Yielded, func(takeoverStep) (a takeoverAnswer, err error) {
		if err = s.yield(); err != nil {
			s.takeBack()
		}
		return a, err
	})
}

func (s *Server) yield() error {
	if err := s.ctl.Yield(); err != nil {
		return err
	}
	s.scrape.release()
	s.shows.release()
	s.reuse(false) // the next request is to find the next gateway
	if err := s.socket.moveAside(); err != nil {
		return fmt.Errorf("move admin socket: %w", err)
	}
	return nil
}

// takeBack undoes yield, or as much of it as was done: connections first, since the
// successor may keep the socket's place for a while. reclaimLoop does what cannot be done
// yet.
func (s *Server) takeBack() {
	s.reuse(true)
	errBack := s.ctl.TakeBack()
	err := s.reclaim(successorPatience)
	if err != nil {
		select {
		case s.missing <- struct{}{}:
		default:
		}
	}
	if err = errors.Join(errBack, err); err != nil {
		s.log.Error("after a takeover that failed not all is as it was", "error", err)
		return
	}
	s.log.Warn("takeover failed, this gateway goes on")
}

// reclaim takes the admin socket's place and the ports back, or as much of it as a
// successor does not keep. It can be repeated.
func (s *Server) reclaim(patience time.Duration) error {
	return errors.Join(s.socket.moveBack(patience), s.listenTCP())
}

// reclaimEvery is how often it is looked whether a successor that hung has ended.
const reclaimEvery = 100 * time.Millisecond

// reclaimLoop has reclaim repeated until nothing is missing, whenever a successor keeps
// something, until ctx ends.
func (s *Server) reclaimLoop(ctx context.Context) {
	var again <-chan time.Time // nil: nothing is missing
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.missing:
		case <-again:
			if again = nil; s.succession.Restore(s.reclaimLater) == nil {
				continue
			}
		}
		again = time.After(reclaimEvery)
	}
}

// reclaimLater is one turn of reclaimLoop.
func (s *Server) reclaimLater() error {
	err := s.reclaim(0)
	if err == nil {
		s.log.Warn("all is back after a takeover that failed")
	}
	return err
}

// postLeave leaves new connections to the successor for good.
func (s *Server) postLeave(w http.ResponseWriter, r *http.Request) {
	s.takeoverStep(w, r, claim.Yielded, claim.Left, func(t takeoverStep) (a takeoverAnswer, err error) {
		timeout, err := drainRequest{TimeoutSeconds: t.DrainSeconds}.timeout()
		if err == nil {
			a.Off, err = s.ctl.Leave(func() error { return awaited(r) }, timeout, mainOf(r))
		}
		return a, err
	})
}

// errLate is returned for a last step that its successor does not wait for any more.
var errLate = errors.New("too late: the new gateway has given up")

// awaited returns an error when a successor may have given up waiting for an answer.
func awaited(r *http.Request) error {
	until, err := strconv.ParseUint(r.URL.Query().Get("until"), 10, 64)
	switch {
	case err != nil:
		return fmt.Errorf("until: %w", err)
	case ebpf.Now() > until:
		return errLate
	}
	return r.Context().Err()
}

// mainOf is the process by which a service manager knows the successor; 0: none.
func mainOf(r *http.Request) int {
	pid, err := strconv.Atoi(r.URL.Query().Get("main"))
	if err != nil || pid < 2 {
		return 0
	}
	return pid
}

func (s *Server) takeoverStep(w http.ResponseWriter, r *http.Request, from, to claim.State, do func(takeoverStep) (takeoverAnswer, error)) {
	var t takeoverStep
	if err := readRequest(r, &t); err != nil {
		writeError(w, http.StatusBadRequest, "takeover: "+err.Error())
		return
	}
	var a takeoverAnswer
	if err := s.succession.Step(t.Token, from, to, func() (err error) { a, err = do(t); return err }); err != nil {
		s.log.Warn("takeover", "error", err)
		writeError(w, takeoverStatus(err), err.Error())
		return
	}
	a.Result = Result{Schema: ResultSchema, Verb: "takeover", Message: "done"}
	writeJSON(w, a)
}

// getNeighbour describes the datapath, for a gateway that starts beside one that
// drains.
func (s *Server) getNeighbour(w http.ResponseWriter, _ *http.Request) {
	n, err := s.ctl.Neighbour()
	if err != nil && !errors.Is(err, claim.ErrDraining) {
		writeError(w, takeoverStatus(err), err.Error())
		return
	}
	writeJSON(w, TakeoverOffer{Schema: takeoverSchema, Token: "-", Neighbour: n})
}

// ErrNoTakeover is returned by a gateway whose host has no room for another one.
var ErrNoTakeover = errors.New("nobody can take over here")

// Neighbour describes the datapath of a gateway to one that is to start beside it.
type Neighbour = ebpf.Neighbour
