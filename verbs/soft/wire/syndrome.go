package wire

// Syndrome is the first byte of the AETH (IBTA vol. 1, chapter 9): the kind in
// bits 6:5, a value below. Bit 7 is reserved.
type Syndrome uint8

const (
	// ACK acknowledges; the credit count of 31 means that there is no flow control by credits.
	ACK Syndrome = 0x1f
	// RNR, combined with a timer code, means that the receiver is not ready.
	RNR Syndrome = 0x20

	NAKSequence          Syndrome = 0x60 // a PSN was skipped: go back to the one of the NAK
	NAKInvalidRequest    Syndrome = 0x61 // an operation that is out of place, too long or not allowed
	NAKRemoteAccess      Syndrome = 0x62 // a key that does not allow it
	NAKRemoteOperational Syndrome = 0x63 // the responder failed
	NAKInvalidRD         Syndrome = 0x64 // reliable datagrams only
)

const (
	syndromeKind  Syndrome = 0xe0
	syndromeValue Syndrome = 0x1f
)

// IsACK reports an acknowledgement, with any credit count.
func (s Syndrome) IsACK() bool { return s&syndromeKind == 0 }

// IsRNR reports that the receiver is not ready; RNRTimer returns for how long.
func (s Syndrome) IsRNR() bool { return s&syndromeKind == RNR }

// IsNAK reports a NAK, with a code above or a reserved one.
func (s Syndrome) IsNAK() bool { return s&syndromeKind == NAKSequence }

// RNRTimer returns the 5-bit timer code of an RNR NAK.
func (s Syndrome) RNRTimer() uint8 { return uint8(s & syndromeValue) }
