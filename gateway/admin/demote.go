package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"github.com/smcgw/smcgw/gateway/config"
)

// postDemote has connections go on over the relay. Its body is a [DemoteQuery].
func (s *Server) postDemote(w http.ResponseWriter, r *http.Request) {
	var q DemoteQuery
	dec := json.NewDecoder(r.Body)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&q); err != nil {
		writeError(w, http.StatusBadRequest, "query: "+err.Error())
		return
	}
	if p := q.problem(); p != "" {
		writeError(w, http.StatusBadRequest, p)
		return
	}
	n := s.ctl.Demote(q)
	s.log.Info("connections asked to leave their queue pairs", "count", n)
	msg := fmt.Sprintf("%d connections go on over the relay", n)
	if n == 1 {
		msg = "1 connection goes on over the relay"
	}
	writeJSON(w, Result{Schema: ResultSchema, Verb: "demote", Message: msg, Count: n})
}

// Demote has connections leave their queue pairs and go on over the relay.
func (c *Client) Demote(ctx context.Context, q DemoteQuery) (Result, error) {
	return askWith[Result](ctx, c, http.MethodPost, "/v1/demote", q, ResultSchema)
}

// DemoteQuery says which connections are to leave their queue pairs. A connection
// that matches every field that is set is asked; All alone means each of them.
type DemoteQuery struct {
	// IDs are those of conns.
	IDs []uint64 `json:"ids,omitempty"`
	// Carrier is rdma-shm or rdma-soft.
	Carrier config.Carrier `json:"carrier,omitempty"`
	All     bool           `json:"all,omitempty"`
}

// problem says why a query cannot be meant, or nothing.
func (q DemoteQuery) problem() string {
	switch {
	case !q.All && len(q.IDs) == 0 && q.Carrier == config.CarrierNone:
		return "no connection is named: ids, carrier or all"
	case q.All && len(q.IDs) > 0:
		return "all and ids exclude each other"
	case q.Carrier != config.CarrierNone && (q.Carrier == config.CarrierRelay || !slices.Contains(config.Carriers(), q.Carrier)):
		return "carrier: " + string(q.Carrier) + " is none that can be left"
	}
	return ""
}

// Matches reports whether a connection is meant.
func (q DemoteQuery) Matches(id uint64, by config.Carrier) bool {
	return (len(q.IDs) == 0 || slices.Contains(q.IDs, id)) && (q.Carrier == config.CarrierNone || q.Carrier == by)
}
