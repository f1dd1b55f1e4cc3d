package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
)

// postDemote has connections go on over the relay. Its body is a [DemoteQuery].
func (s *AdminServer) postDemote(w http.ResponseWriter, r *http.Request) {
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
func (c *AdminClient) Demote(ctx context.Context, q DemoteQuery) (Result, error) {
	return askWith[Result](ctx, c, http.MethodPost, "/v1/demote", q, ResultSchema)
}
