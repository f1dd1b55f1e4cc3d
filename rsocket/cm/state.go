package cm

// state is the state of a connection (IBTA vol. 1, 12.9). A transition is labelled "event / message sent"; on the right
// of a state are the events that do not change it:
//
//	active                                  passive
//
//	   dial / REQ                              REQ /
//	      │                                      │
//	      ▼                                      ▼
//	   reqSent     no answer / REQ            reqRcvd     REQ / MRA
//	      │        MRA / wait longer             │        reject / REJ ─► closed
//	      │ REP /                                │ accept / REP
//	      ▼                                      ▼
//	   repRcvd     REP / MRA                  repSent     no answer, REQ / REP
//	      │                                      │        MRA / wait longer
//	      │ queue pair connected / RTU           │ RTU or data /
//	      ▼                                      ▼
//	   established ◄──── one state ────► established      REP / RTU
//	      │                  │
//	      │ disconnect       │ DREQ / DREP
//	      │ / DREQ           │ REJ /
//	      ▼                  │
//	   dreqSent              │                            no answer / DREQ
//	      │ DREP, silence /  │
//	      │ DREQ / DREP      │
//	      ▼                  ▼
//	   timeWait ─► closed                                 DREQ / DREP, REQ / REJ
//
// The states above established also end in closed, by a REJ of the peer, or by an abort or a timeout, of which a REJ
// tells the peer.
type state uint8

const (
	stateReqSent     state = iota // active: waits for the REP
	stateRepRcvd                  // active: the queue pair is being connected
	stateReqRcvd                  // passive: waits for the application
	stateRepSent                  // passive: waits for the RTU
	stateEstablished              // both queue pairs are connected
	stateDreqSent                 // waits for the DREP
	stateTimeWait                 // over; answers what still arrives
	stateClosed                   // forgotten
)

var stateNames = [...]string{"REQ_SENT", "REP_RCVD", "REQ_RCVD", "REP_SENT", "ESTABLISHED", "DREQ_SENT", "TIMEWAIT", "CLOSED"}

// String returns the name that the Linux kernel gives to the state.
func (s state) String() string { return nameOf(stateNames[:], int(s), int(s), "STATE") }
