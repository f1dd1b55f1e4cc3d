package config

// MaxShards is how many event loops every kind of device can serve: soft names the
// loop of a queue pair in four bits of its number.
const MaxShards = 16

// Loops is the number of event loops on a host with that many processors: of more
// than MaxShards, soft would be left out.
func (c Config) Loops(processors int) int {
	n := c.Shards
	if n == 0 {
		n = max(1, processors/2)
	}
	return min(n, MaxShards)
}
