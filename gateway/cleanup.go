package gateway

import (
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/promotion"
	"github.com/smcgw/smcgw/verbs/shm"
)

// Cleanup removes what a daemon that did not stop cleanly may have left behind, and returns
// the names of what it removed: the admin socket, the socket of programs with the library,
// and sockets in shm_dir. Programs, maps, devices and the namespace of the legs end with the
// processes that hold them. The off flag stays, since it is meant to outlive the daemon.
// Cleanup is idempotent, and fails with [admin.ErrDaemonAlive] while a daemon is alive.
func Cleanup(cfg config.Config) (removed []string, err error) {
	return admin.Cleanup(cfg, func() error { return shm.Sweep(cfg.ShmDir) }, func() error { return promotion.Remove(cfg.InProcess.Socket) })
}
