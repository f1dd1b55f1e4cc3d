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
	c := http.NewResponseController(w)
	pulse := time.NewTicker(watchPulse)
	defer pulse.Stop()
	for doc := (Result{Schema: ResultSchema, Verb: "run", Message: "counts until this connection ends"}); ; {
		_ = c.SetWriteDeadline(time.Now().Add(adminWriteLimit)) // the next write shows an error
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

// OptIn begins an opt-in. The caller needs the same permission as for [Client.SetOff]. The
// opt-in applies when OptIn returns. ctx covers only the beginning.
func (c *Client) OptIn(ctx context.Context, o config.OptIn) (*Held, error) {
	return c.hold(ctx, "/v1/optin", o)
}
