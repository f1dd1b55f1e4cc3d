package config

import (
	"fmt"
	"os/user"
	"slices"
	"strconv"
)

// userLookup resolves a user name.
type userLookup func(name string) (uint32, error)

// lookupUser reads /etc/passwd: the program has no libc that would ask a directory service.
func lookupUser(name string) (uint32, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return 0, fmt.Errorf("user %q is not in /etc/passwd: uids takes the number of any user", name)
	}
	id, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("user %q has no numeric id", name)
	}
	return uint32(id), nil
}

// userIDs returns the numeric users of the rule: UIDs and those of Users. A
// rule with users must never be used without them: it would match every user.
func (r Rule) userIDs(users userLookup) ([]uint32, error) {
	ids := slices.Clone(r.Match.UIDs)
	for _, name := range r.Match.Users {
		id, err := users(name)
		if err != nil {
			return nil, fmt.Errorf("rule %s: %w", r.Name, err)
		}
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// resolveUsers adds the numbers of all Users to UIDs, so that a configuration
// that was read is complete without the user database. Names are known to
// exist: the configuration is valid.
func (c Config) resolveUsers(users userLookup) {
	for i := range c.Policy {
		if ids, err := c.Policy[i].userIDs(users); err == nil {
			c.Policy[i].Match.UIDs = ids
		}
	}
}
