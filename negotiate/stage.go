package negotiate

// Stage is how far a handshake has got. Its names are those of the states of a flow.
type Stage uint8

const (
	// StageAccepted: nothing has been sent or read.
	StageAccepted Stage = iota
	// StageNegotiating: the client has sent PROPOSAL; the server awaits or handles it.
	StageNegotiating
	// StageCompleting: ACCEPT was sent or read.
	StageCompleting
	// StageOver: there is a verdict.
	StageOver
)

// String returns the name of s.
func (s Stage) String() string {
	return [...]string{"accepted", "negotiating", "completing", "over"}[s]
}
