package negotiate

import "time"

// Times of the handshake (docs/PROTOCOL.md "Deadlines").
const (
	// defaultHandshakeTimeout is the part of the budget that does not depend on the path.
	defaultHandshakeTimeout = 200 * time.Millisecond
	// completingTimeout is the least bound of the client's local steps after ACCEPT was read.
	completingTimeout = 500 * time.Millisecond
	// minProofTimeout is the least time one carrier proof gets. It is not about the path but about processors: on two
	// busy cores a probe that crosses two gateways was seen to take more than 20 ms, and 100 ms where forty connections
	// begin at once on a network that loses some of the probes.
	minProofTimeout = 200 * time.Millisecond
	// askTime is how long a client that has got no answer within its budget asks for it.
	askTime = 2 * time.Second
	// askInterval is how often. The wire leg repeats what is lost; a new segment makes it do so sooner.
	askInterval = askTime / 4
	// appWaitTimeout bounds how long a client waits for accept(): the kernel of an application repeats its SYN for 127
	// seconds.
	appWaitTimeout = 130 * time.Second
	// maxHandOver bounds the time between two attempts to hand the application over.
	maxHandOver = 8 * time.Second
	// lastWordSlack is what a server adds to the time the client has for its last word: a CONFIRM that comes after the
	// server gave up is a reset under the application, too. A client that is gone resets the wire leg when it is asked
	// for a sign of life.
	lastWordSlack = appWaitTimeout
	// maxBudget bounds what a server believes a client's budget to be.
	maxBudget = 30 * time.Second
)

// budget is how long a client waits for an answer before it asks for one: timeout + 4 round trips, bounded by maxBudget.
func budget(timeout, synRTT time.Duration) time.Duration {
	return min(timeout+4*synRTT, maxBudget)
}

// completingTime bounds the client's local steps after ACCEPT was read. Where the operator gives a negotiation more time, for
// slow machines, they have a part of it.
func completingTime(timeout time.Duration) time.Duration {
	return max(completingTimeout, timeout/4)
}

// proofTimeout is how long the proof of one carrier may take.
func proofTimeout(timeout, synRTT time.Duration) time.Duration {
	return max(2*synRTT, minProofTimeout, timeout/10)
}

// serveTime is how long a server may take between PROPOSAL and ACCEPT: its answer must reach the client within the
// client's budget, part of which the PROPOSAL's way has used, also when both are busy: a client that is told why it is
// refused knows more than one that has lost patience. Never less than half of the budget.
func serveTime(budget, synRTT time.Duration) time.Duration {
	return max(budget-budget/8-2*synRTT, budget/2)
}

// lastWordTime is how long after the PROPOSAL a server waits for CONFIRM or DECLINE.
func lastWordTime(budget, synRTT time.Duration) time.Duration {
	return budget + askTime + completingTimeout + 2*synRTT + lastWordSlack
}

// hurriedWordTime is how long a server that ends waits for a client that has ACCEPT, or nearly: its budget holds the
// timeout that its own steps have a part of.
func hurriedWordTime(budget, synRTT time.Duration) time.Duration {
	return 2*completingTime(budget) + 2*synRTT
}

// lingerTime is how long a server that declined waits for the client to end the wire leg.
func lingerTime(synRTT time.Duration) time.Duration {
	return completingTimeout + 2*synRTT
}
