package process

import (
	"os"
	"slices"
	"strings"
)

// Congestion tells of the congestion control that sockets get here whether it paces, bbr
// in its versions, and which to choose that does not: the one that most hosts use, where
// programs may, or the one that every kernel has.
func Congestion() (paces bool, unpaced string) {
	return congestion(func(name string) string {
		b, _ := os.ReadFile("/proc/sys/net/ipv4/" + name)
		return string(b)
	})
}

func congestion(sysctl func(name string) string) (paces bool, unpaced string) {
	unpaced = "reno"
	if slices.Contains(strings.Fields(sysctl("tcp_allowed_congestion_control")), "cubic") {
		unpaced = "cubic"
	}
	return strings.HasPrefix(sysctl("tcp_congestion_control"), "bbr"), unpaced
}
