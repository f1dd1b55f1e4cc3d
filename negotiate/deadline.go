package negotiate

import (
	"encoding/binary"
	"time"

	"github.com/smcgw/smcgw/negotiate/internal/clc"
)

// Times of the handshake (docs/PROTOCOL.md "Deadlines").
const (
	// defaultHandshakeTimeout is the part of the budget that does not depend on the path.
	defaultHandshakeTimeout = 200 * time.Millisecond
	// completingTimeout is the least time that the client has for its local steps after it has read ACCEPT.
	completingTimeout = 500 * time.Millisecond
	// minProofTimeout is the least time that one carrier proof gets. It allows for busy processors, not for the path:
	// on two busy cores a proof that crosses two gateways took more than 20 ms, and 100 ms when forty connections began
	// at once on a network that lost some of the proofs.
	minProofTimeout = 200 * time.Millisecond
	// askTime is how long a client asks for an answer that has not come within its budget.
	askTime = 2 * time.Second
	// askInterval is the time between two ASKs. TCP retransmits what is lost; a new segment makes it do so sooner.
	askInterval = askTime / 4
	// appWaitTimeout bounds how long a client waits for accept(). The application's kernel retransmits its SYN for 127
	// seconds.
	appWaitTimeout = 130 * time.Second
	// maxHandOver bounds the time between two attempts to hand over the application's SYN.
	maxHandOver = 8 * time.Second
	// lastWordSlack is what a server adds to the time that the client has for its last word. A CONFIRM that comes after
	// the server has given up means a reset for the application, too. The slack costs nothing if the client is gone:
	// its kernel answers the server's keepalive with a reset.
	lastWordSlack = appWaitTimeout
	// maxBudget is the largest client budget that a server accepts; it takes a larger one as this.
	maxBudget = 30 * time.Second
)

// budget returns how long a client waits for an answer before it asks for one: timeout + 4 round trips, at most
// maxBudget.
func budget(timeout, synRTT time.Duration) time.Duration {
	return min(timeout+4*synRTT, maxBudget)
}

// completingTime returns how long the client's local steps after ACCEPT may take. It grows with the handshake timeout,
// which an operator raises for slow machines.
func completingTime(timeout time.Duration) time.Duration {
	return max(completingTimeout, timeout/4)
}

// proofTimeout returns how long the proof of one carrier may take.
func proofTimeout(timeout, synRTT time.Duration) time.Duration {
	return max(2*synRTT, minProofTimeout, timeout/10)
}

// serveTime returns how long a server may take between PROPOSAL and ACCEPT. Its answer must reach the client within the
// client's budget, part of which the PROPOSAL has used on its way, even if both hosts are busy: a client that learns
// the reason knows more than one that times out. It is never less than half of the budget.
func serveTime(budget, synRTT time.Duration) time.Duration {
	return max(budget-budget/8-2*synRTT, budget/2)
}

// lastWordTime returns how long after the PROPOSAL a server waits for CONFIRM or DECLINE.
func lastWordTime(budget, synRTT time.Duration) time.Duration {
	return budget + askTime + completingTimeout + 2*synRTT + lastWordSlack
}

// hurriedWordTime returns how long a server that is ending waits for the last word of a client that has ACCEPT, or is
// about to read it. It estimates the client's completingTime from the budget, which includes the client's handshake
// timeout.
func hurriedWordTime(budget, synRTT time.Duration) time.Duration {
	return 2*completingTime(budget) + 2*synRTT
}

// lingerTime returns how long a server that has declined waits for the client to end the wire leg.
func lingerTime(synRTT time.Duration) time.Duration {
	return completingTimeout + 2*synRTT
}

// guardLen is how many bytes of a PROPOSAL the guard compares: up to the end of the nonce.
const guardLen = HeaderLen + clc.TLVHeaderLen + 2

type guardVerdict uint8

const (
	guardUndecided guardVerdict = iota // so far b could be the beginning of a PROPOSAL
	guardClear                         // b cannot become a PROPOSAL of this connection
	guardMatch                         // b begins a PROPOSAL of this connection
)

// guard compares the first bytes that a client has sent with the fixed beginning of the PROPOSAL of this connection:
// eyecatcher, type and nonce TLV. Version and length may have any value. It decides at the first byte that differs, so
// the bytes of a native client are hardly ever held.
func guard(b []byte, nonce uint16) guardVerdict {
	pattern := guardPattern(nonce)
	for i := 0; i < len(b) && i < guardLen; i++ {
		if i >= 5 && i < HeaderLen {
			continue
		}
		if b[i] != pattern[i] {
			return guardClear
		}
	}
	if len(b) < guardLen {
		return guardUndecided
	}
	return guardMatch
}

func guardPattern(nonce uint16) (p [guardLen]byte) {
	binary.BigEndian.PutUint32(p[0:], clc.Eyecatcher)
	p[4] = uint8(TypeProposal)
	binary.BigEndian.PutUint16(p[8:], clc.TLVNonce)
	binary.BigEndian.PutUint16(p[10:], 2)
	binary.BigEndian.PutUint16(p[12:], nonce)
	return p
}
