package broker

import "github.com/smcgw/smcgw/inprocess"

// sentBack maps slab entries whose ends must send by the kernel to the reason. A map is never modified, only replaced.
type sentBack map[uint32]inprocess.Why

// Review judges all promoted ends again. Those for which judge returns a reason send by the kernel from now on, and
// those of the previous review that it no longer objects to use the ring again. If the broker knows the connection, its
// other end follows. A nil judge objects to none, and costs nothing. Review returns how many ends are newly sent back.
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
		if b.slabs[key] == 0 { // its processes have left
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

// known reports whether this broker paired the end's connection. Of others, the ID is only what a process says.
func (e *End) known() bool { return e.ID != 0 && !e.Since.IsZero() }
