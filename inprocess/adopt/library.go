package adopt

// Installed is where packages put the library.
const Installed = "/usr/lib/smcgw"

// Name is the library's file for glibc.
const Name = "libsmcgw.so"

// Anywhere is the name of the library for LD_PRELOAD where programs of either libc start,
// below the directory of the library: glibc puts the directory of its libraries in place of
// the variable, musl takes it as a name, and make install puts links at each.
const Anywhere = "$LIB/" + Name
