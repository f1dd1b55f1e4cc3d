// Package flow is the life of one connection, without I/O and clock: a [Core] is told what
// happens, and returns what is to be done. The shard of the connection owns it, executes
// its actions and moves the bytes; where both directions stand is in the core's [Ledger],
// and nowhere else.
//
// What happens: the handshake advances or gives up, a record comes, the wire leg or a
// direction of the app leg ends, the link fails or is drained, a timer is due, a SYN
// replaces the connection, the programs return it to the kernel, the gateway cancels
// it. Every phase is reached by a row of one table, whose end has a reason (given by
// its cause, or the one that stands here) and a counter:
//
//	PHASE       EVENT         ─► NEXT        COUNTER              REASON
//	accepted    negotiates    ─► negotiating -
//	negotiating completes     ─► completing  -
//	handshake   carries       ─► carrying    carried
//	carrying    ends          ─► closing     -
//	carried     over          ─► closed      ended
//	carried     raw over      ─► closed      ended
//	any         aborts        ─► aborted     ended
//	any         refuses       ─► aborted     fallback of a server
//	any         refuses mute  ─► aborted     fallback of a server
//	any         declines      ─► released    fallback
//	any         declines mute ─► released    fallback
//	any         releases      ─► released    fallback
//	handshake   replaces      ─► released    fallback             client_gone
//	carried     replaces      ─► aborted     ended                client_gone
//	any         goes native   ─► released    ended
//	any         vanishes      ─► released    fallback
//	handshake   cancels       ─► released    fallback
//	handshake   panics        ─► aborted     fallback             internal_error
//	carried     panics        ─► aborted     ended                internal_error
//
// handshake: accepted, negotiating or completing. carried: carrying or closing.
//
// The bytes of a direction and its end are the ledger's: TxPhase and RxPhase. Records are
// exchanged as long as the connection is carried by a link or by the relay.
//
// The one trap: actions are done in order, and doing one may tell the core of something
// else that has happened, whose actions come first.
package flow
