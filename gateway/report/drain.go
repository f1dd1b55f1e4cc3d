package report

// DrainSchema is the schema of [DrainInfo].
const DrainSchema = "smcgw.drain/v1"

// DrainInfo is how far a drain is.
type DrainInfo struct {
	Schema string `json:"schema"`
	// Flows are the connections that are still carried, Lingering those that have
	// ended, but whose application has yet to take what the kernel holds for it.
	Flows     int `json:"flows"`
	Lingering int `json:"lingering"`
	// RemainingSeconds is the time left until the connections that are still
	// carried are reset.
	RemainingSeconds float64 `json:"remaining_seconds"`
	// Done is set in the last of these documents: the gateway ends. Flows and
	// Lingering are then those that are reset.
	Done bool `json:"done"`
}
