package adapter

import "github.com/smcgw/smcgw/verbs/verbstest"

// What rdma_rxe of Linux 6.12 does otherwise than the specification says.
const (
	flushesLocalErrors = "a bad L_Key of a send completes with WR_FLUSH_ERR instead of LOC_PROT_ERR"
	blamesReceives     = "a bad receive buffer completes with LOC_QP_OP_ERR instead of LOC_PROT_ERR"
	blamesLength       = "a message longer than its receive completes with LOC_QP_OP_ERR instead of LOC_LEN_ERR"
	raisesNoEvent      = "the event is not raised"
)

// Of FenceRepeated: a fenced request waits until no READ or atomic is under way
// (rxe_wqe_is_fenced), and those that are about to be repeated after it count (req_retry). It
// is not all of what repeats do to atomics, the rest being a matter of time: a message that
// comes twice is acknowledged with the PSN of the last request (duplicate_request), and an
// atomic there completes without its result. TestRXERetry has another. Gateways and rsockets
// neither fence nor fetch.

// deviations are the rules that an adapter's driver breaks, and how. Of
// hardware none was seen yet.
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
		"CQ/SolicitedError":                 "errors wake no queue that is armed for solicited events",
		"Async/CommunicationEstablished":    raisesNoEvent,
		"Async/AccessError":                 raisesNoEvent,
		"Async/RequestError":                raisesNoEvent,
	},
}
