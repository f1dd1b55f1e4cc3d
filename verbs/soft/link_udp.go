package soft

import "errors"

// newUDPLink opens the sockets of one vector.
func newUDPLink(cfg *Config, vector int) (link, error) {
	return nil, errors.ErrUnsupported
}
