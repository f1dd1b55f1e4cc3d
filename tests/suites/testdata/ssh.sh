# What ssh, scp, sftp and rsync do with an sshd of Debian's, as root, which separates privileges. A line for each case: name, tab, result.
set -u
cd "$(dirname "$0")"
say() { printf '%s\t%s\n' "$1" "$2"; }
same() { [[ $2 == "$3" ]] && say "$1" same || say "$1" "FAIL: $2, want $3"; }
sum() { sha256sum | cut -c1-16; }
try() { local n=$1; shift; "$@" >/dev/null 2>err; local s=$?; ((s == ${want:-0})) && say "$n" "exit $s" || say "$n" "FAIL: exit $s: $(tail -c 300 err | tr '\n\t' '  ')"; }

head -c 100000000 /dev/urandom >big
s=$(sum <big)
head -c 20000000 big >mid
m=$(sum <mid)
mkdir -p tree/{1,2,3}
split -a 4 -b 20000 mid tree/1/
split -a 4 -b 41234 mid tree/2/
head -c 3000000 mid | split -a 4 -b 4096 - tree/3/
of() { (cd "$1" && find . -type f -print0 | sort -z | xargs -0 sha256sum | sum); }
t=$(of tree)

for kind in execs forks; do
  case $kind in execs) port=8022 ;; forks) port=8023 ;; esac
  S="ssh -F ssh.conf -p $port"
  same $kind/command "$($S h 'echo to out; echo to err >&2; exit 7' 2>&1 | grep -v Warning | xargs)" "to out to err"
  $S h 'exit 7' 2>/dev/null
  say $kind/status $?
  $S h 'kill -9 $$' 2>/dev/null
  say $kind/signal $?
  same $kind/stdin "$($S h 'cat' <mid | sum)" "$m"
  same $kind/out "$($S h "cat $PWD/mid" | sum)" "$m"
  same $kind/compressed "$($S -C h 'cat' <mid | sum)" "$m"
  same $kind/tty "$($S -tt h 'stty -echo; tty | cut -c1-8; exit 3' 2>/dev/null | tr -d '\r'; echo ${PIPESTATUS[0]})" $'/dev/pts\n3'
  for i in $(seq 20); do $S h "head -c $((i * 100000)) $PWD/big | sha256sum; exit $i" >"many.$i" 2>/dev/null & done
  wait
  n=0
  for i in $(seq 20); do [[ $(head -c $((i * 100000)) big | sha256sum) == "$(<"many.$i")" ]] && ((n++)); done
  say $kind/many $n

  try $kind/scp scp -F ssh.conf -P $port big h:"$PWD/scp.$kind"
  same $kind/scp-sum "$(sum <scp.$kind)" "$s"
  try $kind/scp-old scp -O -F ssh.conf -P $port h:"$PWD/big" "scpo.$kind"
  same $kind/scp-old-sum "$(sum <scpo.$kind)" "$s"
  printf 'put big %s/sftp.%s\nget %s/sftp.%s back.%s\nls %s/tree\nbye\n' "$PWD" $kind "$PWD" $kind $kind "$PWD" >batch
  try $kind/sftp sftp -F ssh.conf -P $port -b batch h
  same $kind/sftp-sum "$(sum <back.$kind)" "$s"
  want=1 try $kind/sftp-missing sftp -F ssh.conf -P $port -b <(echo "get $PWD/none") h

  # The connections that are forwarded are programs' own: to ssh, and from sshd.
  $S -N -L 127.0.0.1:9000:127.0.0.1:8101 -R 127.0.0.1:9001:127.0.0.1:8101 -D 127.0.0.1:9002 -o ExitOnForwardFailure=yes h &
  tunnel=$!
  for i in $(seq 3000); do (echo >/dev/tcp/127.0.0.1/9002) 2>/dev/null && break; sleep 0.1; done
  for f in 1 65536 67108864; do
    w=$(sum <www/$f.bin)
    same "$kind/forward-local-$f" "$(curl -sS http://127.0.0.1:9000/$f.bin | sum)" "$w"
    same "$kind/forward-remote-$f" "$(curl -sS http://127.0.0.1:9001/$f.bin | sum)" "$w"
    same "$kind/forward-dynamic-$f" "$(curl -sS -x socks5://127.0.0.1:9002 http://127.0.0.1:8101/$f.bin | sum)" "$w"
  done
  kill $tunnel
  wait $tunnel 2>/dev/null
  say $kind/tunnel-ended $?

  for i in 1 2; do try $kind/rsync-$i rsync -a --delete -e "$S" tree/ h:"$PWD/rs.$kind/"; done
  same $kind/rsync-sum "$(of rs.$kind)" "$t"
  rm -f scp.$kind scpo.$kind sftp.$kind back.$kind
done
