package config

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// User is a user of this host. In a file it is a name or an ID.
type User struct {
	// Name is the name in /etc/passwd; empty if the user was given by ID.
	Name string
	// ID is the user ID. In a configuration read from a file it is also set for users given
	// by name.
	ID uint32
}

// MarshalText renders the user as in the file.
func (u User) MarshalText() ([]byte, error) {
	if u.Name != "" {
		return []byte(u.Name), nil
	}
	return strconv.AppendUint(nil, uint64(u.ID), 10), nil
}

func (u *User) setText(text string) error {
	if text == "" {
		return fmt.Errorf("%q is neither the name nor the number of a user", text)
	}
	id, err := strconv.ParseUint(text, 10, 32)
	if *u = (User{ID: uint32(id)}); err != nil || !isDecimal(text) {
		*u = User{Name: text}
	}
	return nil
}

// userLookup resolves a user name.
type userLookup func(name string) (uint32, error)

// lookupUser reads /etc/passwd: the program has no libc that would query a directory service.
func lookupUser(name string) (uint32, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return 0, fmt.Errorf("user %q is not in /etc/passwd: any user can be given by number", name)
	}
	id, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("user %q has no numeric id", name)
	}
	return uint32(id), nil
}

// UIDs returns the IDs of the users.
func (m Match) UIDs() (ids []uint32) {
	for _, u := range m.Users {
		ids = append(ids, u.ID)
	}
	return ids
}

// resolveUsers finds the IDs of users given by name, so that the configuration no longer
// needs the user database. An unknown name is an error: a rule with users must never be
// applied without them.
func (c Config) resolveUsers(users userLookup) []*FieldError {
	k := &checker{}
	for i, r := range c.Policy {
		for j := range r.Match.Users {
			u := &r.Match.Users[j]
			if u.Name == "" {
				continue
			}
			var err error
			u.ID, err = users(u.Name)
			k.must(err == nil, fmt.Sprintf("policy[%d].match.users[%d]", i, j), "%v", err)
		}
	}
	return k.errs
}

// Account is a user with groups of this host, as a unit of systemd names them. The zero value
// is that of this process.
type Account struct {
	User string
	// Groups are those that the unit adds to the user's own.
	Groups []string
}

// loadKeys is LoadKeys as this account. Only root can take the place of another; any other
// user, or root if the host does not know the account, reads as itself. As another account it
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
