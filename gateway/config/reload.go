package config

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/smcgw/smcgw/gateway/report"
)

// ErrRestart means that a configuration cannot take effect while the gateway runs.
var ErrRestart = errors.New("takes a restart")

// ErrStop means that a configuration cannot take effect even through a gateway that takes
// over.
var ErrStop = errors.New("takes a stop and a start")

// errAdmin concerns the socket by which gateways find each other: the successor finds the
// running gateway there, and later ones find the one that is draining.
var errAdmin = fmt.Errorf("admin: %w", ErrStop)

// reloadable clears what a running gateway can change, and what CheckReplace compares. What
// remains of two configurations must be equal.
func (c Config) reloadable() Config {
	c.Mode, c.Policy, c.Security, c.Admin = "", nil, Security{}, ""
	c.Rollout, c.Guard = Rollout{}, Guard{}
	c.Limits.MaxFlows, c.Limits.HandshakeTimeout, c.Limits.NewFlowsPerSecond = 0, 0, 0
	c.Log = Log{Format: c.Log.Format}
	p := &c.InProcess
	p.Calls, p.Spin, p.Shaped, p.BetweenHosts = 0, 0, "", ""
	return c
}

// fixedChanges returns the fields that differ between c and next and take a restart.
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

// alike compares fields. An empty list equals none, since defaults have been filled in.
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

// CheckReplace returns what keeps a gateway with next from taking over from one with c.
func (c Config) CheckReplace(next Config) error {
	if next.Admin != c.Admin {
		return errAdmin
	}
	return nil
}

// CheckReload returns everything that keeps next from taking effect after c, the
// configuration at start. datagrams: what rules for datagrams need is available.
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
	refuse(next.Limits.HandshakeTimeout > c.Limits.HandshakeTimeout, // the programs know it
		"limits.handshake_timeout: more than %v", c.Limits.HandshakeTimeout)
	refuse(next.Mode == report.ModeEnforce && next.WantsDatagrams() && !datagrams, "policy: the first rule that carries datagrams")
	return errors.Join(errs...)
}
