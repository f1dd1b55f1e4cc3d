package profile

// Item is what processor time went into. The page of the results explains each.
type Item string

// The items.
const (
	Idle         Item = "idle"
	Spin         Item = "spinning"
	Wakeups      Item = "wake-ups and task switches"
	Copy         Item = "copies to and from sockets"
	TCP          Item = "TCP"
	Buffers      Item = "packet buffers"
	Network      Item = "IP, queues and devices"
	Sockets      Item = "opening and closing"
	Polling      Item = "epoll and select"
	Calls        Item = "system calls"
	BPF          Item = "eBPF programs"
	Tun          Item = "TUN devices"
	Datagrams    Item = "datagrams"
	DatagramCopy Item = "copies of datagrams"
	Checksum     Item = "ICRC"
	Device       Item = "RDMA device"
	RingCopy     Item = "copies in user space"
	Streams      Item = "streams and loops"
	Negotiation  Item = "negotiation"
	Netstack     Item = "netstack"
	Scheduler    Item = "Go's scheduler"
	Collector    Item = "Go's memory"
	Memory       Item = "mapping memory"
	Timers       Item = "timers and interrupts"
	Programs     Item = "the programs themselves"
	Machine      Item = "the rest of the machine"
	Other        Item = "other"
)

// Items lists all that there are.
var Items = []Item{
	Idle, Spin, Wakeups, Copy, TCP, Buffers, Network, Sockets, Polling, Calls, BPF, Tun, Datagrams, DatagramCopy, Checksum,
	Device, RingCopy, Streams, Negotiation, Netstack, Scheduler, Collector, Memory, Timers, Programs, Machine, Other,
}
