// Package gateway is the product as a library. It takes over selected TCP connections of
// unmodified applications, negotiates with the peer gateway, and carries their bytes by RDMA. It
// leaves every connection that cannot be carried to the kernel, untouched.
//
// It is the only package that puts all the others together: ebpf steers, netstack owns the wire
// leg, negotiate decides, and rsocket on a verbs device carries. Package conn drives one
// connection; this package has the table of connections and receives the events of netstack and
// of the programs. A gateway lasts as long as the process; it has an engine, with loops, devices
// and legs, while its mode carries. [config.Config] says what to do, [admin.Control] is what
// operators see and control, and package guardian keeps a dead daemon from hurting the
// applications it served.
//
// A gateway never refuses a connection and never changes an address that an application can see.
// When in doubt, it leaves a connection native.
//
// The one trap: a gateway must die before its steering does. A second process therefore holds
// the programs and TUN devices for a second longer than the daemon. Code that opens descriptors
// for the datapath must pass them to [Supervisor.Protect] before the first flow is carried.
package gateway
