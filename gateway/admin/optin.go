package admin

import (
	"context"
	"errors"
	"net/http"

	"github.com/smcgw/smcgw/gateway/config"
)

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
