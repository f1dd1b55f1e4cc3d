# Node's own tests of TCP, one after the other, with the files beside them. A line for each: name, tab, result.
set -u
cd "$(dirname "$0")/test"
for f in parallel/test-net-*.js parallel/test-tcp-wrap*.js sequential/test-net-*.js; do
  timeout -s KILL 600 node "$f" >../out 2>&1 </dev/null
  s=$?
  ((s == 0)) || { echo "$f:"; tail -n 20 ../out | tr '\t' ' '; }
  printf '%s\texit %s\n' "${f%.js}" $s
done
