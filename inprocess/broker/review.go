package broker

import "github.com/smcgw/smcgw/inprocess"

// sentBack are entries of a slab whose ends send by the kernel, and why. It is never changed, but replaced.
type sentBack map[uint32]inprocess.Why

// Review looks at all promoted ends again: those that judge has a reason against send by the kernel from now on, and those
// of the review before by the ring again. With the end of a connection that the broker knows goes the other one. A nil judge
// has nothing against any, and costs nothing. It returns how many ends are sent back that were not.
func (b *Broker) Review(judge func(End) inprocess.Why) (more int) {
	found := map[slabKey]sentBack{}
	if judge != nil {
		s, _, slabs := b.known()
		s.readSlabs(slabs)
		found = s.review(judge)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(found) == 0 && len(b.sentBack) == 0 {
		return 0
	}
	for key, ends := range found {
		if b.slabs[key] == 0 { // its processes have gone
			delete(found, key)
			continue
		}
		for index, why := range ends {
			if b.sentBack[key][index] == inprocess.WhyNone {
				b.core.counts.Returned[why]++
				more++
			}
		}
	}
	b.sentBack = found
	b.publish(false)
	return more
}

func (s *Snapshot) review(judge func(End) inprocess.Why) map[slabKey]sentBack {
	conns := map[uint64]inprocess.Why{}
	whys := make([]inprocess.Why, len(s.Ends))
	for i := range s.Ends {
		e := &s.Ends[i]
		if !e.known() && !e.Report.Mapped() {
			continue
		}
		if whys[i] = judge(*e); whys[i] != inprocess.WhyNone && e.known() {
			conns[e.ID] = whys[i]
		}
	}
	found := map[slabKey]sentBack{}
	for i := range s.Ends {
		e := &s.Ends[i]
		if why, also := conns[e.ID]; also && e.known() && whys[i] == inprocess.WhyNone {
			whys[i] = why
		}
		if whys[i] == inprocess.WhyNone {
			continue
		}
		if found[e.slab] == nil {
			found[e.slab] = sentBack{}
		}
		found[e.slab][inprocess.Index(e.Tag)] = whys[i]
	}
	return found
}

// known: the broker brought its connection together itself. Of others a process says what the number is.
func (e *End) known() bool { return e.ID != 0 && !e.Since.IsZero() }
