package adapter

import "github.com/smcgw/smcgw/verbs/verbstest"

// What rdma_rxe of Linux 6.12 does differently from the specification.
const (
	flushesLocalErrors = "a bad L_Key of a send completes with WR_FLUSH_ERR instead of LOC_PROT_ERR"
	blamesReceives     = "a bad receive buffer completes with LOC_QP_OP_ERR instead of LOC_PROT_ERR"
	blamesLength       = "a message longer than its receive completes with LOC_QP_OP_ERR instead of LOC_LEN_ERR"
	raisesNoEvent      = "the event is not raised"
)

// About FenceRepeated: a fenced request waits until no READ or atomic is under way (rxe_wqe_is_fenced), and those
// about to be retransmitted after it count, too (req_retry). That is not all that retransmissions do to atomics, but
// the rest depends on timing: a message that arrives twice is acknowledged with the PSN of the last request
// (duplicate_request), and an atomic there completes without its result. Gateways and rsockets use neither fences nor
// atomics.
//
// Gateways do meet this: if a peer acknowledges a WRITE while it is retransmitted and then is silent until the next
// timeout, as one without a processor for a while is, req_retry takes the WRITE for unfinished although nothing of it
// is left, and sends an empty one with the PSN of the next message. All that follows has the wrong PSN, so the peer
// refuses it with REM_INV_REQ_ERR. Linux 6.1 does so only most of the time.

// deviations lists the rules that an adapter's driver breaks, and how. None has been seen on hardware yet.
var deviations = map[string]map[string]string{
	"rxe": {
		"Error/LocalKey":                    flushesLocalErrors,
		"Domain/ForeignLocalKey":            flushesLocalErrors,
		"Domain/ClosedLocalRegion":          flushesLocalErrors,
		"Domain/LocalRange":                 flushesLocalErrors,
		"UC/SendQueueError":                 flushesLocalErrors,
		"UD/SendQueueError":                 flushesLocalErrors,
		"CQ/SelectiveSignalingOfTransports": flushesLocalErrors,
		"Async/NoneOnFlush":                 flushesLocalErrors,
		"Send/SendToBadBuffer":              blamesReceives,
		"Domain/ForeignReceiveKey":          blamesReceives,
		"Domain/ReadOnlyReceive":            blamesReceives,
		"UC/BadBuffer":                      blamesReceives,
		"UD/BadBuffer":                      blamesReceives,
		"Send/SendTooLong":                  blamesLength,
		"UD/TooLong":                        "a datagram above the path MTU completes with success instead of LOC_LEN_ERR",
		verbstest.FenceRepeated:             "a fenced message that is repeated waits for the atomic after it, for ever",
		"Async/CommunicationEstablished":    raisesNoEvent,
		"Async/AccessError":                 raisesNoEvent,
		"Async/RequestError":                raisesNoEvent,
	},
}
