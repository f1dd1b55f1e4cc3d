package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/smcgw/smcgw/gateway/config"
)

// maxTrialTime bounds the life of a trial whose holder hangs.
const maxTrialTime = 30 * time.Minute

// postTrial begins a trial and holds it for as long as the request lasts: it ends when the
// client disconnects for any reason, and with the daemon.
func (s *Server) postTrial(w http.ResponseWriter, r *http.Request) {
	var t config.Trial
	if err := readRequest(r, &t); err != nil {
		writeError(w, http.StatusBadRequest, "trial: "+err.Error())
		return
	}
	end, err := s.ctl.Try(t)
	if err != nil {
		writeError(w, trialStatus(err), err.Error())
		return
	}
	defer end()
	s.log.Info("trial begins", "peer", t.Peer, "port", t.Port, "action", t.Action, "carrier", t.Carrier)
	ctx, cancel := context.WithTimeout(r.Context(), maxTrialTime)
	defer cancel()
	s.answerAndHold(ctx, w, Result{Verb: "trial", Message: "holds until this connection ends"})
	s.log.Info("trial ends", "peer", t.Peer, "port", t.Port)
}

// trialStatus returns the HTTP status for a refusal.
func trialStatus(err error) int {
	var bad *config.TrialError
	switch {
	case errors.Is(err, config.ErrTrialHeld):
		return http.StatusConflict
	case errors.As(err, &bad):
		return http.StatusBadRequest
	default:
		return http.StatusInternalServerError
	}
}

// Held is something that applies for as long as it is held: a trial or an opt-in.
type Held struct {
	cancel context.CancelFunc
	done   chan struct{}
	once   sync.Once
}

// TrialPatience is how long a trial waits for another one on the same port to end: a daemon
// notices a moment later that one was closed.
const TrialPatience = 5 * time.Second

// Try begins a trial. The caller needs the same permission as for [Client.SetOff]. If the
// port remains on trial, the error is [config.ErrTrialHeld]. ctx covers only the beginning.
func (c *Client) Try(ctx context.Context, t config.Trial) (*Held, error) {
	for end := time.Now().Add(TrialPatience); ; {
		h, err := c.hold(ctx, "/v1/trial", t)
		if !errors.Is(err, errRefused) {
			return h, err
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("trial of port %d: %w", t.Port, config.ErrTrialHeld)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("trial of port %d: %w: %w", t.Port, config.ErrTrialHeld, context.Cause(ctx))
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// hold posts a document and keeps the request open after the daemon has confirmed that it
// applies.
func (c *Client) hold(ctx context.Context, path string, doc any) (*Held, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	patience := time.AfterFunc(clientTimeout, cancel)
	resp, err := c.lasting(life, path, doc)
	began := err == nil && readTrial(resp.Body) == nil
	if !stop() || !patience.Stop() || !began {
		cancel()
		if resp != nil {
			_ = resp.Body.Close()
		}
		if err == nil {
			err = c.unreachable(errors.New("no answer"))
		}
		return nil, err
	}
	h := &Held{cancel: cancel, done: make(chan struct{})}
	go h.watch(resp.Body)
	return h, nil
}

// readTrial waits until the daemon confirms that the document applies.
func readTrial(r io.Reader) error {
	var res Result
	if err := json.NewDecoder(io.LimitReader(r, adminMaxBody)).Decode(&res); err != nil {
		return err
	}
	if res.Schema != ResultSchema {
		return fmt.Errorf("schema %q instead of %q", res.Schema, ResultSchema)
	}
	return nil
}

// watch waits for the end of the connection.
func (h *Held) watch(body io.ReadCloser) {
	defer close(h.done)
	_, _ = io.Copy(io.Discard, body) // it ends for whatever reason
	_ = body.Close()
}

// Done returns a channel that is closed when it is over: closed by its holder, or by a daemon
// that ended or reached its time limit.
func (h *Held) Done() <-chan struct{} { return h.done }

// Close ends it and returns when nothing of it is left in this process; the daemon notices a
// moment later. It is idempotent.
func (h *Held) Close() {
	h.once.Do(h.cancel)
	<-h.done
}

// postOptIn holds an opt-in for as long as the request lasts: it ends when the client
// disconnects for any reason, and with the daemon. It answers when the opt-in applies.
func (s *Server) postOptIn(w http.ResponseWriter, r *http.Request) {
	var o config.OptIn
	if err := readRequest(r, &o); err != nil {
		writeError(w, http.StatusBadRequest, "opt-in: "+err.Error())
		return
	}
	end, err := s.ctl.OptIn(o)
	switch {
	case errors.Is(err, config.ErrOptIn):
		writeError(w, http.StatusBadRequest, err.Error())
		return
	case err != nil:
		writeError(w, http.StatusInternalServerError, err.Error())
		return
	}
	defer end()
	s.log.Info("cgroup opted in", "cgroup", o.Cgroup)
	s.answerAndHold(r.Context(), w, Result{Verb: "run", Message: "counts until this connection ends"})
	s.log.Info("cgroup opted out", "cgroup", o.Cgroup)
}

// OptIn begins an opt-in. The caller needs the same permission as for [Client.SetOff]. The
// opt-in applies when OptIn returns, and soon after another gateway has taken over also to that
// one. ctx covers only the beginning.
func (c *Client) OptIn(ctx context.Context, o config.OptIn) (*Held, error) {
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	h := &Held{cancel: cancel, done: make(chan struct{})}
	began := make(chan error, 2)
	stop := context.AfterFunc(ctx, cancel)
	go func() {
		defer close(h.done)
		began <- c.follow(life, func() { began <- nil }, func(ctx context.Context) (session, error) {
			h, err := c.hold(ctx, "/v1/optin", o)
			if err != nil {
				return session{}, err
			}
			return session{wait: func() error { <-h.Done(); return nil }, close: h.Close}, nil
		})
	}()
	err := <-began
	if !stop() {
		err = ctx.Err()
	}
	if err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}
