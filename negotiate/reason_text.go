package negotiate

// reasonText is the description of a reason for operators.
type reasonText struct{ name, meaning, fix string }

// reasonTexts is indexed by Reason. It is read-only.
var reasonTexts = [...]reasonText{
	ReasonOff: {
		"off", "The gateway is switched off; connections are left to the kernel.",
		"`smcgw on` switches it on again; where the configuration has mode: off (`smcgw doctor`), another mode and `smcgw reload`.",
	},
	ReasonPolicy: {
		"policy", "No policy rule selects this connection.",
		"Add a rule with action accelerate; with `way: in-process` it selects programs with the library only. The first rule that matches decides; `smcgw policy` lists them in order.",
	},
	ReasonNeverList: {
		"never_list", "The port is on the list of ports that are never touched unless a rule names them.",
		"Name the port explicitly in a rule if it really should be carried.",
	},
	ReasonGatewayStale: {
		"gateway_stale", "The gateway was starting, or its heartbeat too old, so the kernel programs left the connection alone.",
		"Check that the daemon runs and gets CPU time: `smcgw status`.",
	},
	ReasonNAT: {
		"nat", "The addresses are translated, on this host (the packet's tuple is not the socket's) or on the way (both ends know the connection by other addresses).",
		"Connect to the untranslated address, or accept native TCP here.",
	},
	ReasonForwarded: {
		"forwarded", "The SYN did not come from a socket of this namespace: it is forwarded, of a container for instance.",
		"Run a gateway in the network namespace of the application.",
	},
	ReasonSYNOptions: {
		"syn_options", "The SYN uses something that cannot be carried: MPTCP, Fast Open or payload, MD5 or AO, ECN, or no timestamps.",
		"Switch the feature off for this application, or accept native TCP here.",
	},
	ReasonAddress: {
		"address", "The address is loopback, multicast or otherwise not one a peer gateway can have, the device carries no offers, or `carriers` has only hw or ib and no RDMA adapter in use has the address.",
		"Name the device in `devices` if connections by it are to be carried, and soft in `carriers` beside hw or ib; others of this reason are always native.",
	},
	ReasonCanary: {
		"canary", "The connection is outside the configured share of connections.",
		"Raise `rollout.percent`, or `percent` of the rule, when you trust it.",
	},
	ReasonAppLegBlocked: {
		"app_leg_blocked", "A rule of this host drops what the gateway passes to local applications, or it is not known yet that none does.",
		"smcgw status says on which device and where; let packets with the gateway's link address (02:53:4d:47:57:02) pass as those of the network.",
	},
	ReasonPeerNoOption: {
		"peer_no_option", "The peer's SYN-ACK carries no accept: no gateway there, it does not select this port, or a box removed the option.",
		"Run smcgw on the peer with a policy that covers this port; look for boxes that remove TCP options.",
	},
	ReasonOptionMirrored: {
		"option_mirrored", "The SYN-ACK carries our own offer: the peer or a box echoes unknown options.",
		"Nothing to do on this host; the box that mirrors options is at fault.",
	},
	ReasonOptionBlackholed: {
		"option_blackholed", "SYNs with the option are lost on the way to this peer, bare ones are answered.",
		"Find the box that drops unknown TCP options; `smcgw peers flush` tries again at once.",
	},
	ReasonAcceptLost: {
		"accept_lost", "The server accepted but the client does not know: its gateway died or a box removes options after the SYN.",
		"If it persists, find the box that removes TCP options from SYN-ACKs, ACKs or data.",
	},
	ReasonClientGone: {
		"client_gone", "The client's application or gateway went away while the connection was being negotiated.",
		"Usually an application that gave up connecting; if frequent, check the client gateway's load.",
	},
	ReasonPeerUnresolved: {
		"peer_unresolved", "No gateway of the host is known to take datagrams: it did not answer, or may not be asked.",
		"Run smcgw on the peer with a `proto: udp` rule, let its datagram port (UDP 4790) pass, and name the peer's address in `peers` of the rule here.",
	},
	ReasonOptionRejected: {
		"option_rejected", "SYNs with the option are refused by a reset or an ICMP error on the way to this peer, bare ones are answered.",
		"Find the box that rejects unknown TCP options; `smcgw peers flush` tries again at once.",
	},
	ReasonPeerRefused: {
		"peer_refused", "The destination refused connections a moment ago, with the option and without it.",
		"Nothing: offers to this port rest for seconds, or until a connection to it succeeds.",
	},
	ReasonOfferUnanswered: {
		"offer_unanswered", "A host that has answered offers did not answer this one in time, but a bare SYN: a packet was lost, or its gateway is late.",
		"Check the load of the peer gateway; offers rest for seconds.",
	},
	ReasonVersion: {
		"version", "The gateways have no protocol version in common.",
		"Upgrade the older gateway.",
	},
	ReasonNoCommonCarrier: {
		"no_common_carrier", "The gateways have no carrier in common.",
		"Compare `carriers` in both configurations; shm needs the same kernel and a shared shm_dir, hw and ib an RDMA adapter in use at both ends of the connection (`smcgw devices`).",
	},
	ReasonHandshakeTimeout: {
		"handshake_timeout", "The negotiation did not finish in time.",
		"Check the load of the peer gateway; raise limits.handshake_timeout if the network is slow.",
	},
	ReasonProposalLate: {
		"proposal_late", "The client's time was over when its negotiation had hardly arrived at the server: the client's host or the network was slow.",
		"Check the load of the client; raise limits.handshake_timeout if the network is slow.",
	},
	ReasonNoPeer: {
		"no_peer", "The other end of a connection between programs with the library did not ask in time.",
		"Start both programs with the library (smcgw run); between hosts let TCP port 4790 (datagram_port) pass.",
	},
	ReasonAppRefused: {
		"app_refused", "The server's application refused the connection from its gateway.",
		"Check that the application listens; the client got the same answer natively.",
	},
	ReasonAppUnreachable: {
		"app_unreachable", "The server's gateway could not reach its application in time, for instance because a firewall drops the connection.",
		"Check the server's firewall and the application's backlog.",
	},
	ReasonNoMemory: {
		"no_memory", "A gateway has no memory for another connection.",
		"If memory of `smcgw peers` is near limits.peer_share of limits.memory, raise that share or the memory; rings begin at 256 KiB (shm) and 2 MiB (soft, hw).",
	},
	ReasonFlowLimit: {
		"flow_limit", "A gateway carries as many connections as it may.",
		"`smcgw status` has the limit in force: raise limits.max_flows, LimitNOFILE where descriptors allow less, or limits.peer_share for one peer; limits.hw_flows where RDMA adapters have no other carrier beside them.",
	},
	ReasonRateLimit: {
		"rate_limit", "New connections come faster than a gateway may take them.",
		"Leave services with many short connections native, or raise limits.new_flows_per_second, limits.peer_share for one peer, and limits.new_flows_at_once where this host opens the connections.",
	},
	ReasonAuthFailed: {
		"auth_failed", "A message of the negotiation was not authenticated with a key that both gateways have.",
		"Give both gateways the same key (security.psk_file), or neither; a box that changes addresses or sequence numbers has the same effect.",
	},
	ReasonProtocolError: {
		"protocol_error", "A gateway received something the protocol does not allow.",
		"Compare versions; report it with a capture if they are equal.",
	},
	ReasonCarrierUnreachable: {
		"carrier_unreachable", "The test message over the carrier did not come back, or a queue pair had no answer for seconds (demoted).",
		"soft: let its UDP port (smcgw devices) pass between the gateways, with full-size packets; shm: share shm_dir.",
	},
	ReasonDeviceFailed: {
		"device_failed", "A device, queue pair or port of the gateway failed on this host, or does not answer.",
		"`smcgw status` has a note that names it, `smcgw devices` and the log have the error.",
	},
	ReasonMode: {
		"mode", "The mode is observe: the connection would have been offered.",
		"Set mode: enforce; where the guard has tripped (smcgw status): smcgw on.",
	},
	ReasonNotWorthIt: {
		"not_worth_it", "The rule has action auto, here or at the peer, and no RDMA adapter of both hosts can carry the connection.",
		"Nothing: without an adapter native is right as a rule; `smcgw bench --peer` measures what the other carriers do, and action accelerate carries by them, too.",
	},
	ReasonLostBytes: {
		"lost_bytes", "A carrier died with bytes that neither side could prove delivered; the connection was reset.",
		"Look for what killed the carrier in both logs.",
	},
	ReasonStalled: {
		"stalled", "Bytes waited in a gateway although there was room for them; the connection was reset.",
		"A defect: report it, with the line that either gateway logs about it (connection stalled).",
	},
	ReasonPeerDead: {
		"peer_dead", "The peer gateway died, or nothing was heard of it for too long.",
		"Look for crashes or restarts of the peer gateway, and whether its host can be reached.",
	},
	ReasonWireReset: {
		"wire_reset", "The connection between the gateways was reset without a word: the peer gateway was killed or its host restarted, or a box on the way has reset it.",
		"Look whether the peer gateway was killed or crashed at that time; if not, for a box that resets or forgets connections. Gateways that do not know `app_reset` also report a reset by their application this way.",
	},
	ReasonDrained: {
		"drained", "A gateway was stopped or replaced.",
		"Nothing: new connections are taken by the new gateway, or by the kernel.",
	},
	ReasonInternalError: {
		"internal_error", "The gateway's own code failed (a panic); only this connection was ended, or fell back to the kernel.",
		"Report it with the stack in the log.",
	},
	ReasonAppReset: {
		"app_reset", "The application of the deciding side reset the connection, as it can natively: by SO_LINGER, or by closing it with bytes unread.",
		"Nothing: without smcgw it is the same. Some programs end every connection so.",
	},
}
