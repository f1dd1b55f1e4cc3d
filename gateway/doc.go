// Package gateway is the product as a library: it takes over selected TCP
// connections of unmodified applications, negotiates with the peer's gateway,
// carries the bytes by RDMA and leaves every connection that cannot be carried
// to the kernel, untouched.
//
// It is the only package that puts all the others together: ebpf steers,
// netstack owns the wire leg, negotiate decides, rsocket on a verbs device
// carries. Package conn drives one connection; this package has the table of connections, and
// hears from netstack and the programs what happens to each. A gateway lasts as long as the
// process; it has an engine, with loops, devices and legs, while its mode carries.
// [config.Config] says what to do, [admin.Control] is what an operator sees and may switch,
// and package guardian keeps a dead daemon from hurting the applications it served.
//
// It never refuses a connection and never changes an address that an application
// can see. Anything unclear is left native.
//
// The one trap: a gateway must die before its steering does. Programs and TUN
// devices are therefore held by a second process for a second longer than the
// daemon; code that opens descriptors for the datapath must hand them to
// [Supervisor.Protect] before the first flow is carried.
package gateway
