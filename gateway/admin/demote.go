package admin

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	"github.com/smcgw/smcgw/gateway/report"
)

// postDemote moves connections to the relay. Its body is a [DemoteQuery].
func (s *Server) postDemote(w http.ResponseWriter, r *http.Request) {
	var q DemoteQuery
	if err := readRequest(r, &q); err != nil {
		writeError(w, http.StatusBadRequest, "query: "+err.Error())
		return
	}
	if p := q.problem(); p != "" {
		writeError(w, http.StatusBadRequest, p)
		return
	}
	n, err := s.ctl.Demote(q)
	if err != nil {
		writeError(w, http.StatusConflict, err.Error())
		return
	}
	if n == 0 && len(q.IDs) > 0 {
		writeError(w, http.StatusNotFound, "none of these connections is carried by a queue pair: smcgw conns lists ids")
		return
	}
	s.log.Info("connections asked to leave their queue pairs", "count", n, "device", q.Device)
	msg := fmt.Sprintf("%d connections go on over the relay", n)
	if n == 1 {
		msg = "1 connection goes on over the relay"
	}
	if q.Device != "" {
		msg += "; " + q.Device + " is closed"
	}
	writeJSON(w, Result{Schema: ResultSchema, Verb: "demote", Message: msg, Count: n})
}

// Demote makes connections leave their queue pairs and continue over the relay.
func (c *Client) Demote(ctx context.Context, q DemoteQuery) (Result, error) {
	return askWith[Result](ctx, c, http.MethodPost, "/v1/demote", q, ResultSchema)
}

// DemoteQuery selects the connections that leave their queue pairs: those that match every
// field that is set. All alone selects every connection.
type DemoteQuery struct {
	// IDs are IDs listed by conns.
	IDs []uint64 `json:"ids,omitempty"`
	// Carrier is rdma-shm, rdma-hw, rdma-ib or rdma-soft.
	Carrier report.Carrier `json:"carrier,omitempty"`
	All     bool           `json:"all,omitempty"`
	// Device is an RDMA adapter, or one port of an adapter. Its connections leave it, and it
	// is closed so that its driver can be unloaded. Device excludes the other fields.
	Device string `json:"device,omitempty"`
}

// problem returns why a query is invalid, or "".
func (q DemoteQuery) problem() string {
	named := q.All || len(q.IDs) > 0 || q.Carrier != report.CarrierNone
	switch {
	case q.Device != "" && named:
		return "device excludes ids, carrier and all"
	case q.Device != "":
		return ""
	case !q.All && len(q.IDs) == 0 && q.Carrier == report.CarrierNone:
		return "no connection is named: ids, carrier, device or all"
	case q.All && len(q.IDs) > 0:
		return "all and ids exclude each other"
	case q.Carrier != report.CarrierNone && (q.Carrier == report.CarrierRelay || !slices.Contains(report.Carriers(), q.Carrier)):
		return "carrier: " + string(q.Carrier) + " cannot be left; rdma-shm, rdma-soft, rdma-hw and rdma-ib can"
	}
	return ""
}

// Matches reports whether a connection is selected.
func (q DemoteQuery) Matches(id uint64, by report.Carrier) bool {
	return (len(q.IDs) == 0 || slices.Contains(q.IDs, id)) && (q.Carrier == report.CarrierNone || q.Carrier == by)
}
