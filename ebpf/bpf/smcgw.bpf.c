/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The steering programs of smcgw. One object, one concept a header:
 *
 *   kernel.h    linux/bpf.h, the helpers of libbpf, and what they lack
 *   maps.h      types, maps, constants
 *   flow.h      flow entries, counters, events, heartbeat
 *   parse.h     packet headers and TCP options
 *   verdict.h   the table: class of packet, liveness, state
 *   trace.h     what is no concern of ours
 *   peers.h     remembered peers
 *   policy.h    rule masks
 *   observe.h   counts of what would be carried
 *   compare.h   how long connections take inside and outside of the share
 *   offer.h     sockops and connect programs: the offer
 *   redirect.h  ways to another device
 *   datagram_policy.h, datagram.h  UDP of selected programs
 *   refused.h   offered SYNs that are refused
 *   listener.h  the listeners SYNs are handed to
 *   egress.h, ingress.h, tun.h   the tcx programs, sk_lookup
 *   cas.h       state changes by user space
 */
#include "tun.h"
#include "cas.h"

/* Types only user space needs by name. */
struct event *unused_event __attribute__((unused));
struct cas_args *unused_cas_args __attribute__((unused));
enum stat *unused_stat __attribute__((unused));
enum packet_class *unused_packet_class __attribute__((unused));
enum packet_verdict *unused_packet_verdict __attribute__((unused));

char _license[] SEC("license") = "GPL";
