package config

// MaxShards is the number of event loops that every kind of device can serve: soft encodes
// the loop of a queue pair in four bits of its number.
const MaxShards = 16

// Loops returns the number of event loops on a host with this many processors. It is at most
// MaxShards, since with more, soft would be left out.
func (c Config) Loops(processors int) int {
	if c.Shards > 0 {
		return c.Shards
	}
	return min(max(1, processors/2), MaxShards)
}
