package admin

import (
	"context"
	"net/http"

	"github.com/smcgw/smcgw/gateway/report"
)

// policySchema names the format of the document of policy.
const policySchema = "smcgw.policy/v1"

func (s *Server) getPolicy(w http.ResponseWriter, _ *http.Request) {
	p := s.ctl.Policy()
	p.Schema, p.Rules, p.Observed = policySchema, orEmpty(p.Rules), orEmpty(p.Observed)
	writeJSON(w, p)
}

// Policy returns the rules and their decisions.
func (c *Client) Policy(ctx context.Context) (report.PolicyReport, error) {
	return ask[report.PolicyReport](ctx, c, http.MethodGet, "/v1/policy", policySchema)
}
