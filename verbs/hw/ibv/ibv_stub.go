//go:build !(cgo && hw)

package ibv

import (
	"fmt"

	"github.com/smcgw/smcgw/verbs"
)

// Load reports that the program was built without libibverbs.
func Load() (Library, error) {
	return nil, fmt.Errorf("this build drives no RDMA adapters, smcgw-hw does: %w", verbs.ErrNotSupported)
}
