package preload

import (
	"os"
	"path"
	"path/filepath"

	"github.com/smcgw/smcgw/inprocess/scan"
)

// The names of the library by libc.
const (
	GlibcName = "libsmcgw.so"
	MuslName  = "libsmcgw-musl.so"
)

// Installed is where packages put the library.
const Installed = "/usr/lib/smcgw"

// Anywhere is the name of the library for LD_PRELOAD where programs of either libc start,
// below the directory of the library: glibc puts the directory of its libraries in place of
// the variable, musl takes it as a name, and links stand at each (see [Links]).
const Anywhere = "$LIB/" + GlibcName

// Links are the links that Anywhere wants, and what they point to, below the directory of
// the library. The names before the last are what builds of glibc call their directory.
func Links() map[string]string {
	const glibc, musl = GlibcName, MuslName
	return map[string]string{
		"lib/" + GlibcName:                   "../" + glibc,
		"lib64/" + GlibcName:                 "../" + glibc,
		"lib/x86_64-linux-gnu/" + GlibcName:  "../../" + glibc,
		"lib/aarch64-linux-gnu/" + GlibcName: "../../" + glibc,
		"$LIB/" + GlibcName:                  "../" + musl,
	}
}

// Directory is where the library is: beside the program, in the lib directory of the prefix
// that the program is in, or where packages put it. Empty: nowhere.
func Directory(program string) string {
	bin := filepath.Dir(program)
	for _, dir := range []string{bin, filepath.Join(filepath.Dir(bin), "lib/smcgw"), Installed, "/usr/local/lib/smcgw"} {
		if st, err := os.Stat(filepath.Join(dir, GlibcName)); err == nil && st.Mode().IsRegular() {
			return dir
		}
	}
	return ""
}

// Library is the library's file for a libc in a directory; empty: there is none.
func Library(dir string, l scan.Libc) string {
	name := map[scan.Libc]string{scan.Glibc: GlibcName, scan.Musl: MuslName}[l]
	if dir == "" || name == "" {
		return ""
	}
	if st, err := os.Stat(filepath.Join(dir, name)); err != nil || !st.Mode().IsRegular() {
		return ""
	}
	return path.Join(dir, name)
}
