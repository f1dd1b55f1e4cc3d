package report

import "net/netip"

// PolicyReport is the document of policy: the rules in force with what they decided, and,
// of a gateway that carries nothing, what connections did.
type PolicyReport struct {
	Schema string `json:"schema"`
	Mode   Mode   `json:"mode"`
	// Rollout is the share that is carried now.
	Rollout RolloutReport `json:"rollout"`
	Rules   []RuleReport  `json:"rules"`
	// Observed are the services that connections were seen of in the mode observe.
	Observed []ObservedService `json:"observed"`
	// Forgotten counts connections of services for which there was no room.
	Forgotten uint64 `json:"forgotten,omitempty"`
}

// RolloutReport is the share of the connections of rules without one of their own.
type RolloutReport struct {
	Percent float64 `json:"percent"`
}

// RuleReport is a rule, or what happens where none matches.
type RuleReport struct {
	Name      string    `json:"name"`
	Action    Action    `json:"action"`
	Proto     Proto     `json:"proto,omitempty"`
	Direction Direction `json:"direction,omitempty"`
	// Percent is the share that is carried now; absent of rules that pass.
	Percent *float64 `json:"percent,omitempty"`
	// Selected counts the connections that the rule selected, also in the mode observe,
	// whatever became of them; Passed those that it left native.
	Selected uint64 `json:"selected"`
	Passed   uint64 `json:"passed"`
	// Promoted counts the connections that the rule had promoted, or would have in the mode
	// observe.
	Promoted uint64 `json:"promoted"`
	// Bytes is what the carried ones of the mode observe moved, Bulk the part of it in
	// connections of 1 MiB and more.
	Bytes uint64 `json:"bytes"`
	Bulk  uint64 `json:"bulk_bytes"`
	// Compared is there while the guard compares, in its window.
	Compared *Compared `json:"compared,omitempty"`
}

// Compared is how long connections of a rule took that this host made and offered, beside
// native ones that the share of the rollout left out, and that moved about as much.
type Compared struct {
	Native  uint64 `json:"native"`
	Offered uint64 `json:"offered"`
	// Slower are those of the offered ones that took longer than 95% of the native ones:
	// if carrying made no difference, 5%.
	Slower uint64 `json:"slower"`
}

// Ratio is the share of the offered ones that are slower, 0 to 1.
func (c Compared) Ratio() float64 {
	if c.Offered == 0 {
		return 0
	}
	return float64(c.Slower) / float64(c.Offered)
}

// ObservedService is what the connections to a port did, of one side and rule.
type ObservedService struct {
	Side Side   `json:"side"`
	Port uint16 `json:"port"`
	// Rule is the rule that decided, empty after a change of the rules; Carries: it
	// would have them carried.
	Rule    string `json:"rule"`
	Carries bool   `json:"carries"`
	// Hosts are those at the other end, MoreHosts: and others.
	Hosts     []netip.Addr `json:"hosts"`
	MoreHosts bool         `json:"more_hosts,omitempty"`
	// Connections have begun. What follows is of those that have ended.
	Connections uint64    `json:"connections"`
	Ended       uint64    `json:"ended"`
	Bytes       ByteCount `json:"bytes"`
	// Bulk counts connections of 1 MiB and more, which moved BulkBytes, each of them
	// BulkBytesPerSecond.
	Bulk               uint64  `json:"bulk"`
	BulkBytes          uint64  `json:"bulk_bytes"`
	BulkBytesPerSecond float64 `json:"bulk_bytes_per_second"`
}
