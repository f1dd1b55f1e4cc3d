package report

import "strings"

// Mode is what the gateway may touch.
type Mode string

// The modes: off decides nothing; observe decides and counts but touches nothing; enforce
// carries.
const (
	ModeOff     Mode = "off"
	ModeObserve Mode = "observe"
	ModeEnforce Mode = "enforce"
)

// Modes lists every Mode.
func Modes() []Mode { return []Mode{ModeOff, ModeObserve, ModeEnforce} }

// Action is what a rule does with a connection.
type Action string

// The actions: pass leaves a connection native; accelerate carries it if the peer can; auto
// carries it only if RDMA adapters of both hosts do, or promotes it in process, and applies
// to TCP only.
const (
	ActionPass       Action = "pass"
	ActionAccelerate Action = "accelerate"
	ActionAuto       Action = "auto"
)

// Way is how the bytes of a connection travel: native over the kernel's connection, in
// process over rings between the two programs, or steered through gateways. A rule applies to
// one of the last two, or to any.
type Way string

// The ways.
const (
	WayAny       Way = "any"
	WayNative    Way = "native"
	WayInProcess Way = "in-process"
	WaySteered   Way = "steered"
)

// Ways lists the ways of connections.
func Ways() []Way { return []Way{WayNative, WayInProcess, WaySteered} }

// Proto is the protocol that a rule applies to.
type Proto string

// The protocols. The names are also the values of ConnInfo.Proto.
const (
	ProtoTCP Proto = "tcp"
	ProtoUDP Proto = "udp"
)

// Direction is the side of this host that a rule applies to.
type Direction string

// The directions. Those of one side have the name of the [Side].
const (
	DirectionBoth   Direction = "both"
	DirectionClient Direction = Direction(SideClient)
	DirectionServer Direction = Direction(SideServer)
)

// DeviceKind is a kind of RDMA device, as named in the configuration.
type DeviceKind string

// The device kinds.
const (
	DeviceShm  DeviceKind = "shm"
	DeviceSoft DeviceKind = "soft"
	DeviceHW   DeviceKind = "hw"
	DeviceIB   DeviceKind = "ib"
)

// DeviceKinds lists every DeviceKind.
func DeviceKinds() []DeviceKind { return []DeviceKind{DeviceShm, DeviceSoft, DeviceHW, DeviceIB} }

// carrierPrefix turns the name of a device into that of its carrier.
const carrierPrefix = "rdma-"

// Carrier returns the name under which flows on this device are reported.
func (d DeviceKind) Carrier() Carrier { return Carrier(carrierPrefix + string(d)) }

// Carrier is what carries a flow's bytes, as users see it.
type Carrier string

// The carriers. CarrierNone is the value before a carrier is chosen, and that of native
// connections.
const (
	CarrierNone  Carrier = ""
	CarrierShm   Carrier = "rdma-shm"
	CarrierSoft  Carrier = "rdma-soft"
	CarrierHW    Carrier = "rdma-hw"
	CarrierIB    Carrier = "rdma-ib"
	CarrierRelay Carrier = "relay"
)

// Carriers lists every Carrier except CarrierNone.
func Carriers() []Carrier {
	return []Carrier{CarrierShm, CarrierSoft, CarrierHW, CarrierIB, CarrierRelay}
}

// Side is the role of this host in a connection.
type Side string

// The sides: client made the connection, server accepted it.
const (
	SideClient Side = "client"
	SideServer Side = "server"
)

// JoinCarriers returns the names of carriers as text.
func JoinCarriers(list []Carrier) string {
	text := make([]string, len(list))
	for i, c := range list {
		text[i] = string(c)
	}
	return strings.Join(text, ", ")
}
