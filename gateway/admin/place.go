package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
)

// StepAside leaves the place of the admin socket, and the port of metrics, to another
// gateway: this one is found beside its place, and there too until the other one is. What of it
// was done when it fails StepBack undoes.
func (s *Server) StepAside() error {
	s.scrape.release()
	s.reuse(false) // the next request is to find the next gateway
	if err := s.socket.moveAside(); err != nil {
		return fmt.Errorf("move admin socket: %w", err)
	}
	return nil
}

// StepBack undoes StepAside, or as much of it as another gateway does not keep. It can be
// repeated.
func (s *Server) StepBack() error {
	s.reuse(true)
	return errors.Join(s.socket.moveBack(), s.scrape.listen())
}

// predecessorPatience is how long the status waits for what a gateway that drains
// says of itself.
const predecessorPatience = 500 * time.Millisecond

// Predecessor asks the gateway this one has taken over from, if it still drains.
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
