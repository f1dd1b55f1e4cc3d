package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/smcgw/smcgw/gateway/config"
)

// SettingShare is the share of connections that is carried.
const SettingShare = "rollout.percent"

// Settings returns the names of what can be set while a gateway runs: fields of the
// configuration.
func Settings() []string { return append(config.LogSettings(), SettingShare) }

// IsSetting reports whether the named field can be set.
func IsSetting(name string) bool { return slices.Contains(Settings(), name) }

// Setting is the new value of a setting.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// ErrSetting means that something cannot be set.
var ErrSetting = errors.New("set")

// postSet changes a setting. Its body is a [Setting].
func (s *Server) postSet(w http.ResponseWriter, r *http.Request) {
	var set Setting
	err := readRequest(r, &set)
	if err == nil && !IsSetting(set.Name) {
		err = fmt.Errorf("%q cannot be set", set.Name)
	}
	if err != nil {
		writeError(w, http.StatusBadRequest, "set: "+err.Error())
		return
	}
	switch err := s.ctl.Set(set); {
	case errors.Is(err, ErrSetting):
		writeError(w, http.StatusBadRequest, err.Error())
	case err != nil:
		writeError(w, http.StatusInternalServerError, err.Error())
	default:
		s.log.Warn("setting changed", "name", set.Name, "value", set.Value)
		writeJSON(w, Result{Schema: ResultSchema, Verb: "set", Message: set.Name + " is " + set.Value + " until the configuration is read again"})
	}
}

// Set changes a setting of the daemon, until it ends or rereads its configuration.
func (c *Client) Set(ctx context.Context, set Setting) (Result, error) {
	return askWith[Result](ctx, c, http.MethodPost, "/v1/set", set, ResultSchema)
}

// reloadRequest is the body of POST /v1/reload.
type reloadRequest struct {
	// Replace makes a new gateway take over in any case.
	Replace bool `json:"replace,omitempty"`
}

// reloadLimit bounds a reload, including the start of another gateway and its takeover.
const reloadLimit = 90 * time.Second

var errReloadLate = errors.New("the reload is not over yet: the server of the configuration, or of security.psk_file, may not answer")

// postReload rereads the configuration, or makes another gateway take over.
func (s *Server) postReload(w http.ResponseWriter, r *http.Request) {
	var req reloadRequest
	if err := readOptional(r, &req); err != nil {
		writeError(w, http.StatusBadRequest, "reload: "+err.Error())
		return
	}
	until := time.Now().Add(reloadLimit)
	_ = http.NewResponseController(w).SetWriteDeadline(until.Add(adminWriteLimit))
	ctx, cancel := context.WithDeadlineCause(s.life, until, errReloadLate)
	defer cancel()
	replaced, err := s.ctl.Renew(ctx, req.Replace)
	message := "the configuration is in force"
	if replaced {
		message = "a new gateway has taken over"
	}
	if err != nil {
		writeError(w, http.StatusConflict, s.withRemedy(err).Error())
		return
	}
	writeJSON(w, Result{Schema: ResultSchema, Verb: "reload", Message: message})
}

// withRemedy adds to an error how to put the refused configuration into effect.
func (s *Server) withRemedy(err error) error {
	if errors.Is(err, config.ErrStop) {
		return fmt.Errorf("%w\nsmcgw drain --socket %s ends this gateway when its connections have ended; the next one starts with all of it", err, s.socket.path)
	}
	return err
}

// Reload makes the daemon reread its configuration, or makes a new gateway take over if the
// installed program differs from the running one, if the configuration takes a restart, or if
// replace is set. It returns when that is done; if it fails, nothing has changed.
func (c *Client) Reload(ctx context.Context, replace bool) (r Result, err error) {
	ctx, cancel := context.WithTimeout(ctx, reloadLimit+clientTimeout)
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
