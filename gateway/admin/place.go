package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
)

// StepAside gives up the path of the admin socket and the metrics port to another gateway.
// This one is then found beside its path, and also at its path until the other one is there.
// If StepAside fails, StepBack undoes the part that was done.
func (s *Server) StepAside() error {
	s.scrape.release()
	s.reuse(false) // the next request must reach the next gateway
	if err := s.socket.moveAside(); err != nil {
		return fmt.Errorf("move admin socket: %w", err)
	}
	return nil
}

// StepBack undoes StepAside, except for what another gateway still holds. It can be repeated.
func (s *Server) StepBack() error {
	s.reuse(true)
	return errors.Join(s.socket.moveBack(), s.scrape.listen())
}

// predecessorPatience is how long the status waits for the report of a draining predecessor.
const predecessorPatience = 500 * time.Millisecond

// Predecessor queries the gateway that this one has taken over from, if it is still draining.
func (s *Server) Predecessor() *report.DrainInfo {
	if !s.socket.inPlace() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), predecessorPatience)
	defer cancel()
	c := NewClient(s.socket.path + config.DrainingSuffix)
	defer c.Close()
	st, err := c.Status(ctx)
	if err != nil {
		return nil
	}
	return st.Draining
}
