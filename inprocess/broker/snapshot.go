package broker

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/inprocess"
)

// End is what is known of one asking or promoted end.
type End struct {
	Process Process
	Socket  Socket
	Tag     uint32
	Since   time.Time // it asked
	ID      uint64    // of the connection, 0 while it waits
	Side    uint32
	// Report is what its library says; of an end that waits, that it waits.
	Report inprocess.Report
	// Resident is what both memories of the connection hold, -1 if that is not known.
	Resident int64
}

// Snapshot lists the asking and promoted ends, and the counters of one moment.
type Snapshot struct {
	Counters  Counters
	Processes []Process // that have said hello
	Ends      []End
}

// Counters are the broker's, as of now.
func (b *Broker) Counters() Counters {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.counters()
}

func (b *Broker) counters() Counters {
	c := b.core.counts
	c.Processes, c.Waiting, c.Conns = len(b.core.members), b.core.waiting.Len(), len(b.core.conns)
	c.Memory, c.Files = b.core.memory, b.kept
	return c
}

// Snapshot looks at all ends. What the libraries say is read after, and not for one moment.
func (b *Broker) Snapshot() Snapshot {
	b.mu.Lock()
	s := Snapshot{Counters: b.counters()}
	var ends []*end
	for c := range b.clients {
		if c.news == nil {
			continue
		}
		s.Processes = append(s.Processes, c.process)
		for _, e := range c.member.ends {
			ends = append(ends, e)
			s.Ends = append(s.Ends, e.info())
		}
	}
	b.mu.Unlock()
	said := readReports(ends)
	for i := range s.Ends {
		if e := &s.Ends[i]; said[i].ID == e.ID && e.ID != 0 {
			e.Report = said[i]
		}
	}
	return s
}

// info is what the broker itself knows. The caller holds the lock.
func (e *end) info() End {
	i := End{
		Process: e.of.client.process, Socket: e.socket, Tag: e.tag, Since: e.since, Side: e.side, Resident: -1,
		Report: inprocess.Report{State: inprocess.StateAsked},
	}
	if p := e.conn; p != nil {
		i.ID, i.Report.State = p.id, inprocess.StateMapped
		if p.mem != nil {
			i.Resident = p.mem.resident()
		}
	}
	return i
}

// resident is what both hold, in bytes.
func (m *memories) resident() (n int64) {
	for i := range m {
		var st unix.Stat_t
		if err := unix.Fstat(m[i].read, &st); err != nil {
			return -1
		}
		n += st.Blocks * 512
	}
	return n
}
