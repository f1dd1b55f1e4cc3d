package report

// DrainSchema is the schema of [DrainInfo].
const DrainSchema = "smcgw.drain/v1"

// DrainInfo is the progress of a drain.
type DrainInfo struct {
	Schema string `json:"schema"`
	// Flows counts the connections still carried, Lingering those that have ended but whose
	// application has not yet taken what the kernel holds for it.
	Flows     int `json:"flows"`
	Lingering int `json:"lingering"`
	// RemainingSeconds is the time left until the connections still carried are reset.
	RemainingSeconds float64 `json:"remaining_seconds"`
	// Done is set in the last of these documents: the gateway is ending. Flows and Lingering
	// then count the connections that are reset.
	Done bool `json:"done"`
}
