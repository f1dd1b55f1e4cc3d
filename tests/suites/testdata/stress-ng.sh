# Stressors of sockets, which verify what they get. A line for each: name, tab, result.
set -u
cd "$(dirname "$0")"
say() { printf '%s\t%s\n' "$1" "$2"; }
run() {
  local name=$1 s
  shift
  timeout -s KILL 300 stress-ng "$@" --timeout 5 --verify --temp-path "$PWD" >out 2>&1
  s=$?
  ((s == 0)) || cat out
  say "$name" "exit $s$(grep -c 'fail:' out | sed 's/^0$//; s/^[1-9].*/, failures/')"
}
for o in random send sendmsg sendmmsg; do run sock-$o --sock 2 --sock-opts $o; done
run sock-nodelay --sock 2 --sock-nodelay
run sock-stream --sock 2 --sock-type stream --sock-domain ipv6
run sockmany --sockmany 2
run sockpair --sockpair 2
run sockfd --sockfd 2
run epoll --epoll 2
run sendfile --sendfile 2
