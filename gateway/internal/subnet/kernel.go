package subnet

import (
	"context"
	"net/netip"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/rdmacm"
	"github.com/smcgw/smcgw/verbs/hw/sysfs"
)

// Host is what a host knows of the subnets that it is on.
type Host interface {
	// GIDOf returns the GID of the port below a network device of IPoIB; zero: it is not one.
	GIDOf(ifindex int) (verbs.GID, error)
	// Path asks for the path between two addresses of IPoIB.
	Path(ctx context.Context, local, remote netip.Addr) (rdmacm.Path, error)
}

// Kernel is what the kernel of this host knows.
type Kernel struct{}

// GIDOf implements Host.
func (Kernel) GIDOf(ifindex int) (verbs.GID, error) { return sysfs.IPoIB(ifindex) }

// Path implements Host.
func (Kernel) Path(ctx context.Context, local, remote netip.Addr) (rdmacm.Path, error) {
	return rdmacm.Resolve(ctx, local, remote)
}
