package report

import "net/netip"

// DeviceInfo describes one RDMA device of the gateway, or one port of an adapter.
type DeviceInfo struct {
	// Name is the kind and a number: soft0, soft1; for an adapter it is the kernel's name and
	// the number of the port: mlx5_0/1.
	Name    string      `json:"name"`
	Kind    DeviceKind  `json:"kind"`
	Carrier Carrier     `json:"carrier"`
	State   DeviceState `json:"state"`
	// Error is why the device is not active.
	Error string `json:"error,omitempty"`
	// Note is what operators should know about a device that works.
	Note string `json:"note,omitempty"`
	// UDPPort and GIDs (IPv4 addresses mapped) are where peers reach the device; shm has
	// neither.
	UDPPort uint16       `json:"udp_port,omitempty"`
	GIDs    []netip.Addr `json:"gids,omitempty"`
	// MTU is the path MTU in bytes.
	MTU    int          `json:"mtu,omitempty"`
	Limits DeviceLimits `json:"limits,omitzero"`
	// Use holds what exists now, Counters what has happened since the start. Their names
	// depend on the kind.
	Use      map[string]uint64 `json:"use,omitempty"`
	Counters map[string]uint64 `json:"counters,omitempty"`
}

// DeviceLimits are the maximum capabilities of a device (ibv_query_device).
type DeviceLimits struct {
	Vectors    int    `json:"vectors"`
	MaxQP      int    `json:"max_qp"`
	MaxQPWR    int    `json:"max_qp_wr"`
	MaxMR      int    `json:"max_mr"`
	MaxMRSize  uint64 `json:"max_mr_size"`
	MaxMsgSize uint64 `json:"max_msg_size"`
}

// DeviceState says whether a device can be used.
type DeviceState string

// The device states: active works, down has no network now, failed could not be used, absent
// is not on this host or not in this version.
const (
	DeviceActive DeviceState = "active"
	DeviceDown   DeviceState = "down"
	DeviceFailed DeviceState = "failed"
	DeviceAbsent DeviceState = "absent"
)
