// Package ibv is the part of libibverbs that verbs/hw needs: the handles, the records in which work requests and
// completions cross the border, and one function for each call of the library.
//
// It is the only package of the module with cgo. It loads the library with dlopen, so that a program with this package
// needs only libc and runs on hosts without rdma-core. Building it with cgo and the tag hw needs the headers of
// libibverbs-dev. Without those Load returns [verbs.ErrNotSupported]. The package holds no state: all accounting is in
// verbs/hw, which tests run with a fake [Library].
//
// The trap: a handle is a C pointer that the library does not check, so a handle used after its object was destroyed
// corrupts memory.
package ibv
