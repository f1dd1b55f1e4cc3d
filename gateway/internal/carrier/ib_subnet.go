package carrier

import (
	"context"
	"net/netip"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/rdmacm"
	"github.com/smcgw/smcgw/verbs/hw/sysfs"
)

// subnet is what a host knows of the InfiniBand subnets that it is on.
type subnet interface {
	// gidOf returns the GID of the port below a network device of IPoIB; zero: it is not one.
	gidOf(ifindex int) (verbs.GID, error)
	// resolve asks for the path between two addresses of IPoIB.
	resolve(ctx context.Context, local, remote netip.Addr) (rdmacm.Path, error)
}

// kernelSubnets is what the kernel of this host knows.
type kernelSubnets struct{}

// gidOf implements subnet.
func (kernelSubnets) gidOf(ifindex int) (verbs.GID, error) { return sysfs.IPoIB(ifindex) }

// resolve implements subnet.
func (kernelSubnets) resolve(ctx context.Context, local, remote netip.Addr) (rdmacm.Path, error) {
	return rdmacm.Resolve(ctx, local, remote)
}
