package broker

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Place identifies a broker's socket in the file system, where others can remove it or put their own in its place.
type Place struct {
	path    string
	dev     uint64
	ino     uint64
	created unix.Timespec
}

// PlaceOf returns the place of a socket that has just been made.
func PlaceOf(path string) (Place, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return Place{}, fmt.Errorf("socket %s: %w", path, err)
	}
	return Place{path, st.Dev, st.Ino, st.Mtim}, nil
}

// Ours reports whether the socket is still there.
func (p Place) Ours() bool {
	now, err := PlaceOf(p.path)
	return err == nil && now == p
}

// Remove removes the socket if it is still ours.
func (p Place) Remove() {
	if p.Ours() {
		_ = os.Remove(p.path)
	}
}
