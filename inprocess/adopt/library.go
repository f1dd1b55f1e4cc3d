package adopt

// Installed is where packages put the library.
const Installed = "/usr/lib/smcgw"

// Name is the library's file for glibc, Musl that for musl.
const (
	Name = "libsmcgw.so"
	Musl = "libsmcgw-musl.so"
)

// Anywhere is the name of the library for LD_PRELOAD where programs of either libc start,
// below the directory of the library: glibc puts the directory of its libraries in place of
// the variable, musl takes it as a name, and links stand at each (see [Links]).
const Anywhere = "$LIB/" + Name

// Links are the links that Anywhere wants, and what they point to, below the directory of
// the library. The names before the last are what builds of glibc call their directory.
func Links() map[string]string {
	return map[string]string{
		"lib/" + Name:                   "../" + Name,
		"lib64/" + Name:                 "../" + Name,
		"lib/x86_64-linux-gnu/" + Name:  "../../" + Name,
		"lib/aarch64-linux-gnu/" + Name: "../../" + Name,
		"$LIB/" + Name:                  "../" + Musl,
	}
}
