/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * What becomes of a packet: (its class, liveness of the gateway, state of the
 * entry) → verdict. The programs tell the class, look here, and do what they find.
 * Two flags of an entry come before it (docs/ARCHITECTURE.md "Flow entries"). A test sends every class in
 * every state and liveness through the programs (ebpf/verdict_test.go).
 */
#ifndef SMCGW_VERDICT_H
#define SMCGW_VERDICT_H

#include "parse.h"
#include "redirect.h"

enum packet_class {
	/* Egress of a wire device: what the application's kernel sends. */
	OUT_OFFER,      /* a SYN with an offer */
	OUT_SYN,        /* the SYN of the entry again, without one */
	OUT_OTHER_SYN,  /* a SYN without offer of another connection */
	OUT_SEGMENT,    /* any other segment */
	OUT_ERROR,      /* an ICMP error about a segment of the peer */
	/* Ingress of a wire device: what comes from the network. */
	IN_SYN,         /* a SYN */
	IN_SYN_AGAIN,   /* the SYN of the entry again, without an offer: the client's gateway has given up */
	IN_ACCEPT,      /* a SYN-ACK with the accept of the entry's offer */
	IN_ANSWER,      /* a SYN-ACK to the entry's SYN without one */
	IN_RESET,       /* a reset that acknowledges the entry's SYN */
	IN_STRAY,       /* a SYN-ACK or reset that acknowledges something else */
	IN_ACK,         /* ACK alone of the flags that count */
	IN_SEGMENT,     /* neither SYN nor RST: with FIN, or without ACK */
	IN_UNREACHABLE, /* an ICMP error that ends the request of the entry's SYN */
	IN_ERROR,       /* any other one about a segment of the application */
	/* Ingress of the pair: what legs send. */
	LEG_SEGMENT,    /* any other segment */
	LEG_CLOSED,     /* the reset of a kernel without a listener */
	LEG_LOST,       /* the reset of a kernel that found no socket for a segment */
	LEG_QUEUED,     /* a SYN or SYN-ACK of a leg, when it arrives on the wire device */
	/* Ingress of A: what user space writes. */
	APP_SYN,        /* the SYN of the entry */
	APP_PEER_SYN,   /* any other SYN, on the tuple of its receiver */
	APP_SEGMENT,    /* a probe that was held */
	/* Ingress of W: what netstack sends. */
	NET_SYN,        /* also a SYN-ACK */
	NET_RESET,      /* a reset */
	NET_SEGMENT,    /* any other segment */
	/* sk_lookup in the namespace of the legs. */
	LOOKUP,         /* a SYN that was given to the legs */
	CLASSES,
};

enum packet_verdict {
	LOOK,           /* look at the liveness: the line of the class for that says it */
	PASS,           /* goes on */
	DROP,           /* taken away */
	/* Taken away, and counted: out_drop and so on. */
	DROP_OUT,
	DROP_SYN,
	DROP_RELEASED,
	DROP_RETURNED,
	DROP_DEAD,
	DROP_STALE,
	DROP_LEG,
	DROP_WIRE,
	DROP_APP,
	/* Sent another way. */
	LEGS,           /* to the legs; the way is followed, probes are held */
	LEGS_LAST,      /* to the legs, as it is */
	LEGS_PROOF,     /* to the legs, and noted as a step of the proof */
	LEGS_ERROR,     /* to the legs, counted */
	NETSTACK,       /* to netstack */
	NET_ERROR,      /* to netstack, counted */
	HOST,           /* to the application's kernel, as from the network */
	WIRE,           /* to the network */
	SPEAK,          /* the same, and noted: the gateway has spoken */
	/* The entry changes with it. */
	OFFER,          /* recorded, or its option overwritten */
	REOFFER,        /* the same, after word to the gateway that the old one is over */
	RELEASE,        /* released; passes */
	GIVE_BACK,      /* released for good, the gateway told; passes */
	HOLD,           /* taken away, and counts as sent */
	WAIT,           /* dropped; GIVE_BACK when that takes too long; HOLD where the gateway has spoken */
	YIELD,          /* GIVE_BACK; HOLD where the gateway has spoken */
	ASK,            /* passes; noted as the bare SYN after a refusal */
	REPLACE,        /* deleted, the gateway told; passes */
	FORGET,         /* deleted; passes */
	STALE,          /* the same, counted; a SYN is a new one then */
	NEW,            /* deleted; the SYN is a new one */
	ACCEPT,         /* negotiating; to netstack */
	TOO_LATE,       /* released for good; dropped */
	NATIVE,         /* deleted, counted with its reason; passes */
	REFUSED,        /* released; a reset that acknowledges nothing takes its place */
	REFUSED_BARE,   /* the answer to the bare SYN: deleted, passes; a copy of the first is dropped */
	CHALLENGE,      /* dropped; passes when the release is half a second old */
	COOKIE,         /* passes, or proves a SYN-ACK of ours: wire; to netstack */
	DELIVER,        /* to the listener, if it is there */
	INJECT,         /* deleted; to the application's kernel, as from the network */
	LISTENER,       /* the gateway's listener gets it */
};

