package metrics

import (
	"slices"
	"strings"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
)

// ends are all of the counted ends, and 0 for those that may come: an increase from a
// series that did not exist before does not show in an alert.
func ends(counted []admin.EndCount) []admin.EndCount {
	counts := map[admin.EndCount]uint64{}
	for _, side := range []config.Side{config.SideClient, config.SideServer} {
		counts[admin.EndCount{Reason: string(admin.EndClosed), Side: side}] = 0
		for _, r := range admin.ResetReasons() {
			for _, by := range []string{admin.DecidedLocal, admin.DecidedRemote} {
				counts[admin.EndCount{Reason: r.String(), Side: side, DecidedBy: by}] = 0
			}
		}
	}
	for _, n := range counted {
		count := n.Count
		n.Count = 0
		counts[n] += count
	}
	list := make([]admin.EndCount, 0, len(counts))
	for n, count := range counts {
		n.Count = count
		list = append(list, n)
	}
	slices.SortFunc(list, func(a, b admin.EndCount) int {
		return strings.Compare(a.Reason+string(a.Side)+a.DecidedBy, b.Reason+string(b.Side)+b.DecidedBy)
	})
	return list
}
