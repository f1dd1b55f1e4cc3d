package config

// field documents one field of the configuration file.
type field struct {
	// Path is the name in the file, with [] for the elements of a list.
	Path string
	// Default is the value of a missing field, as written in the file; empty for lists and
	// texts that are empty by default.
	Default string
	// Doc is one sentence for operators.
	Doc string
}

// configFields is the only place that holds defaults: WithDefaults, the check verb and the
// documents use it.
var configFields = []field{
	{"schema", schema, "format of this file"},
	{"mode", "observe", "off: nothing; observe: decide and count; enforce: carry"},
	{"admin", "/run/smcgw/smcgw.sock", "path of the admin socket"},
	{"devices", "", "network devices that carry offers; empty: those of the default routes and, if they have an address, of routes to peers of rules"},
	{"policy", "", "rules, first match wins, at most 64; what matches none is passed"},
	{"policy[].name", "", "name of the rule in metrics; empty: rule-N"},
	{"policy[].match", "", "what the rule is about; empty: every TCP connection"},
	{"policy[].match.proto", "tcp", "tcp: connections; udp: datagrams of UDP programs"},
	{"policy[].match.direction", "both", "client: connections that this host makes; server: those that it accepts; both"},
	{"policy[].match.ports", "", "server ports, and ranges such as 6000-7000; empty: every port"},
	{"policy[].match.peers", "", "addresses or prefixes of the other side; empty: every address"},
	{"policy[].match.cgroups", "", "cgroup2 paths, * allowed, outbound connections only; empty: every cgroup"},
	{"policy[].match.users", "", "names of /etc/passwd, or numbers, outbound connections only; empty: every user"},
	{"policy[].action", "pass", "pass: leave native; accelerate: carry; auto: carry where an RDMA adapter does, promote in process, else leave native; tcp only"},
	{"policy[].percent", "", "share of the matching connections that is carried; empty: rollout.percent"},
	{"policy[].way", "any", "any: in process where both programs have the library, else steered; in-process: not steered; steered: not in process"},
	{"rollout", "", "share of the connections that is carried"},
	{"rollout.percent", "100%", "share of the connections of each rule without percent; 0: none"},
	{"guard", "", "what takes the mode back to observe"},
	{"guard.aborted", "0%", "share of carried connections reset by gateways that takes the mode back to observe; 0: resets do not count"},
	{"guard.slower", "0%", "share of a rule's carried connections that took longer than 95% of those the rollout left native, with the same effect, at least 10%; 0: they are not compared"},
	{"guard.window", "1m", "time over which connections are counted"},
	{"guard.minimum", "5", "how many of them must be reset, or slower, at least"},
	{"steering", "on", "off: nothing is attached to network devices, and only programs with the library are served"},
	{"in_process", "", "connections between programs of this host that have the library"},
	{"in_process.enabled", "on", "off: the daemon does not serve programs with the library; those of \"smcgw run\" use a broker of their user"},
	{"in_process.socket", "/run/smcgw/in-process/broker.sock", "path of the socket at which they ask; another than the default must be in their SMCGW_SOCKET"},
	{"in_process.calls", "32", "calls that move bytes, or 2KiB for each of them, after which a connection asks to be promoted"},
	{"in_process.spin", "off", "how long a program looks at its rings before it sleeps: off, or up to 100us"},
	{"in_process.memory", "64GiB", "total size of the rings of all promoted connections, 65536 at most; they take only what is used"},
	{"in_process.shaped", "off", "on: promote connections whose path shapes traffic (tbf, htb, netem), and no longer shape them"},
	{"in_process.between_hosts", "off", "experimental; on: promote connections to programs on other hosts, too, by the carriers"},
	{"carriers", "[shm, hw, soft]", "RDMA devices in order of preference; ib is adapters on InfiniBand; []: none"},
	{"shm_dir", "/run/smcgw/shm", "directory of the rendezvous sockets of shm"},
	{"soft", "", "the software RoCEv2 device"},
	{"soft.udp_port", "4791", "UDP port it receives on, or two above where an RDMA stack of the host has that one; peers are told"},
	{"hw", "", "RDMA adapters"},
	{"hw.traffic_class", "", "traffic class of their packets, DSCP times 4; its upper three bits are the priority in a VLAN tag; empty: 0"},
	{"hw.mixed", "off", "on: a host without an adapter talks to its peer's by soft, if both hosts say so"},
	{"datagram_port", "4790", "UDP port on which gateways ask each other about datagrams, and TCP port for promotion between hosts; 0: neither"},
	{"limits", "", "what the gateway may use"},
	{"limits.max_flows", "20000", "carried connections"},
	{"limits.memory", "1GiB", "all rings and buffers together"},
	{"limits.handshake_timeout", "200ms", "time for a negotiation, besides four round trips; the proof of a carrier may take 200ms, or a tenth of this if that is more"},
	{"limits.new_flows_per_second", "5000", "connections taken over per second"},
	{"limits.new_flows_at_once", "32", "connections of this host that are set up at a time, an eighth of that while the host is slow"},
	{"limits.drain_timeout", "10m", "how long a gateway that drains serves its connections"},
	{"limits.hw_flows", "1024", "connections carried by one RDMA adapter"},
	{"limits.peer_share", "50%", "part of the other limits that one peer address may have"},
	{"limits.stall_timeout", "1m", "how long a connection may stand still by the fault of a gateway before it is reset"},
	{"fallback", "", "how refusals are remembered"},
	{"fallback.negative_cache", "10m", "how long a peer that declined is left native; where SYNs with the option are lost six times as long, doubled every time"},
	{"security", "", "which peer gateways are believed"},
	{"security.psk_file", "", "file of the keys that peer gateways must have, one per line; empty: every gateway is believed"},
	{"metrics", "", "Prometheus metrics over TCP"},
	{"metrics.listen", "", "address:port; empty: on the admin socket only"},
	{"state_dir", "/var/lib/smcgw", "directory of the off flag"},
	{"cgroup_path", "", "cgroup2 mount; empty: found automatically"},
	{"shards", "", "event loops, 16 at most; empty or 0: half the processors"},
	{"log", "", "log on standard error"},
	{"log.level", "info", "debug, info, warn or error"},
	{"log.format", "auto", "text, json, or auto: text on a terminal"},
	{"log.access", "off", "carried: a line when a connection begins to be carried and when it ends; all: also for each native connection; off"},
}
