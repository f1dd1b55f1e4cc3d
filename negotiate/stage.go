package negotiate

// Stage is how far a handshake has come, in the words of the flow's states.
type Stage uint8

const (
	// StageAccepted: nothing was said.
	StageAccepted Stage = iota
	// StageNegotiating: PROPOSAL was sent, or is awaited or being answered.
	StageNegotiating
	// StageCompleting: ACCEPT was read or sent.
	StageCompleting
	// StageOver: there is a verdict.
	StageOver
)

// String returns the name of s.
func (s Stage) String() string {
	return [...]string{"accepted", "negotiating", "completing", "over"}[s]
}
