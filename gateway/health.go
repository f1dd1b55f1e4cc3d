package gateway

import (
	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/report"
)

// listBlockedLegs lists where connections are native because legs do not reach applications.
// legless: legs cannot be made at all.
func listBlockedLegs(blocked []ebpf.BlockedLegs, legless bool) (list []report.BlockedLegs) {
	for _, b := range blocked {
		family := "ipv4"
		if b.IPv6 {
			family = "ipv6"
		}
		list = append(list, report.BlockedLegs{Device: b.Device, Family: family, At: string(b.Way)})
	}
	if legless {
		list = append(list, report.BlockedLegs{At: "keeper"})
	}
	return list
}

// noteDevices adds notes about RDMA devices, and reports whether one has failed and whether
// one is active.
func noteDevices(st *report.Status, list []report.DeviceInfo) (failed, active bool) {
	for _, d := range list {
		failed, active = failed || d.State == report.DeviceFailed, active || d.State == report.DeviceActive
		if d.State == report.DeviceFailed {
			st.Notes = append(st.Notes, d.Name+": "+d.Error)
		}
		if d.Note != "" {
			st.Notes = append(st.Notes, d.Name+": "+d.Note)
		}
	}
	return failed, active
}
