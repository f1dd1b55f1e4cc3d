package config

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// ErrRestart is what a configuration is refused with that cannot come into force
// while the gateway runs.
var ErrRestart = errors.New("takes a restart")

// reloadable empties what a running gateway can change; what is left of two
// configurations must be the same.
func (c Config) reloadable() Config {
	c.Mode, c.Policy, c.Security = "", nil, Security{}
	c.Rollout, c.Guard = Rollout{}, Guard{}
	c.Limits.MaxFlows, c.Limits.HandshakeTimeout, c.Limits.NewFlowsPerSecond = 0, 0, 0
	c.Log = Log{Format: c.Log.Format}
	return c
}

// fixedChanges names the fields in which next differs from c and that take a
// restart.
func (c Config) fixedChanges(next Config) (fields []string) {
	a, b := reflect.ValueOf(c.reloadable()), reflect.ValueOf(next.reloadable())
	for i := range a.NumField() {
		if !reflect.DeepEqual(a.Field(i).Interface(), b.Field(i).Interface()) {
			name, _, _ := strings.Cut(a.Type().Field(i).Tag.Get("yaml"), ",")
			fields = append(fields, name)
		}
	}
	return fields
}

// CheckReload reports everything that keeps next from coming into force behind c,
// the configuration of the start. datagrams and auto: what rules for those need is there.
func (c Config) CheckReload(next Config, datagrams, auto bool) error {
	var errs []error
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
	hasAuto := slices.ContainsFunc(next.Policy, func(r Rule) bool { return r.Action == ActionAuto })
	refuse(hasAuto && !auto, "policy: the first rule with action auto")
	refuse(next.Mode == ModeEnforce && next.WantsDatagrams() && !datagrams, "policy: the first rule that carries datagrams")
	return errors.Join(errs...)
}
