package kernel

import (
	"syscall"

	"github.com/smcgw/smcgw/rsocket/cm"
	"github.com/smcgw/smcgw/verbs/hw/rdmacm"
)

// event is an event of a connection.
type event struct {
	rdmacm.Event

	param connParam
}

// parse parses an answer to rdmacm.GetEvent.
func (e *event) parse(b []byte) error {
	param, err := e.Parse(b)
	if err != nil {
		return err
	}
	return e.param.parse(param)
}

// failure returns the error that an event reports, or nil.
func (e *event) failure() error {
	switch e.Kind {
	case rdmacm.Rejected:
		return &cm.RejectError{Reason: cm.RejectReason(e.Status), PrivateData: e.param.private}
	case rdmacm.Unreachable:
		if e.Errno() == syscall.ETIMEDOUT {
			return cm.ErrTimeout
		}
	case rdmacm.Disconnected:
		return cm.ErrDisconnected
	default:
	}
	return e.Failure()
}
