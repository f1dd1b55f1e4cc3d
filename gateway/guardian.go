package gateway

import "os"

// Supervisor keeps the steering alive a little longer than the daemon, so that
// the gateway's sockets die first and the applications get their reset.
type Supervisor interface {
	// Protect hands duplicates of hold and of the heartbeat map to the
	// guardian and returns when it has them. It is called once, when the
	// datapath is open and before the first flow is carried. The files stay
	// the caller's and must stay open until Release: a guardian that dies is
	// replaced and gets them again.
	Protect(heartbeat *os.File, hold []*os.File) error
	// Release makes the guardian close its duplicates and returns when it has;
	// it is called on a clean stop, after the last flow has ended and before
	// the datapath is closed.
	Release() error
}
