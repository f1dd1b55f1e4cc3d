package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
)

// Settings are fields of the configuration that change while a gateway runs.
type Settings interface {
	// Set gives a field, by its name in the file, another value, until the configuration
	// is read again.
	Set(field, value string) error
}

// Setting is the request of set.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

func (s *Server) postSet(w http.ResponseWriter, r *http.Request) {
	var q Setting
	dec := json.NewDecoder(r.Body)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&q); err != nil {
		writeError(w, http.StatusBadRequest, "setting: "+err.Error())
		return
	}
	if s.Settings == nil {
		writeError(w, http.StatusNotFound, "this gateway has no settings")
		return
	}
	if err := s.Settings.Set(q.Name, q.Value); err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	s.log.Info("setting changed", "name", q.Name, "value", q.Value)
	writeJSON(w, Result{Schema: ResultSchema, Verb: "set", Message: fmt.Sprintf("%s is %s until the configuration is read again", q.Name, q.Value)})
}

// Set changes a field of the configuration in force.
func (c *Client) Set(ctx context.Context, q Setting) (Result, error) {
	return askWith[Result](ctx, c, http.MethodPost, "/v1/set", q, ResultSchema)
}
