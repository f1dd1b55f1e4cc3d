package shm

import "sync/atomic"

// Offsets into a memfd. Both sides compute them from the number of vectors that the owner announced, so nothing about
// the layout is read from shared memory. Words written by different sides are 128 bytes apart, because adjacent cache
// lines are fetched in pairs.
const (
	pageSize   = 4096
	maxVectors = 64
	maxSlots   = 1 << 16    // queue pairs of a device
	firstSlot  = maxVectors // lower marks are for datagrams, by vector of the sender
	maxKeys    = 1 << 16    // memory regions of a peer

	offEpoch = 128  // u64, owner: number of the last grace period begun
	offAcks  = 1024 // u64 per vector of the other side: epoch it has passed
	offAreas = pageSize

	// A vector area. The owner of the memfd arms; the other side marks.
	areaArmed    = 0
	areaDriven   = 128 // u64, owner: 1 while a driver exists
	areaSummary  = 256
	areaBitmap   = pageSize
	summaryWords = maxSlots / 64 / 64
	bitmapWords  = maxSlots / 64
	areaSize     = areaBitmap + bitmapWords*8

	// Entries of the queue pair table: {gen<<32 | vector<<16 | log2(ring)<<8 | kind, block offset}.
	qpEntrySize  = 16
	kindRC       = 1 // has a ring for one partner of its kind
	kindDatagram = 2 // UD: the block is unused
	// Entries of the memory region table: {gen<<32 | access<<8 | valid, address, length, 0}.
	mrEntrySize = 32

	// A queue pair block, in the memfd of its owner, which consumes the ring.
	blkProd   = 0   // u64, other side: entries published
	blkCons   = 128 // u64, owner: entries consumed
	blkPosted = 136 // u64, owner: receives posted
	blkStatus = 144 // u64, owner: see status
	blkWant   = 256 // u64, other side: 1 = mark me when cons or posted moves
	blkClaim  = 264 // u64, both: the queue pair this one is connected to
	blkNews   = 272 // u64, other side: newsXxx bits
	blkRing   = 512

	ringEntrySize = 16
	minRing       = 16
	maxRing       = 1 << 15

	// A datagram ring, in the memfd of its consumer. There is one for every pair of vectors, so each has one producer and
	// one consumer.
	dgProd      = 0   // u64, other side: datagrams published
	dgCons      = 128 // u64, owner: datagrams consumed
	dgRing      = pageSize
	dgSlots     = 256
	dgHeader    = 64 // {source qpn<<32 | destination qpn, qkey<<32 | imm, length<<32 | flags}
	maxDatagram = 4096
	dgSlotSize  = dgHeader + maxDatagram
	dgSize      = dgRing + dgSlots*dgSlotSize
)

// blockWords is the part of a queue pair block before its ring.
type blockWords struct {
	prod   atomic.Uint64
	_      [blkCons - blkProd - 8]byte
	cons   atomic.Uint64
	posted atomic.Uint64
	status atomic.Uint64
	_      [blkWant - blkStatus - 8]byte
	want   atomic.Uint64
	claim  atomic.Uint64
	news   atomic.Uint64
	_      [blkRing - blkNews - 8]byte
}

// layout holds the offsets of the parts of one memfd.
type layout struct {
	qpTable uint64
	mrTable uint64
	dgrams  uint64
	arena   uint64
}

func newLayout(vectors int) layout {
	var l layout
	l.qpTable = offAreas + uint64(vectors)*areaSize
	l.mrTable = l.qpTable + maxSlots*qpEntrySize
	l.dgrams = l.mrTable + maxKeys*mrEntrySize
	l.arena = l.datagrams(vectors, 0)
	return l
}

func (l layout) area(vector int) uint64  { return offAreas + uint64(vector)*areaSize }
func (l layout) qpEntry(s uint32) uint64 { return l.qpTable + uint64(s)*qpEntrySize }
func (l layout) mrEntry(i uint32) uint64 { return l.mrTable + uint64(i)*mrEntrySize }

// datagrams returns the offset of the ring from a vector of the producer to one of the consumer.
func (l layout) datagrams(to, from int) uint64 { return l.dgrams + uint64(to*maxVectors+from)*dgSize }

func blockSize(log2 uint8) uint64    { return blkRing + ringEntrySize<<log2 }
func validLog2(log2 uint8) bool      { return 1<<log2 >= minRing && 1<<log2 <= maxRing }
func fits(off, n, limit uint64) bool { return off <= limit && n <= limit-off }
func slotOf(qpn uint32) uint32       { return qpn & (maxSlots - 1) }
func qpnOf(slot, gen uint32) uint32  { return gen&0xff<<16 | slot }
func roundUp(n, unit uint64) uint64  { return (n + unit - 1) / unit * unit }
