package admin

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/smcgw/smcgw/gateway/config"
)

// postOptIn holds an opt-in for as long as the request lasts: it ends when the client
// goes, whatever the way, and with the daemon. The answer comes when it counts.
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
	c := http.NewResponseController(w)
	pulse := time.NewTicker(watchPulse)
	defer pulse.Stop()
	for doc := (Result{Schema: ResultSchema, Verb: "run", Message: "counts until this connection ends"}); ; {
		_ = c.SetWriteDeadline(time.Now().Add(adminWriteLimit)) // an error shows with the next write
		if json.NewEncoder(w).Encode(doc) != nil || c.Flush() != nil {
			break
		}
		select {
		case <-pulse.C:
			continue
		case <-r.Context().Done():
		case <-s.life.Done():
		}
		break
	}
	s.log.Info("cgroup opted out", "cgroup", o.Cgroup)
}

// OptIn begins an opt-in, for which the daemon must permit its caller what it permits for
// [Client.SetOff]. It counts when OptIn returns. ctx is about the beginning only.
func (c *Client) OptIn(ctx context.Context, o config.OptIn) (*Held, error) {
	return c.hold(ctx, "/v1/optin", o)
}
