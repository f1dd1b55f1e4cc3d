package admin

import (
	"context"
	"net/http"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/verbs/hw/sysfs"
)

// Schemas of the JSON documents. Within a version, a document may gain fields, but does not
// lose or change any.
const (
	statusSchema  = "smcgw.status/v1"
	connsSchema   = "smcgw.conns/v1"
	peersSchema   = "smcgw.peers/v1"
	statsSchema   = "smcgw.stats/v1"
	versionSchema = "smcgw.version/v1"
	ResultSchema  = "smcgw.result/v1"
	errorSchema   = "smcgw.error/v1"
)

// ConnList is the document of conns.
type ConnList struct {
	Schema string            `json:"schema"`
	Conns  []report.ConnInfo `json:"conns"`
}

// PeerList is the document of peers.
type PeerList struct {
	Schema string            `json:"schema"`
	Peers  []report.PeerInfo `json:"peers"`
}

// Result is the document of a verb that changed something.
type Result struct {
	Schema  string `json:"schema"`
	Verb    string `json:"verb"`
	Message string `json:"message"`
	// Count is the number of things changed, for verbs that count.
	Count int `json:"count,omitempty"`
}

// errorDoc is the body of an admin answer that reports an error.
type errorDoc struct {
	Schema string `json:"schema"`
	Error  string `json:"error"`
}

// devicesSchema names the format of DeviceList.
const devicesSchema = "smcgw.devices/v1"

// DeviceList is the document of devices.
type DeviceList struct {
	Schema  string              `json:"schema"`
	Devices []report.DeviceInfo `json:"devices"`
	// RDMA is what the kernel says about the host's adapters, whether or not the gateway uses
	// them.
	RDMA sysfs.RDMA `json:"rdma"`
}

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

// Page returns the status page as HTML, with the headers that a browser should receive.
func (c *Client) Page(ctx context.Context) ([]byte, http.Header, error) {
	return c.fetch(ctx, http.MethodGet, "/", nil)
}
