package verbs

import "strconv"

// QPState is the state of a queue pair (enum ibv_qp_state, same numbers).
//
//	RESET ─► INIT ─► RTR ─► RTS ◄──► SQE   (UC and UD only)
//
// ERR and RESET can be reached from every state.
type QPState uint8

// The states of a queue pair.
const (
	QPSReset QPState = iota // created or reset: nothing can be posted
	QPSInit                 // receives can be posted
	QPSRTR                  // ready to receive
	QPSRTS                  // ready to send
	QPSSQD                  // send queue drained: no device of this package goes there
	QPSSQE                  // send queue error (UC, UD): receives still work
	QPSErr                  // error: everything posted is flushed
)

var qpStateNames = [...]string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}

// String returns the standard name of the state.
func (s QPState) String() string { return nameOf(qpStateNames[:], int(s), "QPS") }

// QPType is the transport of a queue pair (enum ibv_qp_type, same numbers).
type QPType uint8

// The transports.
const (
	QPTGSI QPType = 1 // the general services interface, queue pair 1: UD, for management datagrams (enum ib_qp_type)
	QPTRC  QPType = 2 // reliable connection
	QPTUC  QPType = 3 // unreliable connection
	QPTUD  QPType = 4 // unreliable datagram
)

var qpTypeNames = [...]string{"", "GSI", "RC", "UC", "UD"}

// String returns the standard name of the transport.
func (t QPType) String() string { return nameOf(qpTypeNames[:], int(t), "QPT") }

// nameOf returns names[i], or prefix(i) for a number without a name.
func nameOf(names []string, i int, prefix string) string {
	if i >= 0 && i < len(names) && names[i] != "" {
		return names[i]
	}
	return prefix + "(" + strconv.Itoa(i) + ")"
}
