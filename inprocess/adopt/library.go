package adopt

// Installed is the directory in which packages install the library.
const Installed = "/usr/lib/smcgw"

// Name is the file name of the library for glibc.
const Name = "libsmcgw.so"

// Anywhere is the library's name for LD_PRELOAD, below its directory, for programs of either libc: glibc replaces the
// variable by the directory of its libraries, musl takes it literally, and make install puts a link at each name.
const Anywhere = "$LIB/" + Name
