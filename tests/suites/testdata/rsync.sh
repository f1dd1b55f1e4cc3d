# What rsync does with a daemon over TCP. A line for each case: name, tab, result.
set -u
cd "$(dirname "$0")"
say() { printf '%s\t%s\n' "$1" "$2"; }
of() { (cd "$1" && find . -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum | cut -c1-16); }
same() { local a b; a=$(of "$2") b=$(of "$3"); [[ $a == "$b" ]] && say "$1" same || say "$1" "FAIL: $a, want $b"; }
try() { local n=$1 s; shift; "$@" >"out.$n" 2>&1; s=$?; say "$n" "exit $s $(sed -n 's/^Number of regular files transferred: //p; s/^Number of deleted files: \([0-9]*\).*/deleted \1/p' "out.$n" | xargs)"; }

head -c 20000000 /dev/urandom >seed
mkdir -p tree/{1,2,3,7} in
split -a 4 -b 31234 seed tree/1/
split -a 4 -b 40000 seed tree/2/
split -a 4 -b 100001 seed tree/3/
head -c 3000000 seed | split -a 4 -b 4096 - tree/7/
cp seed tree/big
cp -a tree changed
for f in changed/[12]/*[5e]; do echo more >>"$f"; done
printf 'x' | dd of=changed/big bs=1 seek=10000000 conv=notrunc status=none
touch -d '+5 seconds' changed/big # its size is the same, and rsync compares seconds
rm -r changed/7
at=rsync://127.0.0.1:8730/in
for z in plain compressed; do
  c=(); [[ $z == compressed ]] && c=(-z)
  try push-$z rsync -a "${c[@]}" --stats tree/ $at/$z/
  same pushed-$z in/$z tree
  try push-again-$z rsync -a "${c[@]}" --stats tree/ $at/$z/
  try pull-$z rsync -a "${c[@]}" --stats $at/$z/ back.$z/
  same pulled-$z back.$z tree
  try delta-$z rsync -a "${c[@]}" --checksum --delete --stats changed/ $at/$z/
  same delta-sum-$z in/$z changed
  try pull-delta-$z rsync -a "${c[@]}" --no-whole-file --inplace --delete --stats $at/$z/ back.$z/
  same pulled-delta-$z back.$z changed
done
try verify rsync -anc --stats tree/ $at/none/
timeout -s KILL 0.2 rsync -a --bwlimit=2000 tree/ $at/killed/ 2>/dev/null
try limited rsync -a --bwlimit=20000 --stats tree/1/ $at/limited/
same limited-sum in/limited tree/1
try missing rsync -a rsync://127.0.0.1:8730/none/ none/
