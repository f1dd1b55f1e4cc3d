package report

import (
	"slices"
	"strings"
)

// ends returns all counted ends, plus 0 for those that may come: an alert does not see an
// increase in a series that did not exist before.
func ends(counted []EndCount) []EndCount {
	counts := map[EndCount]uint64{}
	for _, side := range []Side{SideClient, SideServer} {
		counts[EndCount{Reason: string(EndClosed), Side: side}] = 0
		for _, r := range ResetReasons() {
			for _, by := range []string{DecidedLocal, DecidedRemote} {
				counts[EndCount{Reason: r.String(), Side: side, DecidedBy: by}] = 0
			}
		}
	}
	for _, n := range counted {
		count := n.Count
		n.Count = 0
		counts[n] += count
	}
	list := make([]EndCount, 0, len(counts))
	for n, count := range counts {
		n.Count = count
		list = append(list, n)
	}
	slices.SortFunc(list, func(a, b EndCount) int {
		return strings.Compare(a.Reason+string(a.Side)+a.DecidedBy, b.Reason+string(b.Side)+b.DecidedBy)
	})
	return list
}
