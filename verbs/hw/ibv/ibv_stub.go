//go:build !cgo

package ibv

import (
	"fmt"

	"github.com/smcgw/smcgw/verbs"
)

// Load reports that the program was built without cgo.
func Load() (Library, error) {
	return nil, fmt.Errorf("this build drives no RDMA adapters, smcgw-hw does: %w", verbs.ErrNotSupported)
}
