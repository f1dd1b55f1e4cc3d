package gateway

import (
	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/admin"
)

// listBlockedLegs lists where connections are native because legs do not reach
// applications. legless: there are no legs at all.
func listBlockedLegs(blocked []ebpf.BlockedLegs, legless bool) (list []admin.BlockedLegs) {
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

// noteDevices notes what RDMA devices lack: whether one has failed, and whether one is active.
func noteDevices(st *admin.Status, list []admin.DeviceInfo) (failed, active bool) {
	for _, d := range list {
		failed, active = failed || d.State == admin.DeviceFailed, active || d.State == admin.DeviceActive
		if d.State == admin.DeviceFailed {
			st.Notes = append(st.Notes, d.Name+": "+d.Error)
		}
		if d.Note != "" {
			st.Notes = append(st.Notes, d.Name+": "+d.Note)
		}
	}
	return failed, active
}
