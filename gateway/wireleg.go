package gateway

import (
	"context"
	"time"

	"github.com/smcgw/smcgw/netstack"
)

// wireLeg is what a flow needs of its connection to the peer's gateway: a
// *netstack.Conn.
type wireLeg interface {
	Read(p []byte) (int, error)
	Write(p []byte) (int, error)
	ReadContext(ctx context.Context, p []byte) (int, error)
	WriteContext(ctx context.Context, p []byte) (int, error)
	SetNotify(fn func())
	SetKeepalive(idle, interval time.Duration, count int) error
	Vitals() (written, heard uint64)
	MarkCarrying()
	QuickACK()
	CloseWrite() error
	Close() error
	Abort()
	Forget()
}

var _ wireLeg = (*netstack.Conn)(nil)
