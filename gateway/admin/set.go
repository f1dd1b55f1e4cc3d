package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

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
