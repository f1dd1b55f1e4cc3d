package broker

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/inprocess"
)

// End is what is known about one end. The broker knows the ends that asked it. Others appear only in slabs: an earlier
// broker promoted them, or they are native for good. The Socket of those is what the library says.
type End struct {
	Process Process
	Socket  Socket
	Tag     uint32
	Since   time.Time // when it asked; zero for an end known from a slab only
	ID      uint64    // of the connection; 0 while the end waits
	Side    uint32
	// Report is what the library says. For an end that waits, the broker fills it in.
	Report inprocess.Report
	// Resident is how many bytes both memories of the connection hold; -1 if unknown.
	Resident int64
	// Carrier is what carries a connection between hosts; empty for one within this host, or an end that waits.
	Carrier string
	// Cause is why the end has no carrier to another host, or has lost it.
	Cause Cause
	// SentBack is why Review makes the end send by the kernel.
	SentBack inprocess.Why

	slab slabKey
}

// Snapshot lists the ends that asked, are promoted, or are native for good, and the counters as of one moment.
type Snapshot struct {
	Counters  Counters
	Processes []Process // that have sent Hello
	Ends      []End
}

// Counters returns the current counters.
func (b *Broker) Counters() Counters {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.counters()
}

// Processes returns the processes that have sent Hello.
func (b *Broker) Processes() []Process {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := make([]Process, 0, len(b.clients))
	for c := range b.clients {
		if c.news != nil {
			list = append(list, c.process)
		}
	}
	return list
}

func (b *Broker) counters() Counters {
	c := b.core
	return Counters{
		Processes: len(c.members), Waiting: c.waiting.Len(), Conns: len(c.conns), Memory: c.memory, Held: len(c.held) + len(c.left),
		Totals: c.counts,
	}
}

// snapshotEntries bounds how many slab entries one snapshot reads.
const snapshotEntries = 1 << 20

// slabEnds are the ends of one slab, by entry.
type slabEnds struct {
	slab    slab
	process Process
	known   map[uint32]int // index in Snapshot.Ends

	sentBack sentBack
}

// Snapshot lists all ends. The libraries' reports are read after the rest, and not all at one moment. Only its counters
// have the promoted connections of earlier brokers among Conns: those are known from the reports.
func (b *Broker) Snapshot() Snapshot {
	s, ends, slabs, over := b.known()
	b.resident(s.Ends, ends)
	s.readSlabs(slabs, over)
	b.mu.Lock()
	defer b.mu.Unlock()
	others := map[uint64]struct{}{}
	for i := range s.Ends {
		e := &s.Ends[i]
		if !e.Since.IsZero() {
			continue
		}
		s.Counters.MovedBytes += b.core.noteOther(e.Report)
		if e.ID != 0 && b.core.conns[e.ID] == nil && e.Report.State == inprocess.StatePromoted {
			others[e.ID] = struct{}{}
		}
	}
	s.Counters.Conns += len(others)
	return s
}

// RingBytes returns how many bytes the rings of live connections have moved, in both directions, as their libraries
// say. Added to the MovedBytes counter, it is the total since the broker began.
func (s *Snapshot) RingBytes() uint64 {
	conns := map[uint64]uint64{}
	for i := range s.Ends {
		if e := &s.Ends[i]; e.known() {
			conns[e.ID] = max(conns[e.ID], e.Report.TxRing+e.Report.RxRing)
		}
	}
	var n uint64
	for _, moved := range conns {
		n += moved
	}
	return n
}

// readSlabs adds what the libraries say. A process that has died says nothing any more, but while another has the same
// slab, its ends still seem promoted: those of a connection that is over are left out.
func (s *Snapshot) readSlabs(slabs map[slabKey]*slabEnds, over func(id uint64) bool) {
	left := snapshotEntries
	for _, of := range slabs {
		left -= of.slab.each(left, func(index uint32, r inprocess.Report) {
			at, known := of.known[index]
			switch {
			case known && r.ID == s.Ends[at].ID && r.ID != 0:
				s.Ends[at].Report = r
			case !known && r.State >= inprocess.StateMapped && !(r.Mapped() && over(r.ID)):
				e := saidEnd(of.process, index, r)
				e.SentBack, e.slab = of.sentBack[index], of.slab.key
				s.Ends = append(s.Ends, e)
			}
		})
	}
}

// saidEnd returns an end of which only its library's report is known.
func saidEnd(p Process, index uint32, r inprocess.Report) End {
	return End{Process: p, Socket: Socket{Local: r.Local, Remote: r.Remote, Cookie: r.Cookie, Role: Role(r.Side)}, Tag: index, ID: r.ID, Report: r, Resident: -1}
}

