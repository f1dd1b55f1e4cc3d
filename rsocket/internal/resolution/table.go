package resolution

import "net/netip"

// Table holds the socket addresses that a datagram socket knows, keyed by the whole address as in stock rsockets. It is
// bounded: the least recently used entry is evicted, and resolved again when it is used again.
type Table struct {
	devices Devices
	limit   int
	plain   bool // new destinations are assumed not to be rsockets
	known   map[netip.AddrPort]*destination
	// newest is the head of a ring ordered by last use: newest.older is the second newest, newest.newer the oldest.
	newest *destination
	wants  uint64 // number of Wants ever returned
	Stats  Stats
}

// Stats counts what happened to destinations.
type Stats struct {
	Resolved     uint64 // queue pairs learned
	Proven       uint64 // queue pairs proved by an echo
	Refreshed    uint64 // questions to silent peers
	Lost         uint64 // questions to silent peers without an answer
	Unresolvable uint64 // queue pairs for which no address handle could be made
	Evicted      uint64 // destinations evicted
}

// New returns an empty table of up to limit destinations. plain means that unknown destinations are assumed not to be
// rsockets.
func New(devices Devices, limit int, plain bool) *Table {
	return &Table{devices: devices, limit: limit, plain: plain, known: map[netip.AddrPort]*destination{}}
}

// get returns a destination, adding it if needed; local is as in Devices.Path.
func (t *Table) get(addr netip.AddrPort, local netip.Addr) *destination {
	if d := t.known[addr]; d != nil {
		t.use(d)
		return d
	}
	if len(t.known) >= t.limit {
		t.Stats.Evicted++
		t.drop(t.newest.newer)
	}
	d := &destination{addr: addr, Path: t.devices.Path(local, addr)}
	if t.plain {
		d.state = destPlain
	}
	t.known[addr] = d
	t.link(d)
	return d
}

// use makes d the newest.
func (t *Table) use(d *destination) {
	if t.newest != d {
		t.unlink(d)
		t.link(d)
	}
}

func (t *Table) link(d *destination) {
	if t.newest == nil {
		d.newer, d.older = d, d
	} else {
		oldest := t.newest.newer
		d.older, d.newer = t.newest, oldest
		t.newest.newer, oldest.older = d, d
	}
	t.newest = d
}

func (t *Table) unlink(d *destination) {
	d.newer.older, d.older.newer = d.older, d.newer
	if t.newest == d {
		t.newest = d.older
	}
	if d.older == d {
		t.newest = nil
	}
	d.newer, d.older = nil, nil
}

func (t *Table) drop(d *destination) {
	d.forgetPeer()
	t.unlink(d)
	delete(t.known, d.addr)
}

// Clear removes all destinations.
func (t *Table) Clear() {
	for t.newest != nil {
		t.drop(t.newest)
	}
}

// Len returns the number of destinations.
func (t *Table) Len() int { return len(t.known) }

// Peer returns the known queue pair of an address.
func (t *Table) Peer(addr netip.AddrPort) PeerQP {
	if d := t.known[addr]; d != nil {
		return d.peer()
	}
	return PeerQP{}
}
