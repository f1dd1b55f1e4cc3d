package config

import (
	"fmt"
	"strconv"
	"strings"
)

// With returns a copy in which the field of that name, such as log.level, has another
// value. Its error is a FieldError: of a value, or of a field that takes a restart.
func (l Log) With(field, value string) (Log, error) {
	var err error
	switch field {
	case "log.level":
		err = pick(&l.Level, value, logLevels())
	case "log.access":
		err = pick(&l.Access, value, accessLogs())
	case "log.access_limit":
		n, errNumber := strconv.ParseUint(value, 10, 32)
		if errNumber != nil || n < 1 || n > maxAccessLimit {
			err = fmt.Errorf("%q is not a number from 1 to %d", value, maxAccessLimit)
		}
		l.AccessLimit = int(n)
	default:
		err = fmt.Errorf("takes a restart; at once can be changed: %s", strings.Join(LogSettings(), ", "))
	}
	if err != nil {
		return Log{}, &FieldError{Path: field, Msg: err.Error()}
	}
	return l, nil
}

// LogSettings lists the fields that With changes.
func LogSettings() []string { return []string{"log.level", "log.access", "log.access_limit"} }
