package resolution

import "net/netip"

// Table is the table of the socket addresses a datagram socket knows, by whole address as stock rsockets have
// it. It is bounded: the one not used for longest makes room, and is resolved again when it is used again.
type Table struct {
	devices Devices
	limit   int
	plain   bool // a new destination is taken for no rsocket
	known   map[netip.AddrPort]*destination
	// The ring of all by use: newest.older is the second newest, newest.newer the oldest.
	newest *destination
	wants  uint64 // how many handles were to be made
	Stats  Stats
}

// Stats counts what happened to destinations.
type Stats struct {
	Resolved     uint64 // queue pairs learned
	Proven       uint64 // of those, found to work by an echo
	Refreshed    uint64 // questions to peers that were not heard of
	Lost         uint64 // of those, without an answer
	Unresolvable uint64 // queue pairs no address handle could be made for
	Evicted      uint64 // destinations that made room
}

// New makes an empty table of up to limit destinations; plain: those that are not known
// are taken for no rsockets.
func New(devices Devices, limit int, plain bool) *Table {
	return &Table{devices: devices, limit: limit, plain: plain, known: map[netip.AddrPort]*destination{}}
}

// get finds a destination or makes it; local is as in Devices.Path.
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

// Clear forgets all.
func (t *Table) Clear() {
	for t.newest != nil {
		t.drop(t.newest)
	}
}

// Len is the number of destinations.
func (t *Table) Len() int { return len(t.known) }

// Peer returns the queue pair that is known of an address.
func (t *Table) Peer(addr netip.AddrPort) PeerQP {
	if d := t.known[addr]; d != nil {
		return d.peer()
	}
	return PeerQP{}
}
