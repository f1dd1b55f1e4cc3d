package config

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/smcgw/smcgw/gateway/report"
)

// ErrRestart is what a configuration is refused with that cannot come into force
// while the gateway runs.
var ErrRestart = errors.New("takes a restart")

// ErrStop is what a configuration is refused with that cannot come into force by a gateway
// that takes over either.
var ErrStop = errors.New("takes a stop and a start")

// errAdmin is about the socket by which gateways find each other: the one that takes over, and
// later ones that which drains.
var errAdmin = fmt.Errorf("admin: %w", ErrStop)

// reloadable empties what a running gateway can change, and what CheckReplace compares; what
// is left of two configurations must be the same.
func (c Config) reloadable() Config {
	c.Mode, c.Policy, c.Security, c.Admin = "", nil, Security{}, ""
	c.Rollout, c.Guard = Rollout{}, Guard{}
	c.Limits.MaxFlows, c.Limits.HandshakeTimeout, c.Limits.NewFlowsPerSecond = 0, 0, 0
	c.Log = Log{Format: c.Log.Format}
	p := &c.InProcess
	p.Calls, p.Spin, p.Shaped, p.BetweenHosts = 0, 0, "", ""
	return c
}

// fixedChanges names the fields in which next differs from c and that take a
// restart.
func (c Config) fixedChanges(next Config) (fields []string) {
	a, b := reflect.ValueOf(c.reloadable()), reflect.ValueOf(next.reloadable())
	for i := range a.NumField() {
		if !alike(a.Field(i), b.Field(i)) {
			name, _, _ := strings.Cut(a.Type().Field(i).Tag.Get("yaml"), ",")
			fields = append(fields, name)
		}
	}
	return fields
}

// alike compares fields: a list that is empty is like none, as defaults are filled in.
func alike(a, b reflect.Value) bool {
	switch {
	case a.Kind() == reflect.Slice && a.Len() == 0:
		return b.Len() == 0
	case a.Kind() != reflect.Struct:
		return reflect.DeepEqual(a.Interface(), b.Interface())
	}
	for i := range a.NumField() {
		if !alike(a.Field(i), b.Field(i)) {
			return false
		}
	}
	return true
}

// CheckReplace reports what keeps a gateway with next from taking over from one with c.
func (c Config) CheckReplace(next Config) error {
	if next.Admin != c.Admin {
		return errAdmin
	}
	return nil
}

// CheckReload reports everything that keeps next from coming into force after c,
// the configuration of the start. datagrams: what rules for those need is there.
func (c Config) CheckReload(next Config, datagrams bool) error {
	errs := []error{c.CheckReplace(next)}
	refuse := func(is bool, format string, args ...any) {
		if is {
			errs = append(errs, fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), ErrRestart))
		}
	}
	for _, field := range c.fixedChanges(next) {
		refuse(true, "%s", field)
	}
	refuse(next.Limits.MaxFlows > c.Limits.MaxFlows, "limits.max_flows: more than %d", c.Limits.MaxFlows)
	refuse(next.Limits.HandshakeTimeout > c.Limits.HandshakeTimeout, // which the programs know
		"limits.handshake_timeout: more than %v", c.Limits.HandshakeTimeout)
	refuse(next.Mode == report.ModeEnforce && next.WantsDatagrams() && !datagrams, "policy: the first rule that carries datagrams")
	return errors.Join(errs...)
}
