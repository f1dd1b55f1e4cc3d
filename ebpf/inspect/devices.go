package inspect

import (
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/smcgw/smcgw/ebpf/internal/netdev"
)

// Unoffering maps the names of the devices on which no offer can leave to the reason and, after a colon, what to do.
// infiniBand says that IPoIB may carry.
func Unoffering(links []netlink.Link, infiniBand bool) map[string]string {
	reasons := map[string]string{}
	for index, use := range netdev.UsesOf(links, infiniBand) {
		i := slices.IndexFunc(links, func(l netlink.Link) bool { return l.Attrs().Index == index })
		if use.Why != "" {
			reasons[links[i].Attrs().Name] = use.Why
		}
	}
	return reasons
}

// DeviceNotes returns notes about those of the named devices that exist in the namespace of the calling thread and
// carry no offers.
func DeviceNotes(names []string, infiniBand bool) (notes []string) {
	if len(names) == 0 {
		return nil
	}
	links, err := netlink.LinkList()
	if err != nil {
		return []string{fmt.Sprintf("devices: they could not be listed: %v", err)}
	}
	reasons := Unoffering(links, infiniBand)
	for _, name := range names {
		if why := reasons[name]; why != "" {
			notes = append(notes, fmt.Sprintf("devices: %s %s", name, why))
		}
	}
	return notes
}
