# What curl does with a web server, with the files it has beside it. A line for each case: name, tab, result.
set -u
cd "$(dirname "$0")"
at=http://127.0.0.1
sum() { sha256sum | cut -c1-16; }
want() { sha256sum <"www/$1" | cut -c1-16; }
say() { printf 'curl/%s\t%s\n' "$1" "$2"; }
same() { [[ $2 == "$3" ]] && say "$1" same || say "$1" "FAIL: $2, want $3"; }

for f in 0 1 999 65536 67108864; do
  same "get-$f" "$(curl -sS $at:8201/$f.bin | sum)" "$(want $f.bin)"
done
same http1.0 "$(curl -sS0 $at:8201/5000000.bin | sum)" "$(want 5000000.bin)"
same compressed "$(curl -sS --compressed $at:8202/text.txt | sum)" "$(want text.txt)"
same proxied "$(curl -sS $at:8203/67108864.bin | sum)" "$(want 67108864.bin)"
same range "$(curl -sS -r 1000000-3000000 $at:8201/5000000.bin | sum)" "$(tail -c +1000001 www/5000000.bin | head -c 2000001 | sum)"
head -c 20000000 www/67108864.bin >part
curl -sS -C - -o part $at:8201/67108864.bin
same resumed "$(sum <part)" "$(want 67108864.bin)"
same limited "$(curl -sS --limit-rate 4M $at:8201/5000000.bin | sum)" "$(want 5000000.bin)"

for i in 1 2 3; do curl -sS -o /dev/null -w '%{http_code} ' -T www/67108864.bin $at:8204/up.$i; done >codes
say upload "$(<codes)"
for i in 1 2 3; do same "uploaded-$i" "$(curl -sS $at:8204/up.$i | sum)" "$(want 67108864.bin)"; done
curl -sS -o /dev/null -T - $at:8204/chunked <www/5000000.bin
same chunked "$(sum <dav/chunked)" "$(want 5000000.bin)"
curl -sS -o /dev/null -H 'Expect: 100-continue' -T www/1048576.bin $at:8204/expect
same expect "$(sum <dav/expect)" "$(want 1048576.bin)"

mkdir -p many
for i in $(seq 300); do
  f=$((i % 3 == 0 ? 5000000 : i % 3 == 1 ? 65536 : 999))
  printf 'url = "%s:8201/%d.bin"\noutput = "many/%d.%d"\n' $at $f "$i" $f
done >urls
curl -sS -Z --parallel-max 30 -K urls
say parallel "$? $(for f in many/*; do cmp -s "$f" "www/${f##*.}.bin" && echo same; done | sort | uniq -c | xargs)"

# Transfers that end early, and the server after them.
curl -sS --max-time 0.3 --limit-rate 1M -o /dev/null $at:8201/67108864.bin 2>/dev/null
say timeout $?
for i in $(seq 20); do
  timeout -s KILL "0.0$((i % 10))" curl -sS -o /dev/null $at:8203/67108864.bin 2>/dev/null
  timeout -s KILL "0.0$((i % 10))" curl -sS -o /dev/null -T www/67108864.bin $at:8204/killed 2>/dev/null
done
curl -sS $at:8201/67108864.bin | head -c 100000 >/dev/null
say pipe "${PIPESTATUS[0]}"
same afterwards "$(curl -sS $at:8203/67108864.bin | sum)" "$(want 67108864.bin)"
curl -sS -o /dev/null $at:9/ 2>/dev/null
say refused $?