// known returns what the broker itself knows, the slabs to read the rest from, and which connections are over.
func (b *Broker) known() (s Snapshot, ends []*end, slabs map[slabKey]*slabEnds, over func(id uint64) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s.Counters, over, slabs = b.counters(), b.core.over(), map[slabKey]*slabEnds{}
	for c := range b.clients {
		if c.news == nil {
			continue
		}
		s.Processes = append(s.Processes, c.process)
		of := slabs[c.slab.key]
		if of == nil {
			of = &slabEnds{slab: c.slab, process: c.process, known: map[uint32]int{}, sentBack: b.sentBack[c.slab.key]}
			slabs[c.slab.key] = of
		}
		for index, e := range c.member.ends {
			of.known[index] = len(s.Ends)
			i := e.info()
			i.SentBack, i.slab = of.sentBack[index], of.slab.key
			s.Ends, ends = append(s.Ends, i), append(ends, e)
		}
	}
	return s, ends, slabs, over
}

// residentAtOnce is how many ends are examined in one critical section.
const residentAtOnce = 128

// resident asks the kernel how much the memories of the ends hold.
func (b *Broker) resident(into []End, ends []*end) {
	for at := 0; at < len(ends); at += residentAtOnce {
		b.mu.Lock()
		for i := at; i < min(at+residentAtOnce, len(ends)); i++ {
			if p := ends[i].conn; p != nil && p.mem != nil {
				into[i].Resident = p.mem.resident()
			}
		}
		b.mu.Unlock()
	}
}

// info returns what the broker itself knows. The caller holds the lock.
func (e *end) info() End {
	i := End{
		Process: e.of.client.process, Socket: e.socket, Tag: e.tag, Since: e.since, Side: e.side, Resident: -1,
		Cause: e.cause, Report: inprocess.Report{State: inprocess.StateAsked},
	}
	if p := e.conn; p != nil {
		i.ID, i.Carrier, i.Report.State = p.id, p.carrier, inprocess.StateMapped
		if e.state == endGone {
			i.Report = e.said
		}
	}
	return i
}

// resident returns how many bytes both memories hold, or -1.
func (m *memories) resident() (n int64) {
	for i := range m {
		var st unix.Stat_t
		if err := unix.Fstat(m[i].Kept, &st); err != nil {
			return -1
		}
		n += st.Blocks * 512
	}
	return n
}

// ByWhy counts by reason.
type ByWhy [inprocess.WhyCount]uint64

// Counters are what a broker has now and has counted.
type Counters struct {
	Processes, Waiting, Conns int
	Memory                    int64 // reserved, including that of held connections
	Held                      int   // connections and processes that have ended while a process still has their memory
	Totals
}

// Totals are what a broker has counted since it was made.
type Totals struct {
	ProcessesTotal   uint64
	ProcessesRefused uint64 // by a limit
	Asks             uint64
	Promoted         uint64 // connections granted to both ends
	Broken           uint64 // of Promoted, those that ended with a protocol error of an end
	Undone           uint64 // matched, but could not be granted to both
	Expired          uint64 // ends that waited in vain
	Denied           ByWhy
	Returned         ByWhy       // ends that went back or will never ask, as their libraries say, or were sent back
	Caused           [256]uint64 // by Cause number: ends in neither of the above, since Cause tells more
	Strays           uint64      // Closed records for ends that were not known
	Misbehaved       uint64      // clients that sent something impossible
	QueueFull        uint64      // answers that were lost, as the client was owed too many
	RunsRefused      uint64
	MovedBytes       uint64 // ring bytes, both directions, of ended connections and of other brokers', as libraries say
}

// Add adds the totals of another broker.
func (t *Totals) Add(o *Totals) {
	t.ProcessesTotal += o.ProcessesTotal
	t.ProcessesRefused += o.ProcessesRefused
	t.Asks += o.Asks
	t.Promoted += o.Promoted
	t.Broken += o.Broken
	t.Undone += o.Undone
	t.Expired += o.Expired
	for why := range t.Denied {
		t.Denied[why] += o.Denied[why]
		t.Returned[why] += o.Returned[why]
	}
	for number := range t.Caused {
		t.Caused[number] += o.Caused[number]
	}
	t.Strays += o.Strays
	t.Misbehaved += o.Misbehaved
	t.QueueFull += o.QueueFull
	t.RunsRefused += o.RunsRefused
	t.MovedBytes += o.MovedBytes
}
