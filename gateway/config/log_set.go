package config

import (
	"fmt"
	"strings"
)

// With returns a copy in which the named field, such as log.level, has another value. The
// error is a FieldError: the value is invalid, or the field takes a restart.
func (l Log) With(field, value string) (Log, error) {
	var err error
	switch field {
	case "log.level":
		err = pick(&l.Level, value, logLevels())
	case "log.access":
		err = pick(&l.Access, value, accessLogs())
	default:
		err = fmt.Errorf("takes a restart; at once can be changed: %s", strings.Join(LogSettings(), ", "))
	}
	if err != nil {
		return Log{}, &FieldError{Path: field, Msg: err.Error()}
	}
	return l, nil
}

// LogSettings lists the fields that With can change.
func LogSettings() []string { return []string{"log.level", "log.access"} }
