package gateway

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"unicode"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/verbs"
)

// DevicesSchema names the format of DeviceList.
const DevicesSchema = "smcgw.devices/v1"

// DeviceInfo describes one RDMA device of the gateway. A device has one port.
type DeviceInfo struct {
	// Name is the kind and a number: soft0, soft1.
	Name    string            `json:"name"`
	Kind    config.DeviceKind `json:"kind"`
	Carrier config.Carrier    `json:"carrier"`
	State   DeviceState       `json:"state"`
	// Error is why the device is not active.
	Error string `json:"error,omitempty"`
	// UDPPort and GIDs (IPv4 addresses mapped) are where peers reach it; shm has
	// neither.
	UDPPort uint16       `json:"udp_port,omitempty"`
	GIDs    []netip.Addr `json:"gids,omitempty"`
	// MTU is the path MTU in bytes.
	MTU    int          `json:"mtu,omitempty"`
	Limits DeviceLimits `json:"limits,omitzero"`
	// Use is what exists now, Counters what happened since the start. Their
	// names depend on the kind.
	Use      map[string]uint64 `json:"use,omitempty"`
	Counters map[string]uint64 `json:"counters,omitempty"`
}

// DeviceLimits are the most a device can do (ibv_query_device).
type DeviceLimits struct {
	Vectors    int    `json:"vectors"`
	MaxQP      int    `json:"max_qp"`
	MaxQPWR    int    `json:"max_qp_wr"`
	MaxMR      int    `json:"max_mr"`
	MaxMRSize  uint64 `json:"max_mr_size"`
	MaxMsgSize uint64 `json:"max_msg_size"`
}

// DeviceState tells whether a device can be used.
type DeviceState string

// The device states: active works, down has no network now, failed could not
// be opened, absent is not part of this version.
const (
	DeviceActive DeviceState = "active"
	DeviceDown   DeviceState = "down"
	DeviceFailed DeviceState = "failed"
	DeviceAbsent DeviceState = "absent"
)

// DeviceList is the document of devices.
type DeviceList struct {
	Schema  string       `json:"schema"`
	Devices []DeviceInfo `json:"devices"`
}

// describeDevice fills in what every device can tell. stats is a flat struct
// of numbers.
func describeDevice(name string, kind config.DeviceKind, dev verbs.Device, stats any) DeviceInfo {
	attr, port := dev.Attr(), dev.Port()
	info := DeviceInfo{
		Name: name, Kind: kind, Carrier: kind.Carrier(), State: DeviceActive,
		UDPPort: port.UDPPort, MTU: port.ActiveMTU.Bytes(),
		Limits: DeviceLimits{
			Vectors: attr.Vectors, MaxQP: attr.MaxQP, MaxQPWR: attr.MaxQPWR,
			MaxMR: attr.MaxMR, MaxMRSize: attr.MaxMRSize, MaxMsgSize: attr.MaxMsgSize,
		},
		Use: map[string]uint64{}, Counters: map[string]uint64{},
	}
	if port.State != verbs.PortActive {
		info.State = DeviceDown
	}
	for _, gid := range port.GIDs {
		info.GIDs = append(info.GIDs, netip.AddrFrom16(gid))
	}
	v := reflect.ValueOf(stats)
	for i := range v.NumField() {
		field := snakeCase(v.Type().Field(i).Name)
		into := info.Counters
		if slices.Contains(inUse[:], field) {
			into = info.Use
		}
		switch f := v.Field(i); f.Kind() {
		case reflect.Uint64:
			into[field] = f.Uint()
		case reflect.Int:
			into[field] = uint64(f.Int())
		default: // stats of devices have no other fields
		}
	}
	return info
}

// inUse are the numbers of devices that do not only grow.
var inUse = [...]string{"qps", "mrs", "cqs", "srqs", "memory", "peers"}

// snakeCase turns the name of a Go field into that of a counter: BellsSent into
// bells_sent, ICRCErrors into icrc_errors, QPs into qps.
func snakeCase(s string) string {
	var out strings.Builder
	r := []rune(strings.ReplaceAll(s, "RNRNAK", "RNRNak")) // two acronyms in a row
	for i := range r {
		if i > 0 && unicode.IsUpper(r[i]) && (unicode.IsLower(r[i-1]) || startsWord(r[i:])) {
			out.WriteByte('_')
		}
		out.WriteRune(unicode.ToLower(r[i]))
	}
	return out.String()
}

// startsWord: a capital and a small letter, unless that is the s of a plural.
func startsWord(r []rune) bool {
	if len(r) < 2 || !unicode.IsLower(r[1]) {
		return false
	}
	return r[1] != 's' || len(r) > 2 && unicode.IsLower(r[2])
}
