package netstack

import "gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

// Vitals returns signs of life: how many bytes were taken to be sent, and how
// many segments have come from the peer. Both only grow. It is safe for
// concurrent use.
func (c *Conn) Vitals() (written, heard uint64) {
	if st, ok := c.ep.Stats().(*tcp.Stats); ok {
		heard = st.SegmentsReceived.Value()
	}
	return c.written.Load(), heard
}
