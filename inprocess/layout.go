package inprocess

// Magic and Version begin each shared memory.
const (
	Magic   = 0x49434d53 // "SMCI"
	Version = 1
)

// Sizes of what is shared.
const (
	Transitions = 16   // of a direction, published and not passed, at most
	RingAt      = 1024 // where the ring begins in an end's memory
	OrderMin    = 16   // log2 of the smallest ring
	OrderMax    = 22   // and of the largest
	Slack       = 64   // bytes of a ring that a producer leaves free, and by which pieces of a stream are no whole pages
	Slots       = 63   // epoll sets of a desk
	DeskSize    = 4096
	NewsSize    = 4096 + EntriesMax/8 // the file; its words are the first 40 bytes and, from NewsKernel on, a bit for each entry
	EntrySize   = 640                 // of an entry of the slab
	ReportSize  = 120                 // of the report that an entry begins with
	IndexBits   = 17                  // of a tag that are the index of the entry
	EntriesMax  = 1 << IndexBits
)

// EndSize is the size of an end's memory whose largest ring has 2^order bytes.
func EndSize(order uint32) int64 { return RingAt + 1<<order }

// Index is the entry of the slab that a tag names.
func Index(tag uint32) uint32 { return tag & (EntriesMax - 1) }

// Flags of an end.
const (
	Attached = 1 << iota // both mappings are made
	Recall               // asks the peer to send by the kernel
	Gone                 // reads no more
	Frozen               // reads the ring no further than tail
	Reset                // ends by a reset on purpose
	Shut                 // its FIN is of shutdown(): it reads on. Of a mirror: the peer's process has ended
	Asks                 // between hosts: wants to know what the peer has given to the kernel
)

// ArmSelf in arm asks for a token with the next byte, in that of a mirror for the bell; ArmRead there asks for it with the next
// byte that is read, too. Smaller values name a slot.
const (
	ArmSelf = 0xff
	ArmRead = 0xfe
)

// Where the words of an end's memory are (struct smci_end).
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
	EndTransitions = 192
	TransitionSize = 16  // r, k
	EndNonces      = 512 // of a mirror: that of the peer's OPEN, and that of the own one
	NonceSize      = 16
)

// Where the words of a desk are (struct smci_desk).
const (
	DeskMagic   = 0
	DeskVersion = 4
	DeskSlot    = 64
	SlotSize    = 64
)

// Where the words of the news page are (struct smci_news).
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
	NewsKernel    = 4096 // a bit for each entry of the slab, in words of 32 bits: its end sends by the kernel
)

// Bits of the news' off: what goes back to the kernel.
const (
	OffAll  = 1 << iota // everything, and nothing is promoted
	OffSome             // the ends whose bits are set
)

// Where the words of a report are (struct smci_report).
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
	ReportLocal    = 88 // addresses
	ReportRemote   = 104
)
