package config

import (
	"fmt"
	"os/user"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// User is a user of this host. In a file it is a name or a number.
type User struct {
	// Name is that in /etc/passwd; empty: the user was given by number.
	Name string
	// ID is the number, also of a name in a configuration that was read from a file.
	ID uint32
}

// MarshalText renders the user as the file has it.
func (u User) MarshalText() ([]byte, error) {
	if u.Name != "" {
		return []byte(u.Name), nil
	}
	return strconv.AppendUint(nil, uint64(u.ID), 10), nil
}

// UnmarshalYAML reads a name or a number.
func (u *User) UnmarshalYAML(n *yaml.Node) error { return fromText(n, u.setText) }

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

// lookupUser reads /etc/passwd: the program has no libc that would ask a directory service.
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

// UIDs lists the numbers of the users.
func (m Match) UIDs() (ids []uint32) {
	for _, u := range m.Users {
		ids = append(ids, u.ID)
	}
	return ids
}

// resolveUsers finds the numbers of users that are given by name, so that a configuration
// that was read is complete without the user database. One that is not known is an error:
// a rule with users must never be used without them.
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
