package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

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