#define STATES 16

/* A line of ANY says it all but where it says LOOK. */
const u8 smcgw_verdicts[CLASSES][4][STATES] = {
/* clang-format off */
/*                                    none          offered       negotiating   completing    carrying      wire          serving       raw           released      returned      dead          proof */
[OUT_OFFER][ANY]                  = { OFFER,        OFFER,        REOFFER,      REOFFER,      REOFFER,      REOFFER,      REOFFER,      REOFFER,      OFFER,        OFFER,        OFFER,        LEGS_PROOF },
[OUT_SYN][ANY]                    = { PASS,         RELEASE,      LOOK,         LOOK,         DROP_SYN,     DROP_SYN,     DROP_SYN,     DROP_SYN,     ASK,          FORGET,       FORGET,       LEGS_PROOF },
[OUT_SYN][ALIVE]                  = { 0,            0,            WAIT,         HOLD },
[OUT_SYN][LATE]                   = { 0,            0,            YIELD,        HOLD },
[OUT_SYN][GONE]                   = { 0,            0,            GIVE_BACK,    GIVE_BACK },
[OUT_OTHER_SYN][ANY]              = { PASS,         FORGET,       REPLACE,      REPLACE,      REPLACE,      REPLACE,      REPLACE,      REPLACE,      FORGET,       FORGET,       FORGET,       LEGS_PROOF },
[OUT_SEGMENT][ANY]                = { PASS,         PASS,         DROP_OUT,     LEGS,         LEGS,         DROP_OUT,     LEGS,         LEGS,         PASS,         PASS,         LEGS_LAST,    LEGS_PROOF },
[OUT_ERROR][ANY]                  = { PASS,         PASS,         PASS,         LEGS_ERROR,   LEGS_ERROR,   PASS,         LEGS_ERROR,   LEGS_ERROR,   PASS,         PASS,         PASS,         LEGS_ERROR },

[IN_SYN ... IN_SYN_AGAIN][ANY]    = { NEW,          NEW,          LOOK,         LOOK,         LOOK,         LOOK,         LOOK,         LOOK,         NEW,          NEW,          NEW,          NEW },
[IN_SYN ... IN_SYN_AGAIN][ALIVE]  = { 0,            0,            NETSTACK,     NETSTACK,     NETSTACK,     NETSTACK,     NETSTACK,     NETSTACK },
[IN_SYN ... IN_SYN_AGAIN][GONE]   = { 0,            0,            STALE,        STALE,        STALE,        STALE,        STALE,        STALE },
[IN_SYN][LATE]                    = { 0,            0,            DROP_STALE,   DROP_STALE,   DROP_STALE,   DROP_STALE,   DROP_STALE,   DROP_STALE },
[IN_SYN_AGAIN][LATE]              = { 0,            0,            DROP_STALE,   DROP_STALE,   DROP_STALE,   REPLACE,      REPLACE,      DROP_STALE },
[IN_ACCEPT][ANY]                  = { COOKIE,       LOOK,         LOOK,         NETSTACK,     NETSTACK,     LOOK,         NETSTACK,     NETSTACK,     DROP_RELEASED,DROP_RETURNED,DROP_DEAD,    NETSTACK },
[IN_ACCEPT][ALIVE]                = { 0,            ACCEPT,       NETSTACK,     0,            0,            NETSTACK },
[IN_ACCEPT][LATE]                 = { 0,            TOO_LATE,     NETSTACK,     0,            0,            DROP_STALE },
[IN_ACCEPT][GONE]                 = { 0,            TOO_LATE,     DROP_STALE,   0,            0,            STALE },
[IN_ANSWER][ANY]                  = { COOKIE,       NATIVE,       LOOK,         NETSTACK,     NETSTACK,     LOOK,         NETSTACK,     NETSTACK,     FORGET,       DROP_RETURNED,DROP_DEAD,    NETSTACK },
[IN_RESET][ANY]                   = { COOKIE,       REFUSED,      LOOK,         NETSTACK,     NETSTACK,     LOOK,         NETSTACK,     NETSTACK,     REFUSED_BARE, DROP_RETURNED,DROP_DEAD,    NETSTACK },
[IN_STRAY][ANY]                   = { COOKIE,       PASS,         LOOK,         NETSTACK,     NETSTACK,     LOOK,         NETSTACK,     NETSTACK,     DROP_RELEASED,DROP_RETURNED,DROP_DEAD,    NETSTACK },
[IN_ACK][ANY]                     = { COOKIE,       PASS,         LOOK,         NETSTACK,     NETSTACK,     LOOK,         NETSTACK,     NETSTACK,     CHALLENGE,    DROP_RETURNED,NETSTACK,     NETSTACK },
[IN_SEGMENT][ANY]                 = { COOKIE,       PASS,         LOOK,         NETSTACK,     NETSTACK,     LOOK,         NETSTACK,     NETSTACK,     CHALLENGE,    DROP_RETURNED,DROP_DEAD,    NETSTACK },
[IN_ANSWER ... IN_SEGMENT][ALIVE] = { 0,            0,            NETSTACK,     0,            0,            NETSTACK },
[IN_ANSWER ... IN_SEGMENT][LATE]  = { 0,            0,            NETSTACK,     0,            0,            DROP_STALE },
[IN_ANSWER ... IN_SEGMENT][GONE]  = { 0,            0,            DROP_STALE,   0,            0,            STALE },
[IN_UNREACHABLE][ANY]             = { PASS,         REFUSED,      NET_ERROR,    NET_ERROR,    NET_ERROR,    NET_ERROR,    NET_ERROR,    NET_ERROR,    REFUSED_BARE, PASS,         PASS,         PASS },
[IN_ERROR][ANY]                   = { PASS,         PASS,         NET_ERROR,    NET_ERROR,    NET_ERROR,    NET_ERROR,    NET_ERROR,    NET_ERROR,    PASS,         PASS,         PASS,         PASS },

[LEG_SEGMENT][ANY]                = { DROP_LEG,     DROP_LEG,     DROP_LEG,     HOST,         HOST,         DROP_LEG,     HOST,         HOST,         DROP_LEG,     DROP_LEG,     HOST,         HOST },
[LEG_CLOSED][ANY]                 = { DROP_LEG,     DROP_LEG,     DROP_LEG,     DROP_LEG,     DROP_LEG,     DROP_LEG,     DROP_LEG,     DROP_LEG,     DROP_LEG,     DROP_LEG,     DROP_LEG,     DROP_LEG },
[LEG_LOST][ANY]                   = { DROP_LEG,     DROP_LEG,     DROP_LEG,     LOOK,         LOOK,         DROP_LEG,     HOST,         HOST,         DROP_LEG,     DROP_LEG,     HOST,         HOST },
[LEG_LOST][ALIVE ... LATE]        = { 0,            0,            0,            DROP_LEG,     DROP_LEG },
[LEG_LOST][GONE]                  = { 0,            0,            0,            HOST,         HOST },
[LEG_QUEUED][ANY]                 = { DROP_LEG,     DROP_LEG,     DROP_LEG,     PASS,         PASS,         DROP_LEG,     PASS,         PASS,         DROP_LEG,     DROP_LEG,     PASS,         PASS },

[APP_SYN][ANY]                    = { DROP_APP,     DROP_APP,     DROP_APP,     DELIVER,      DROP_APP,     DROP_APP,     DROP_APP,     DROP_APP,     WIRE,         DROP_APP,     DROP_APP,     DROP_APP },
[APP_PEER_SYN][ANY]               = { DROP_APP,     DROP_APP,     DROP_APP,     DROP_APP,     DROP_APP,     DROP_APP,     DROP_APP,     DROP_APP,     DROP_APP,     INJECT,       DROP_APP,     DROP_APP },
[APP_SEGMENT][ANY]                = { DROP_APP,     DROP_APP,     DROP_APP,     LEGS_LAST,    LEGS_LAST,    DROP_APP,     LEGS_LAST,    LEGS_LAST,    DROP_APP,     DROP_APP,     DROP_APP,     LEGS_LAST },

[NET_SYN][ANY]                    = { DROP_WIRE,    DROP_WIRE,    WIRE,         WIRE,         WIRE,         WIRE,         WIRE,         WIRE,         WIRE,         WIRE,         WIRE,         WIRE },
[NET_RESET][ANY]                  = { DROP_WIRE,    WIRE,         WIRE,         WIRE,         WIRE,         WIRE,         WIRE,         WIRE,         WIRE,         WIRE,         WIRE,         WIRE },
[NET_SEGMENT][ANY]                = { DROP_WIRE,    DROP_WIRE,    SPEAK,        WIRE,         WIRE,         WIRE,         WIRE,         WIRE,         DROP_WIRE,    DROP_WIRE,    WIRE,         WIRE },

[LOOKUP][ANY]                     = { DROP,         DROP,         DROP,         LISTENER,     DROP,         DROP,         DROP,         DROP,         DROP,         DROP,         DROP,         PASS },
/* clang-format on */
};

