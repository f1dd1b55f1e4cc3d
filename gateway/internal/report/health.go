package report

import (
	"fmt"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/admin"
)

// MissingDevices says which devices of the configuration carry nothing since there is no
// such device. An empty name stands for all of the default.
func MissingDevices(names []string) (list []string) {
	for _, name := range names {
		if name == "" {
			list = append(list, "devices: no device has a default route or a route to a peer of a rule: name devices, or add a route")
		} else {
			list = append(list, fmt.Sprintf("devices: there is no network device %s here: see ip link, and correct devices", name))
		}
	}
	return list
}

// BlockedLegs lists where connections are native because legs do not reach applications;
// legless: there are none.
func BlockedLegs(blocked []ebpf.BlockedLegs, legless bool) (list []admin.BlockedLegs) {
	for _, b := range blocked {
		family := "ipv4"
		if b.IPv6 {
			family = "ipv6"
		}
		list = append(list, admin.BlockedLegs{Device: b.Device, Family: family, At: string(b.Way)})
	}
	if legless {
		list = append(list, admin.BlockedLegs{At: "keeper"})
	}
	return list
}
