package admin

import (
	"context"
	"errors"
	"net/http"
	"time"

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
	at := c.gatewayAt()
	first, err := c.hold(ctx, optInPath, o)
	if err != nil {
		return nil, err
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	h := &Held{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(h.done)
		c.renew(life, o, at, first)
	}()
	return h, nil
}

const optInPath = "/v1/optin"

// renew holds an opt-in at the gateway whose socket is at the path of the client, until ctx ends
// or no gateway is there.
func (c *Client) renew(ctx context.Context, o config.OptIn, at watchedGateway, last *Held) {
	poll := time.NewTicker(successorPoll)
	defer poll.Stop()
	defer last.Close()
	for over := false; !over; {
		select {
		case <-ctx.Done():
			over = true
		case <-last.Done():
			over = true
		case <-poll.C:
		}
		if now := c.gatewayAt(); ctx.Err() == nil && now.at != nil && !at.is(now) {
			later := NewClient(c.path) // a connection that is kept may lead to the gateway before
			next, err := later.hold(ctx, optInPath, o)
			later.Close()
			if err == nil {
				defer next.Close()
				last, over = next, false
			}
			if !errors.Is(err, ErrDaemonUnreachable) { // else it may not serve yet
				at = now
			}
		}
	}
}
