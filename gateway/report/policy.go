package report

import "net/netip"

// PolicyReport is the document of policy: the rules in effect with what they have decided
// and, for a gateway that carries nothing, what connections did.
type PolicyReport struct {
	Schema string `json:"schema"`
	Mode   Mode   `json:"mode"`
	// Rollout is the share that is carried now.
	Rollout RolloutReport `json:"rollout"`
	Rules   []RuleReport  `json:"rules"`
	// Observed are the services whose connections were seen in mode observe.
	Observed []ObservedService `json:"observed"`
	// Forgotten counts connections of services for which there was no room.
	Forgotten uint64 `json:"forgotten,omitempty"`
}

// RolloutReport is the share for rules without one of their own.
type RolloutReport struct {
	Percent float64 `json:"percent"`
}

// RuleReport describes a rule, or what happens if none matches.
type RuleReport struct {
	Name      string    `json:"name"`
	Action    Action    `json:"action"`
	Proto     Proto     `json:"proto,omitempty"`
	Direction Direction `json:"direction,omitempty"`
	// Percent is the share that is carried now; absent for rules that pass.
	Percent *float64 `json:"percent,omitempty"`
	// Selected counts the connections that the rule selected, whatever became of them, also
	// in mode observe; Passed those that it left native.
	Selected uint64 `json:"selected"`
	Passed   uint64 `json:"passed"`
	// Promoted counts the connections that were promoted because of the rule, or would have
	// been in mode observe.
	Promoted uint64 `json:"promoted"`
	// Bytes is what the connections that the rule would carry moved in mode observe, Bulk the
	// part moved by connections of 1 MiB and more.
	Bytes uint64 `json:"bytes"`
	Bulk  uint64 `json:"bulk_bytes"`
	// Compared is present while the guard compares; it covers the guard's window.
	Compared *Compared `json:"compared,omitempty"`
}

// Compared is how long connections of a rule that this host made and offered took, compared
// with native ones that the rollout's share left out and that moved about as much.
type Compared struct {
	Native  uint64 `json:"native"`
	Offered uint64 `json:"offered"`
	// Slower counts the offered ones that took longer than 95% of the native ones: 5% if
	// carrying makes no difference.
	Slower uint64 `json:"slower"`
}

// Ratio returns the share of the offered ones that are slower, from 0 to 1.
func (c Compared) Ratio() float64 {
	if c.Offered == 0 {
		return 0
	}
	return float64(c.Slower) / float64(c.Offered)
}

// ObservedService is what the connections to a port did, for one side and rule.
type ObservedService struct {
	Side Side   `json:"side"`
	Port uint16 `json:"port"`
	// Rule is the rule that decided; empty after a change of the rules. Carries: it would
	// have the connections carried.
	Rule    string `json:"rule"`
	Carries bool   `json:"carries"`
	// Hosts are hosts at the other end; MoreHosts: there are more.
	Hosts     []netip.Addr `json:"hosts"`
	MoreHosts bool         `json:"more_hosts,omitempty"`
	// Connections counts those that have begun. The other numbers are about those that have
	// ended.
	Connections uint64    `json:"connections"`
	Ended       uint64    `json:"ended"`
	Bytes       ByteCount `json:"bytes"`
	// Bulk counts connections of 1 MiB and more. Together they moved BulkBytes, each at
	// BulkBytesPerSecond.
	Bulk               uint64  `json:"bulk"`
	BulkBytes          uint64  `json:"bulk_bytes"`
	BulkBytesPerSecond float64 `json:"bulk_bytes_per_second"`
}
