package config

import (
	"errors"
	"os"
	"os/user"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// Account is a user with groups of this host, as a unit of systemd names them. The zero value
// is that of this process.
type Account struct {
	User string
	// Groups are those that the unit adds to the user's own.
	Groups []string
}

// loadKeys is LoadKeys as this account. Only root can take the place of another; everybody
// else, or if the host does not know the account, reads as itself. As another account it
// reports why a file cannot be read, which is not known of an account that was not tried.
func (a Account) loadKeys(path string) error {
	uid, gids, err := a.ids()
	if path == "" || a.User == "" || err != nil || os.Geteuid() != 0 {
		if _, err = LoadKeys(path); errors.Is(err, os.ErrPermission) {
			return nil
		}
		return err
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine, and its identity with it
		err := errors.Join(unix.Setgroups(gids), unix.Setfsgid(gids[0]), unix.Setfsuid(uid))
		if err == nil {
			_, err = LoadKeys(path)
		}
		done <- err
	}()
	return <-done
}

// ids returns the numbers of the account, the first group being the user's.
func (a Account) ids() (uid int, gids []int, err error) {
	u, err := user.Lookup(a.User)
	if err != nil {
		if u, err = user.LookupId(a.User); err != nil {
			return 0, nil, err
		}
	}
	groups, err := u.GroupIds()
	for _, name := range a.Groups {
		if g, err := user.LookupGroup(name); err == nil {
			name = g.Gid
		}
		groups = append(groups, name)
	}
	errs := []error{err}
	for _, id := range append([]string{u.Gid}, groups...) {
		gid, err := strconv.Atoi(id)
		gids, errs = append(gids, gid), append(errs, err)
	}
	uid, err = strconv.Atoi(u.Uid)
	return uid, gids, errors.Join(append(errs, err)...)
}
