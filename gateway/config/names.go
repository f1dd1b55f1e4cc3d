package config

import (
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/internal/nearest"
)

// Switch says whether something is enabled.
type Switch string

// The values of a Switch.
const (
	SwitchOff Switch = "off"
	SwitchOn  Switch = "on"
)

// switches lists every Switch.
func switches() []Switch { return []Switch{SwitchOff, SwitchOn} }

// actions lists every Action.
func actions() []report.Action {
	return []report.Action{report.ActionPass, report.ActionAccelerate, report.ActionAuto}
}

// ruleWays lists the ways of rules.
func ruleWays() []report.Way {
	return []report.Way{report.WayAny, report.WayInProcess, report.WaySteered}
}

// protos lists every Proto.
func protos() []report.Proto { return []report.Proto{report.ProtoTCP, report.ProtoUDP} }

// directions lists every Direction.
func directions() []report.Direction {
	return []report.Direction{report.DirectionBoth, report.DirectionClient, report.DirectionServer}
}

// UsesAdapters reports whether a device on RDMA adapters is among the carriers.
func (c Config) UsesAdapters() bool {
	return slices.Contains(c.Carriers, report.DeviceHW) || slices.Contains(c.Carriers, report.DeviceIB)
}

// ParseCarrier parses the name of a carrier or of its device.
func ParseCarrier(text string) (report.Carrier, error) {
	if slices.Contains(report.DeviceKinds(), report.DeviceKind(text)) {
		return report.DeviceKind(text).Carrier(), nil
	}
	if !slices.Contains(report.Carriers(), report.Carrier(text)) {
		return report.CarrierNone, pick(new(string), text, append(texts(report.DeviceKinds()), texts(report.Carriers())...))
	}
	return report.Carrier(text), nil
}

// LogLevel is the lowest severity that is logged.
type LogLevel string

// The log levels.
const (
	LogDebug LogLevel = "debug"
	LogInfo  LogLevel = "info"
	LogWarn  LogLevel = "warn"
	LogError LogLevel = "error"
)

// Slog returns the level for package slog.
func (l LogLevel) Slog() slog.Level {
	var level slog.Level
	if err := level.UnmarshalText([]byte(l)); err != nil {
		return slog.LevelInfo
	}
	return level
}

// logLevels lists every LogLevel.
func logLevels() []LogLevel { return []LogLevel{LogDebug, LogInfo, LogWarn, LogError} }

// LogFormat is the format of log lines.
type LogFormat string

// The log formats.
const (
	LogAuto LogFormat = "auto"
	LogText LogFormat = "text"
	LogJSON LogFormat = "json"
)

// logFormats lists every LogFormat.
func logFormats() []LogFormat { return []LogFormat{LogAuto, LogText, LogJSON} }

// AccessLog says which connections get log lines of their own.
type AccessLog string

// The kinds of access log. AccessAll includes connections that stay native.
const (
	AccessOff     AccessLog = "off"
	AccessCarried AccessLog = "carried"
	AccessAll     AccessLog = "all"
)

// accessLogs lists every AccessLog.
func accessLogs() []AccessLog { return []AccessLog{AccessOff, AccessCarried, AccessAll} }

// booleans are what YAML and its users call a Switch.
var booleans = map[string]Switch{"no": SwitchOff, "false": SwitchOff, "yes": SwitchOn, "true": SwitchOn}

// meantBy returns the name that was probably meant, or "".
func meantBy[T ~string](name string, all []T) string {
	if s, is := booleans[strings.ToLower(name)]; is { // "no" is close to "on", too
		if slices.Contains(all, T(s)) {
			return string(s)
		}
		return ""
	}
	return nearest.Name(name, texts(all))
}

// pick stores name in *dst if it is one of all.
func pick[T ~string](dst *T, name string, all []T) error {
	if !slices.Contains(all, T(name)) {
		if meant := meantBy(name, all); meant != "" {
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

// Bytes is an amount of memory. Its text form is a decimal number with an optional binary
// unit: 4096, 64KiB, 512MiB, 2GiB, 1TiB.
type Bytes int64

// Binary units of Bytes.
const (
	KiB Bytes = 1 << 10
	MiB Bytes = 1 << 20
	GiB Bytes = 1 << 30
	TiB Bytes = 1 << 40
)

var byteUnits = []struct {
	name string
	size Bytes
}{{"TiB", TiB}, {"GiB", GiB}, {"MiB", MiB}, {"KiB", KiB}, {"B", 1}}

// String renders the amount in the largest unit that divides it.
func (b Bytes) String() string {
	for _, u := range byteUnits {
		if b != 0 && u.size > 1 && b%u.size == 0 {
			return strconv.FormatInt(int64(b/u.size), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

// MarshalText renders the amount as String does.
func (b Bytes) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// setText parses an amount. It refuses decimal units (MB), because they are ambiguous.
func (b *Bytes) setText(text string) error {
	num, unit := text, Bytes(1)
	for _, u := range byteUnits {
		if n, ok := strings.CutSuffix(num, u.name); ok {
			num, unit = strings.TrimRight(n, " "), u.size
			break
		}
	}
	v, err := strconv.ParseUint(num, 10, 63)
	if err != nil || Bytes(v) > math.MaxInt64/unit {
		return fmt.Errorf("%q is not an amount of memory such as 64KiB, 512MiB or 2GiB", text)
	}
	*b = Bytes(v) * unit
	return nil
}
