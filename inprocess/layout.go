package inprocess

// Magic and Version are the first words of each shared memory.
const (
	Magic   = 0x49434d53 // "SMCI"
	Version = 1
)

// Sizes of shared structures.
const (
	Transitions = 16      // most transitions of a direction that may be published and not yet passed
	RingAt      = 1024    // offset of the ring in an end's memory
	OrderMin    = 16      // log2 of the smallest ring
	OrderMax    = 22      // log2 of the largest ring
	Spill       = 4 << 20 // bytes that a library keeps to give to the kernel again, at most, beside its ring
	Slack       = 64      // bytes of a ring that stay free, and by which pieces of a stream fall short of whole pages
	Slots       = 63      // epoll sets of a desk
	DeskSize    = 4096
	NewsSize    = 4096 + EntriesMax/8 // the file: words in its first 40 bytes; from NewsKernel on, a bit for each entry
	EntrySize   = 640                 // of an entry of the slab
	ReportSize  = 120                 // of the report at the start of an entry
	IndexBits   = 17                  // low bits of a tag that are the index of the entry
	EntriesMax  = 1 << IndexBits
)

// EndSize returns the size of an end's memory whose largest ring has 2^order bytes.
func EndSize(order uint32) int64 { return RingAt + 1<<order }

// PairSize returns the size of both memories of a connection with such rings.
func PairSize(order uint32) int64 { return 2 * EndSize(order) }

// OrderWithin returns the order of the largest rings, at most most, with which both memories of a connection have no more
// than size bytes. It returns OrderMin if those have more.
func OrderWithin(size int64, most uint32) uint32 {
	for most > OrderMin && PairSize(most) > size {
		most--
	}
	return most
}

// Index returns the index of the slab's entry that a tag names.
func Index(tag uint32) uint32 { return tag & (EntriesMax - 1) }

// Flags of an end; lib/layout.h has their full meaning.
const (
	Attached = 1 << iota // both mappings exist
	Recall               // asks the peer to send through the kernel
	Gone                 // this end reads no more
	Frozen               // this end reads the ring no further than tail
	Reset                // this end resets on purpose
	Shut                 // the FIN is from shutdown(); this end still reads. In a mirror: the peer's process has ended
	Asks                 // between hosts: asks how much the peer gave to the kernel
	Left                 // in a mirror between hosts: the peer will not open its direction any more
	Whole                // with Reset for an unacknowledged frame: the kernel has all of it
)

// ArmSelf in arm asks for a token with the next byte, or in the arm of a mirror for the bell. ArmRead there asks for
// the bell also when the next byte is read. Smaller values name a slot.
const (
	ArmSelf = 0xff
	ArmRead = 0xfe
)

// Offsets in an end's memory (struct smci_end).
const (
	EndMagic       = 0
	EndVersion     = 4
	EndID          = 8
	EndSide        = 16
	EndOrderMax    = 20
	EndHead        = 64
	EndBase        = 72
	EndKsent       = 80
	EndOrder       = 88
	EndNx          = 92
	EndWant        = 96
	EndTail        = 128
	EndCx          = 136
	EndArm         = 140
	EndRoom        = 144
	EndFlags       = 148
	EndGot         = 160
	EndTransitions = 192
	TransitionSize = 16  // r, k
	EndNonces      = 512 // in a mirror: the nonce of the peer's OPEN, then that of this end's
	NonceSize      = 16
)

// Offsets in a desk (struct smci_desk).
const (
	DeskMagic   = 0
	DeskVersion = 4
	DeskSlot    = 64
	SlotSize    = 64
)

// Offsets in the news (struct smci_news).
const (
	NewsMagic     = 0
	NewsVersion   = 4
	NewsGrants    = 8
	NewsOff       = 12
	NewsCalls     = 16
	NewsSpin      = 20
	NewsBytes     = 24
	NewsPolicy    = 32
	NewsQuestions = 36
	NewsKernel    = 4096 // words of 32 bits, with a bit for each entry of the slab: its end sends through the kernel
)

// Bits of NewsOff: what goes back to the kernel.
const (
	OffAll  = 1 << iota // every end, and no end is promoted
	OffSome             // the ends whose bits from NewsKernel on are set
)

// Offsets in a report (struct smci_report).
const (
	ReportState    = 0
	ReportWhy      = 4
	ReportID       = 8
	ReportRxRing   = 16
	ReportTxRing   = 24
	ReportRxKernel = 32
	ReportTxKernel = 40
	ReportTokensRx = 48
	ReportTokensTx = 56
	ReportSpills   = 64
	ReportReturns  = 68
	ReportCookie   = 72
	ReportFamily   = 80
	ReportLocalAt  = 82 // ports
	ReportRemoteAt = 84
	ReportSide     = 86
	ReportLocal    = 88 // addresses
	ReportRemote   = 104
)
