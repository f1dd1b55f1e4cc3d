package report

import (
	"cmp"
	"maps"
	"slices"

	"github.com/smcgw/smcgw/negotiate"
)

// lacksRoom returns the reasons by which an alert counts connections.
func lacksRoom() []negotiate.Reason {
	return []negotiate.Reason{negotiate.ReasonNoMemory, negotiate.ReasonFlowLimit, negotiate.ReasonRateLimit, negotiate.ReasonGatewayStale}
}

// fallbacks returns all counted ones, plus 0 for those that an alert is about; see [ends].
func fallbacks(counted []FallbackCount) []FallbackCount {
	s := Snapshot{Fallbacks: slices.Clone(counted)}
	for _, side := range []Side{SideClient, SideServer} {
		for _, r := range lacksRoom() {
			s.AddFallback(r, side, 0)
		}
	}
	return s.Fallbacks
}

// demotions returns all counted ones, plus 0 for those that may come; see [ends].
func demotions(counted []DemotionCount) []DemotionCount {
	counts := map[DemotionCount]uint64{}
	for _, by := range Carriers() {
		for _, cause := range DemotionCauses() {
			if by != CarrierRelay { // demotions lead to the relay
				counts[DemotionCount{Carrier: by, Reason: cause}] = 0
			}
		}
	}
	for _, n := range counted {
		counts[DemotionCount{Carrier: n.Carrier, Reason: n.Reason}] += n.Count
	}
	list := make([]DemotionCount, 0, len(counts))
	for n, count := range counts {
		n.Count = count
		list = append(list, n)
	}
	slices.SortFunc(list, func(a, b DemotionCount) int {
		return cmp.Or(cmp.Compare(a.Carrier, b.Carrier), cmp.Compare(a.Reason, b.Reason))
	})
	return list
}

// handshakes returns the histograms of every carrier, empty if nothing was counted.
func handshakes(counted map[Carrier]HistogramSnapshot) map[Carrier]HistogramSnapshot {
	list := map[Carrier]HistogramSnapshot{}
	for _, by := range Carriers() {
		list[by] = NewSetupHistogram().Snapshot()
	}
	maps.Copy(list, counted)
	return list
}
