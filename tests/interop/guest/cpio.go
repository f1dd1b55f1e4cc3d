package guest

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path"
)

// Types of files in the mode of an archive member (inode(7)).
const (
	modeDir     = 0o040000
	modeFile    = 0o100000
	modeSymlink = 0o120000
)

// archive writes a cpio archive in the "newc" format, which the kernel unpacks
// as its first root file system (Documentation/driver-api/early-userspace/
// buffer-format.rst). Several may follow each other. Everything belongs to
// root.
type archive struct {
	w    *bufio.Writer
	at   int64
	dirs map[string]bool
}

func newArchive(w io.Writer) *archive {
	return &archive{w: bufio.NewWriterSize(w, 1<<20), dirs: map[string]bool{"": true}}
}

// dir adds a directory unless it is there.
func (a *archive) dir(name string) error {
	if name == "." || a.dirs[name] {
		return nil
	}
	if err := a.parents(name); err != nil {
		return err
	}
	a.dirs[name] = true
	return a.member(name, modeDir|0o755, nil)
}

// file adds a file and the directories above it.
func (a *archive) file(name string, perm os.FileMode, content []byte) error {
	if err := a.parents(name); err != nil {
		return err
	}
	return a.member(name, modeFile|uint32(perm.Perm()), content)
}

// symlink adds a symbolic link and the directories above it.
func (a *archive) symlink(name, target string) error {
	if err := a.parents(name); err != nil {
		return err
	}
	return a.member(name, modeSymlink|0o777, []byte(target))
}

func (a *archive) parents(name string) error { return a.dir(path.Dir(name)) }

// close ends the archive; the writer stays open.
func (a *archive) close() error {
	if err := a.member("TRAILER!!!", 0, nil); err != nil {
		return err
	}
	return a.w.Flush()
}

// member writes one header with the inode, 0, that links nothing, and the
// content. Name and content are each padded to a multiple of four.
func (a *archive) member(name string, mode uint32, content []byte) error {
	const links = 1
	fields := []uint32{0, mode, 0, 0, links, 0, uint32(len(content)), 0, 0, 0, 0, uint32(len(name) + 1), 0}
	header := []byte("070701")
	for _, f := range fields {
		header = fmt.Appendf(header, "%08X", f)
	}
	header = append(append(header, name...), 0)
	for _, part := range [][]byte{header, content} {
		if err := a.padded(part); err != nil {
			return fmt.Errorf("archive %s: %w", name, err)
		}
	}
	return nil
}

func (a *archive) padded(b []byte) error {
	n, err := a.w.Write(b)
	a.at += int64(n)
	for ; err == nil && a.at%4 != 0; a.at++ {
		err = a.w.WriteByte(0)
	}
	return err
}
