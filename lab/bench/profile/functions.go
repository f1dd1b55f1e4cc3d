package profile

import "strings"

// Names of functions, as many rules need them. Each says how a name begins; one
// that ends in "$" is the whole name. What the compiler adds (".isra.0",
// ".constprop.0") is why beginnings are asked for.

const module = "github.com/smcgw/smcgw/"

func names(text string) []string { return strings.Fields(text) }

// spinning is where a gateway's thread looks for work instead of sleeping.
const spinning = module + "gateway/internal/loop.(*Shard).spin$"

var (
	idling = names(`default_idle default_enter_idle pv_native_safe_halt cpuidle_ call_cpuidle do_idle$ cpu_startup_entry$
		intel_idle acpi_idle mwait_idle arch_cpu_idle poll_idle haltpoll`)

	programsOfKernel = names(`bpf_ __bpf_ cls_bpf tcx_run __cgroup_bpf htab_ __htab_ lookup_nulls_elem`)

	switching = names(`__schedule schedule preempt_schedule try_to_wake_up$ wake_up_ __wake_up autoremove_wake
		default_wake_function$ ep_autoremove_wake ep_poll_callback sock_def_readable sock_def_write finish_task_switch ttwu_
		futex_ __futex do_futex$ __x64_sys_futex do_sched_yield __do_sys_sched_yield __x64_sys_sched_yield
		__x64_sys_nanosleep __x64_sys_clock_nanosleep hrtimer_nanosleep sched_ttwu flush_smp_call_function_queue
		__flush_smp_call sysvec_reschedule asm_sysvec_reschedule sysvec_call_function asm_sysvec_call_function sk_wait_data
		wait_woken eventfd_ pick_next_task exit_to_user_mode_loop irqentry_exit sk_stream_wait switch_fpu_return
		__switch_to update_rq_clock`)

	copying = names(`_copy_to_iter _copy_from_iter copy_page_from_iter copy_page_to_iter __check_object_size check_heap_object
		__check_heap check_stack_object rep_movs copy_user_ simple_copy_to_iter skb_copy_datagram __skb_datagram_iter`)

	buffering = names(`__alloc_skb alloc_skb skb_release kfree_skb sk_skb_reason_drop __kfree_skb skb_attempt_defer_free
		skb_defer_free napi_consume_skb consume_skb skb_page_frag_refill sk_page_frag __alloc_frozen_pages
		get_page_from_freelist __free_frozen_pages free_frozen_page free_unref kmem_cache_alloc kmem_cache_free kmalloc
		kfree __slab ___slab allocate_slab skb_clone __skb_clone skb_free_head __folio_put napi_skb __memcg_slab
		__kmalloc kvfree refill_ __build_skb build_skb tcp_stream_alloc_skb tcp_wmem_free __napi_alloc napi_pp page_pool
		drain_obj mod_objcg alloc_pages __alloc_pages skb_try_coalesce skb_expand_head pskb_expand_head free_pages
		page_frag __refill rmqueue skb_copy_header`)

	opening = names(`__x64_sys_socket __sys_socket sock_create __sock_create inet_create sock_alloc alloc_empty_file
		__x64_sys_connect __sys_connect inet_stream_connect __inet_stream_connect tcp_v4_connect tcp_v6_connect tcp_connect
		inet_hash_connect __inet_hash_connect inet_csk_accept __x64_sys_accept do_accept __sys_accept inet_accept
		__x64_sys_bind __sys_bind inet_bind inet_csk_get_port __x64_sys_listen __x64_sys_close __fput ____fput sock_close
		__sock_release inet_release tcp_close __tcp_close tcp_conn_request tcp_check_req tcp_v4_syn_recv_sock
		inet_csk_destroy_sock tcp_fin tcp_time_wait tcp_v4_conn_request tcp_create_openreq_child inet_csk_clone sk_free
		__sk_free sk_destruct __sk_destruct inet_twsk inet_csk_complete_hashdance tcp_v4_destroy_sock tcp_reset$
		tcp_send_active_reset tcp_done dentry_kill __dentry_kill dput inet_diag sock_diag netlink_ tcp_diag
		__x64_sys_shutdown __sys_shutdown inet_shutdown __x64_sys_setsockopt __sys_setsockopt do_sock_setsockopt
		__x64_sys_getsockopt __sys_getsockopt do_sock_getsockopt __x64_sys_getsockname __x64_sys_getpeername
		tcp_get_info tcp_rcv_state_process task_work_run __x64_sys_sendmsg$ __x64_sys_pidfd`)

	// datagrams are what is around a datagram that is sent or received.
	datagrams = names(`udp_sendmsg udpv6_sendmsg udp_send_skb udp_v6_send_skb udp_recvmsg udpv6_recvmsg __udp4_lib_rcv
		__udp6_lib_rcv udp_rcv udp_gro_receive udp4_gro udp6_gro udp_queue_rcv __sys_sendmmsg __sys_recvmmsg do_recvmmsg`)
	datagram = names(`udp __udp inet_udp skb_segment __skb_gso_segment skb_gso skb_udp ip_make_skb __ip_append_data
		ip_append ip_send_skb __x64_sys_sendmmsg __x64_sys_recvmmsg __sys_sendmmsg __sys_recvmmsg do_recvmmsg
		ip_generic_getfrag`)

	transport = names(`tcp_ __tcp_ bbr_ bictcp_ cubictcp_ reno_ inet_csk_ inet_sendmsg inet_recvmsg inet6_sendmsg
		inet6_recvmsg tcp4_ __inet_lookup inet_lookup inet_ehashfn sk_stream __sk_mem sk_forced_mem __release_sock
		release_sock lock_sock sk_reset_timer sk_filter`)

	polling = names(`do_epoll __x64_sys_epoll ep_ __ep_ epoll_ sock_poll do_select core_sys_select __pollwait do_poll
		do_sys_poll do_pselect __x64_sys_poll __x64_sys_ppoll __x64_sys_pselect __x64_sys_select kern_select poll_
		datagram_poll tcp_poll`)

	network = names(`ip_ __ip_ ip6_ ipv4_ ipv6_ fib_ __fib dev_ __dev_ veth_ net_rx_action __napi napi_ process_backlog
		__netif_receive netif_ nf_ validate_xmit neigh_ loopback_xmit __local_bh_enable_ip do_softirq __do_softirq
		handle_softirqs inet_ gro_ enqueue_to_backlog sch_ __qdisc rt_ raw_local_deliver eth_type arp_ icmp_ __icmp fq_
		dst_ packet_ tpacket skb_ __skb run_ksoftirqd net_tx_action sk_ __sk_ sock_wfree sock_rfree xfrm pskb_ __pskb`)

	mapping = names(`exc_page_fault asm_exc_page_fault handle_mm_fault do_user_addr_fault __x64_sys_mmap __x64_sys_munmap
		__x64_sys_madvise __x64_sys_mprotect vm_mmap do_mmap __vm_munmap zap_ unmap_ shmem_ __x64_sys_memfd __x64_sys_execve
		do_exit do_group_exit mmput exit_mmap kernel_clone load_elf begin_new_exec __x64_sys_ftruncate tlb_ flush_tlb
		__mm_populate filemap __x64_sys_fallocate vfs_fallocate`)

	calling = names(`do_syscall_64 entry_SYSCALL entry_SYSRETQ x64_sys_call __x64_sys_ __do_sys_ ksys_ __sys_ ___sys_
		____sys_ vfs_ sock_ syscall_ new_sync fdget __fget __fdget fput security_ do_writev do_readv do_iter import_
		__import_iovec exit_to_user __GI___libc_read __GI___libc_write __libc_send __libc_recv syscall. internal/runtime/syscall
		golang.org/x/sys/unix. el0_svc invoke_syscall`)

	timing = names(`asm_sysvec sysvec_ hrtimer_ __hrtimer tick_ update_process_times run_timer __run_timers call_timer_fn
		irq_exit __irq_exit rcu_ common_interrupt asm_common_interrupt kvm_ clockevents run_local_timers timer_`)

	checksum = []string{"hash/crc32.", module + "verbs/soft/wire.(*ICRC)", module + "verbs/soft/wire.multiply"}

	negotiating = []string{module + "gateway/internal/conn.(*negotiator)", module + "negotiate", "encoding/", "reflect.", "fmt."}

	streaming = []string{module + "gateway", module + "rsocket", module + "rmb", module + "ebpf", "github.com/cilium/ebpf"}

	carrying = append([]string{module + "verbs"}, streaming...)

	collecting = names(`runtime.gc runtime.malloc runtime.(*mheap) runtime.(*mcache) runtime.(*mcentral) runtime.(*mspan)
		runtime.scan runtime.grey runtime.bg runtime.newobject runtime.growslice runtime.makeslice runtime.sweep
		runtime.(*sweep runtime.newstack runtime.copystack runtime.morestack runtime.adjust runtime.markroot runtime.wbBuf runtime.(*gcWork`)

	scheduling = names(`runtime.schedule runtime.findRunnable runtime.mcall runtime.park runtime.gopark runtime.ready
		runtime.goready runtime.netpoll runtime.sysmon runtime.usleep runtime.retake runtime.mstart runtime.futex
		runtime.note runtime.entersyscall runtime.exitsyscall runtime.reentersyscall runtime.chan runtime.select
		runtime.lock runtime.unlock runtime.(*timer runtime.stopm runtime.startm runtime.wakep runtime.handoffp
		runtime.execute runtime.gosched runtime.goschedImpl runtime.gogo runtime.runq runtime.stealWork`)
)
