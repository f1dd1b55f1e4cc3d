// Package guest runs a small Linux machine in the emulator QEMU as the other
// end of a tapped host's cable: a stock Debian kernel with its software RoCE
// (rdma_rxe) and the programs of rdma-core and perftest.
//
// It exists because interoperability is measured against implementations that
// others wrote, and a host that runs tests seldom has RDMA in its kernel. No
// hardware virtualization is needed and no module of the host: everything is
// emulated, and ready in about four seconds.
//
// [Build] makes kernel and userland from Debian's packages, once, in a cache
// directory. [Boot] starts them, with the command agent as /init. Then [Guest.Start]
// runs programs in the guest, as many as wanted, one after another or at the same
// time.
//
// A guest started with [Config.Hosts] has what namespaces in it need to play hosts
// with devices, packet filters and balancers of many kinds.
//
//	host (namespace)                     guest
//	10.77.0.1  fd77::1                   10.77.0.2  fd77::2
//	  [tap0]──────── QEMU, virtio ────────[eth0]──[rxe0]
//	  our side: UDP 4791                    GIDs: 0 link-local, 1 IPv4, 2 IPv6
//
// It knows nothing about smcgw.
//
// The trap: an emulated machine is slow, and its clock jumps when the
// host is busy. Timeouts of tests must be generous; what they measure is not
// performance.
package guest
