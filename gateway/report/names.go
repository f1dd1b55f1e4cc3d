package report

import "strings"

// Mode is what the gateway may touch.
type Mode string

// The modes: off decides nothing, observe decides and counts but touches
// nothing, enforce carries.
const (
	ModeOff     Mode = "off"
	ModeObserve Mode = "observe"
	ModeEnforce Mode = "enforce"
)

// Modes lists every Mode.
func Modes() []Mode { return []Mode{ModeOff, ModeObserve, ModeEnforce} }

// Action is what a rule does with a connection.
type Action string

// The actions: pass leaves it native, accelerate carries it when the peer can,
// auto only where RDMA adapters of both hosts do, or promotes it in process; it is about
// TCP only.
const (
	ActionPass       Action = "pass"
	ActionAccelerate Action = "accelerate"
	ActionAuto       Action = "auto"
)

// Way is how the bytes of a connection go: native by the kernel's connection, in process by
// rings between the two programs, steered through gateways. A rule is about one of the last
// two, or about any.
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

// Proto is the protocol a rule is about.
type Proto string

// The protocols. Their names are also those of ConnInfo.Proto.
const (
	ProtoTCP Proto = "tcp"
	ProtoUDP Proto = "udp"
)

// Direction is the side of this host that a rule is about.
type Direction string

// The directions. Those of one side are called as the [Side].
const (
	DirectionBoth   Direction = "both"
	DirectionClient Direction = Direction(SideClient)
	DirectionServer Direction = Direction(SideServer)
)

// DeviceKind is an RDMA device as the configuration names it.
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

// carrierPrefix makes the name of a carrier from that of its device.
const carrierPrefix = "rdma-"

// Carrier is the name under which flows on this device are reported.
func (d DeviceKind) Carrier() Carrier { return Carrier(carrierPrefix + string(d)) }

// Carrier is what carries a flow's bytes, as users see it.
type Carrier string

// The carriers. CarrierNone is what a flow has before one is chosen and what
// native connections keep.
const (
	CarrierNone  Carrier = ""
	CarrierShm   Carrier = "rdma-shm"
	CarrierSoft  Carrier = "rdma-soft"
	CarrierHW    Carrier = "rdma-hw"
	CarrierIB    Carrier = "rdma-ib"
	CarrierRelay Carrier = "relay"
)

// Carriers lists every Carrier but CarrierNone.
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

// JoinCarriers names carriers in a text.
func JoinCarriers(list []Carrier) string {
	text := make([]string, len(list))
	for i, c := range list {
		text[i] = string(c)
	}
	return strings.Join(text, ", ")
}
