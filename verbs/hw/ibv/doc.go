// Package ibv is libibverbs as verbs/hw needs it: the handles, the records that
// work requests and completions cross the border in, and one function for each
// thing that the device asks of the library.
//
// It exists to be the only package of the module with cgo. The library is
// loaded with dlopen, so that a program with this package needs libc only and
// runs on hosts without rdma-core. The headers of libibverbs-dev are needed where it is built,
// with cgo and the tag hw. Without those Load returns
// [verbs.ErrNotSupported]. It holds no state of its own: what has to be counted
// is counted in verbs/hw, which tests drive with a fake of [Library].
//
// The trap: a handle is a C pointer. The library checks none, so a handle used
// after its object was destroyed corrupts memory.
package ibv
