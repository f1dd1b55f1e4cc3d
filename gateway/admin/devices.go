package admin

import (
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/verbs/hw/sysfs"
)

// devicesSchema names the format of DeviceList.
const devicesSchema = "smcgw.devices/v1"

// DeviceList is the document of devices.
type DeviceList struct {
	Schema  string              `json:"schema"`
	Devices []report.DeviceInfo `json:"devices"`
	// RDMA is what the kernel says about the host's adapters, whether or not the gateway uses
	// them.
	RDMA sysfs.RDMA `json:"rdma"`
}
