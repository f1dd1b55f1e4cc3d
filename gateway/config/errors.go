package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// FieldError is one error in a configuration.
type FieldError struct {
	// Path is the field, such as policy[2].match.ports[0]; empty if the error concerns the
	// file as a whole.
	Path string `json:"path"`
	// Line is the line of the field in the file, or 0 if it is not from a file.
	Line int `json:"line,omitempty"`
	// Msg says what is wrong, without the field's name.
	Msg string `json:"message"`
}

// Error renders "line 3: mode: what is wrong".
func (e *FieldError) Error() string {
	var b strings.Builder
	if e.Line > 0 {
		fmt.Fprintf(&b, "line %d: ", e.Line)
	}
	if e.Path != "" {
		b.WriteString(e.Path + ": ")
	}
	b.WriteString(e.Msg)
	return b.String()
}

// FieldErrors returns every FieldError in err, which may be a join, in file order.
func FieldErrors(err error) []*FieldError {
	var out []*FieldError
	collectFieldErrors(err, &out)
	slices.SortStableFunc(out, func(a, b *FieldError) int { return a.Line - b.Line })
	return out
}

func collectFieldErrors(err error, out *[]*FieldError) {
	if join, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range join.Unwrap() {
			collectFieldErrors(e, out)
		}
		return
	}
	if fe, ok := errors.AsType[*FieldError](err); ok {
		*out = append(*out, fe)
	}
}

// joinFieldErrors is errors.Join for a list; it returns nil if the list is empty.
func joinFieldErrors(list []*FieldError) error {
	errs := make([]error, len(list))
	for i, e := range list {
		errs[i] = e
	}
	return errors.Join(errs...)
}
