package report

import (
	"cmp"
	"maps"
	"slices"

	"github.com/smcgw/smcgw/negotiate"
)

// lacksRoom are the reasons that an alert counts connections by.
func lacksRoom() []negotiate.Reason {
	return []negotiate.Reason{negotiate.ReasonNoMemory, negotiate.ReasonFlowLimit, negotiate.ReasonRateLimit, negotiate.ReasonGatewayStale}
}

// fallbacks are all of the counted ones, and 0 for those that an alert is about, as [ends].
func fallbacks(counted []FallbackCount) []FallbackCount {
	s := Snapshot{Fallbacks: slices.Clone(counted)}
	for _, side := range []Side{SideClient, SideServer} {
		for _, r := range lacksRoom() {
			s.AddFallback(r, side, 0)
		}
	}
	return s.Fallbacks
}

// demotions are all of the counted ones, and 0 for those that may come, as [ends].
func demotions(counted []DemotionCount) []DemotionCount {
	counts := map[DemotionCount]uint64{}
	for _, by := range Carriers() {
		for _, cause := range DemotionCauses() {
			if by != CarrierRelay { // where they go
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

// handshakes are those of every carrier, empty where nothing was counted.
func handshakes(counted map[Carrier]HistogramSnapshot) map[Carrier]HistogramSnapshot {
	list := map[Carrier]HistogramSnapshot{}
	for _, by := range Carriers() {
		list[by] = NewSetupHistogram().Snapshot()
	}
	maps.Copy(list, counted)
	return list
}
