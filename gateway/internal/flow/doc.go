// Package flow is the life of one connection, without I/O or a clock: a [Core] is told what happens, and returns what
// is to be done. The connection's shard owns it, executes its actions and moves the bytes. How far both directions are
// is in the core's [Ledger], and nowhere else.
//
// Events are: the handshake advances or gives up, a record arrives, the wire leg or a direction of the app leg ends,
// the link fails or is drained, a timer is due, a SYN replaces the connection, the programs return it to the kernel,
// the gateway cancels it. Every phase is reached by a row of one table. A row that ends the connection has a reason
// (that of its cause, or else the one given here) and a counter:
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
// handshake stands for accepted, negotiating or completing; carried for carrying or closing.
//
// The bytes of a direction and its end are the ledger's: TxPhase and RxPhase. Records are exchanged while a link or the
// relay carries the connection.
//
// The trap: actions must be done in order, and doing one may tell the core of a further event, whose actions must be
// done first.
package flow