/* verdict_on looks at the table. */
static __always_inline u8 verdict_on(struct packet *p, u32 class, u32 state)
{
	u8 v;
	if (class >= CLASSES || state >= STATES)
		return PASS;
	v = smcgw_verdicts[class][ANY][state];
	return v == LOOK ? smcgw_verdicts[class][gateway_of(p)][state] : v;
}

/* drop_of counts a verdict that takes the packet away. */
static __noinline int drop_of(u8 verdict)
{
	switch (verdict) {
	case DROP_OUT:
		return drop(STAT_OUT_DROP);
	case DROP_SYN:
		return drop(STAT_SYN_RETRANSMIT_DROP);
	case DROP_RELEASED:
		return drop(STAT_RELEASED_DROP);
	case DROP_RETURNED:
		return drop(STAT_RETURNED_DROP);
	case DROP_DEAD:
		return drop(STAT_DEAD_DROP);
	case DROP_STALE:
		return drop(STAT_STALE_DROPPED);
	case DROP_LEG:
		return drop(STAT_LEG_INGRESS_DROP);
	case DROP_WIRE:
		return drop(STAT_WIRE_INGRESS_DROP);
	case DROP_APP:
		return drop(STAT_APP_INGRESS_DROP);
	default:
		return TCX_NEXT;
	}
}

#endif
