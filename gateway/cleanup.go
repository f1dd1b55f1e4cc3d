package gateway

import (
	"os"
	"path/filepath"
	"slices"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/verbs/shm"
)

// Cleanup removes what a daemon that did not stop properly may have left, and returns the
// names of that: its admin socket, and sockets in shm_dir. Programs, maps, devices and the
// namespace of the legs need no cleaning, they end with the processes that hold them. The
// off flag stays: it is meant to outlive the daemon. Cleanup is idempotent,
// and refuses with [admin.ErrDaemonAlive] while a daemon lives.
func Cleanup(cfg config.Config) (removed []string, err error) {
	before := socketFiles(cfg)
	err = admin.Cleanup(cfg, func() error { return shm.Sweep(cfg.ShmDir) })
	after := socketFiles(cfg)
	return slices.DeleteFunc(before, func(name string) bool { return slices.Contains(after, name) }), err
}

// socketFiles lists those in the places of a configuration.
func socketFiles(cfg config.Config) (names []string) {
	places := []string{cfg.Admin, cfg.Admin + config.DrainingSuffix}
	entries, _ := os.ReadDir(cfg.ShmDir)
	for _, e := range entries {
		places = append(places, filepath.Join(cfg.ShmDir, e.Name()))
	}
	for _, name := range places {
		if fi, err := os.Lstat(name); err == nil && fi.Mode().Type() == os.ModeSocket {
			names = append(names, name)
		}
	}
	return names
}
