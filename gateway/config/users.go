package config

import (
	"fmt"
	"os/user"
	"strconv"
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
