package verbs

import "fmt"

// Masks with all required attributes of the transitions of an RC queue pair.
const (
	InitMask = QPAttrState | QPAttrPKeyIndex | QPAttrPort | QPAttrAccess
	RTRMask  = QPAttrState | QPAttrAV | QPAttrPathMTU | QPAttrDestQPN | QPAttrRQPSN | QPAttrMaxDestRDAtomic | QPAttrMinRNRTimer
	RTSMask  = QPAttrState | QPAttrTimeout | QPAttrRetryCnt | QPAttrRNRRetry | QPAttrSQPSN | QPAttrMaxRDAtomic
)

// Init moves a queue pair from RESET to INIT with the given rights for the peer.
func Init(qp QP, access Access) error {
	attr := QPAttr{State: QPSInit, Access: access, Port: 1}
	if err := qp.Modify(&attr, InitMask); err != nil {
		return fmt.Errorf("modify to INIT: %w", err)
	}
	return nil
}

// Connect moves an RC queue pair from INIT through RTR to RTS. attr carries the
// peer and the timers; its State is overwritten. A P_Key index of 0 leaves the
// partition as Init has set it. Only the loop of the queue pair's vector may call it.
func Connect(qp QP, attr QPAttr) error {
	rtr := RTRMask
	if attr.PKeyIndex != 0 {
		rtr |= QPAttrPKeyIndex
	}
	return toRTS(qp, attr, rtr, RTSMask)
}

// ConnectAttr returns the attributes that most connections use: the peer's queue pair, an infinite RNR retry,
// min_rnr_timer 12 (0.64 ms), timeout 14 (67 ms) and 7 retries, path MTU 4096.
func ConnectAttr(destQPN uint32) QPAttr {
	return QPAttr{
		DestQPNum: destQPN, PathMTU: MTU4096, MinRNRTimer: 12,
		Timeout: 14, RetryCnt: 7, RNRRetry: 7, MaxRDAtomic: 1, MaxDestRDAtomic: 1,
	}
}

// Masks with all required attributes of the transitions of other queue pairs.
const (
	UCRTRMask  = QPAttrState | QPAttrAV | QPAttrPathMTU | QPAttrDestQPN | QPAttrRQPSN
	UDInitMask = QPAttrState | QPAttrPKeyIndex | QPAttrPort | QPAttrQKey
	SQPSNMask  = QPAttrState | QPAttrSQPSN // UC and UD to RTS
)

// ConnectUC moves a UC queue pair from INIT through RTR to RTS, as Connect does.
func ConnectUC(qp QP, attr QPAttr) error {
	return toRTS(qp, attr, UCRTRMask, SQPSNMask)
}

// StartUD moves a UD or GSI queue pair from RESET to RTS. A caller that must post receives before has to move it to
// INIT itself.
func StartUD(qp QP, qkey, psn uint32) error {
	attr := QPAttr{State: QPSInit, Port: 1, QKey: qkey, SQPSN: psn}
	if err := qp.Modify(&attr, UDInitMask); err != nil {
		return fmt.Errorf("modify to INIT: %w", err)
	}
	return toRTS(qp, attr, QPAttrState, SQPSNMask)
}

func toRTS(qp QP, attr QPAttr, rtr, rts QPAttrMask) error {
	attr.State = QPSRTR
	if err := qp.Modify(&attr, rtr); err != nil {
		return fmt.Errorf("modify to RTR: %w", err)
	}
	attr.State = QPSRTS
	if err := qp.Modify(&attr, rts); err != nil {
		return fmt.Errorf("modify to RTS: %w", err)
	}
	return nil
}
