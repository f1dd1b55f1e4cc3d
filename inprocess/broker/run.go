package broker

import "github.com/smcgw/smcgw/inprocess"

// runKey identifies the processes of one "smcgw run". With the UID in it, users cannot see each other's.
type runKey struct {
	uid uint32
	id  uint64
}

// run sums up the processes of one runKey. Its reason and also methods do nothing on nil.
type run struct {
	key       runKey
	refs      int // clients that refer to it
	processes int // of those, the ones with a slab
	promoted  uint64
	conns     map[*conn]struct{} // connections with an end in it
	moved     uint64             // ring bytes of ended connections
	whys      ByWhy
}

func (r *run) reason(why inprocess.Why) {
	if r != nil {
		r.whys[why]++
	}
}

// also adds what libraries say at the end of their processes, for reasons that are not counted yet.
func (r *run) also(n ByWhy) {
	if r == nil {
		return
	}
	for why, n := range n {
		if r.whys[why] == 0 && inprocess.Why(why) != inprocess.WhyNone {
			r.whys[why] = n
		}
	}
}

// joinRun makes a client part of a run, once; ID 0 means no run. A client that would need a run over the limit is not
// part of any.
func (c *core) joinRun(m *member, id uint64) {
	if id == 0 || m.run != nil {
		return
	}
	key := runKey{m.uid, id}
	r := c.runs[key]
	if r == nil {
		if len(c.runs) >= c.limits.Runs {
			c.counts.RunsRefused++
			return
		}
		r = &run{key: key, conns: map[*conn]struct{}{}}
		c.runs[key] = r
	}
	r.refs++
	m.run = r
	if m.entries > 0 {
		r.processes++
	}
}

func (c *core) leaveRun(m *member) {
	r := m.run
	if r == nil {
		return
	}
	if m.entries > 0 {
		r.processes--
	}
	if r.refs--; r.refs == 0 {
		delete(c.runs, r.key)
	}
}

// runs returns the distinct runs of the connection's ends.
func (p *conn) runs() []*run {
	here := p.here()
	list := distinct(here[0].of.run, here[len(here)-1].of.run)
	kept := list[:0]
	for _, r := range list {
		if r != nil {
			kept = append(kept, r)
		}
	}
	return kept
}

// movedFor returns the bytes of the connection as its ends in run r say: their maximum, not the sum, since each end
// counts both directions.
func (p *conn) movedFor(r *run) (n uint64) {
	for _, e := range p.here() {
		if e.of.run == r {
			n = max(n, e.moved)
		}
	}
	return n
}

func (c *core) pairedRun(p *conn) {
	for _, r := range p.runs() {
		r.conns[p] = struct{}{}
	}
}

func (c *core) promotedRun(p *conn) {
	for _, r := range p.runs() {
		r.promoted++
	}
}

func (c *core) releasedRun(p *conn) {
	for _, r := range p.runs() {
		r.moved += p.movedFor(r)
		delete(r.conns, p)
	}
}

// ends returns the ends in the run of its connections.
func (r *run) ends() (list []*end) {
	for p := range r.conns {
		for _, e := range p.here() {
			if e.of.run == r {
				list = append(list, e)
			}
		}
	}
	return list
}

// count answers a question about the client's run.
func (c *core) count(m *member, why inprocess.Why) inprocess.Record {
	a := inprocess.Record{What: inprocess.Count, Why: why}
	r := m.run
	if why == inprocess.WhyNone && c.off { // programs do not ask meanwhile, so no reason is counted
		a.Side = 1
	}
	switch {
	case r == nil:
	case why != inprocess.WhyNone:
		a.ID, a.A = r.key.id, r.whys[why]
	default:
		a.ID, a.A, a.B, a.Tag = r.key.id, r.promoted, r.moved, uint32(r.processes)
		for p := range r.conns {
			a.B += p.movedFor(r)
		}
	}
	return a
}
