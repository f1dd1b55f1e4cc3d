package admin

import "github.com/smcgw/smcgw/gateway/report"

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
