package config

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/smcgw/smcgw/internal/nearest"
)

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

// Switch is whether something is done.
type Switch string

// The positions of a switch.
const (
	SwitchOff Switch = "off"
	SwitchOn  Switch = "on"
)

// switches lists every Switch.
func switches() []Switch { return []Switch{SwitchOff, SwitchOn} }

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

// actions lists every Action.
func actions() []Action { return []Action{ActionPass, ActionAccelerate, ActionAuto} }

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

// ruleWays lists the ways of rules.
func ruleWays() []Way { return []Way{WayAny, WayInProcess, WaySteered} }

// Ways lists the ways of connections.
func Ways() []Way { return []Way{WayNative, WayInProcess, WaySteered} }

// Proto is the protocol a rule is about.
type Proto string

// The protocols. Their names are also those of ConnInfo.Proto.
const (
	ProtoTCP Proto = "tcp"
	ProtoUDP Proto = "udp"
)

// protos lists every Proto.
func protos() []Proto { return []Proto{ProtoTCP, ProtoUDP} }

// Direction is the side of this host that a rule is about.
type Direction string

// The directions. Those of one side are called as the [Side].
const (
	DirectionBoth   Direction = "both"
	DirectionClient Direction = Direction(SideClient)
	DirectionServer Direction = Direction(SideServer)
)

// directions lists every Direction.
func directions() []Direction { return []Direction{DirectionBoth, DirectionClient, DirectionServer} }

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

// UsesAdapters reports whether a device on RDMA adapters is among the carriers.
func (c Config) UsesAdapters() bool {
	return slices.Contains(c.Carriers, DeviceHW) || slices.Contains(c.Carriers, DeviceIB)
}

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

// ParseCarrier reads the name of a carrier, or that of its device.
func ParseCarrier(text string) (Carrier, error) {
	if slices.Contains(DeviceKinds(), DeviceKind(text)) {
		return DeviceKind(text).Carrier(), nil
	}
	if !slices.Contains(Carriers(), Carrier(text)) {
		return CarrierNone, pick(new(string), text, append(texts(DeviceKinds()), texts(Carriers())...))
	}
	return Carrier(text), nil
}

// Side is the role of this host in a connection.
type Side string

// The sides: client made the connection, server accepted it.
const (
	SideClient Side = "client"
	SideServer Side = "server"
)

// LogLevel is the least severity that is logged.
type LogLevel string

// The log levels.
const (
	LogDebug LogLevel = "debug"
	LogInfo  LogLevel = "info"
	LogWarn  LogLevel = "warn"
	LogError LogLevel = "error"
)

// Slog is the level as package slog has it.
func (l LogLevel) Slog() slog.Level {
	var level slog.Level
	if err := level.UnmarshalText([]byte(l)); err != nil {
		return slog.LevelInfo
	}
	return level
}

// logLevels lists every LogLevel.
func logLevels() []LogLevel { return []LogLevel{LogDebug, LogInfo, LogWarn, LogError} }

// LogFormat is the shape of the log lines.
type LogFormat string

// The log formats.
const (
	LogAuto LogFormat = "auto"
	LogText LogFormat = "text"
	LogJSON LogFormat = "json"
)

// logFormats lists every LogFormat.
func logFormats() []LogFormat { return []LogFormat{LogAuto, LogText, LogJSON} }

// AccessLog says which connections have lines of their own in the log.
type AccessLog string

// The kinds of access logs: all has connections that stay native, too.
const (
	AccessOff     AccessLog = "off"
	AccessCarried AccessLog = "carried"
	AccessAll     AccessLog = "all"
)

// accessLogs lists every AccessLog.
func accessLogs() []AccessLog { return []AccessLog{AccessOff, AccessCarried, AccessAll} }

// pick stores the name in *dst if it is one of all.
func pick[T ~string](dst *T, name string, all []T) error {
	if !slices.Contains(all, T(name)) {
		if meant := nearest.Name(name, texts(all)); meant != "" {
			return fmt.Errorf("%q is not one of %s (did you mean %s?)", name, orList(all), meant)
		}
		return fmt.Errorf("%q is not one of %s", name, orList(all))
	}
	*dst = T(name)
	return nil
}

// orList renders names as "a, b or c".
func orList[T ~string](all []T) string {
	s := texts(all)
	last := len(s) - 1
	if last < 1 {
		return strings.Join(s, "")
	}
	return strings.Join(s[:last], ", ") + " or " + s[last]
}

func texts[T ~string](names []T) []string {
	s := make([]string, len(names))
	for i, v := range names {
		s[i] = string(v)
	}
	return s
}

// JoinCarriers names carriers in a text.
func JoinCarriers(list []Carrier) string {
	text := make([]string, len(list))
	for i, c := range list {
		text[i] = string(c)
	}
	return strings.Join(text, ", ")
}
