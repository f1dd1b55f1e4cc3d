# What clients of MariaDB do over TCP. A line for each case: name, tab, result.
set -u
cd "$(dirname "$0")"
at=(--no-defaults --protocol=tcp -h127.0.0.1 -P3307 -uroot)
say() { printf '%s\t%s\n' "$1" "$2"; }
sql() { mariadb "${at[@]}" --max-allowed-packet=64M -N "$@" 2>&1 | tr '\n\t' '  '; }
try() { local n=$1 s; shift; "$@" >out 2>&1; s=$?; ((s == 0)) && say "$n" ok || say "$n" "FAIL: exit $s: $(tail -c 300 out | tr '\n\t' '  ')"; }

sql -e 'CREATE DATABASE d; CREATE DATABASE copy'
sql d -e "CREATE TABLE t (id INT PRIMARY KEY, k INT, s VARCHAR(200), b LONGBLOB, KEY(k));
  INSERT INTO t SELECT seq, seq * 7919 % 10007, REPEAT(MD5(seq), 1 + seq % 5), REPEAT(SHA2(seq, 512), seq % 90) FROM seq_1_to_20000;
  INSERT INTO t SELECT seq + 100000, 0, '', REPEAT(SHA2(seq, 512), 100000) FROM seq_1_to_3;"
say checksum "$(sql d -e 'CHECKSUM TABLE t')"
say rows "$(mariadb "${at[@]}" --max-allowed-packet=64M -N d -e 'SELECT id, k, s, SHA1(b), b FROM t ORDER BY id' | sha256sum | cut -c1-16)"
try dump mysqldump "${at[@]}" --max-allowed-packet=64M --skip-comments --hex-blob --result-file=d.sql d
say dumped "$(sha256sum <d.sql | cut -c1-16)"
try restore bash -c 'mariadb "$@" --max-allowed-packet=64M copy <d.sql' - "${at[@]}"
say restored "$(sql copy -e 'CHECKSUM TABLE t')"
try slap mysqlslap "${at[@]}" --concurrency=20 --iterations=2 --auto-generate-sql --auto-generate-sql-load-type=mixed --number-of-queries=2000
for i in $(seq 10); do
  for k in $(seq 100); do echo "UPDATE t SET k = k + 1 WHERE id BETWEEN $((i * 1000)) AND $((i * 1000 + k * 10 - 1)); SELECT $i, $k, SUM(k), MAX(s) FROM t WHERE id BETWEEN $((i * 1000)) AND $((i * 1000 + 999));"; done |
    mariadb "${at[@]}" -N d >"clients.$i" 2>&1 &
done
wait
say clients "$(cat clients.* | sha256sum | cut -c1-16)"
say compressed "$(mariadb "${at[@]}" --compress --max-allowed-packet=64M -N d -e 'SELECT b FROM t ORDER BY id' | sha256sum | cut -c1-16)"
sql -e 'KILL CONNECTION_ID()' >killed
say killed "$(grep -o 'ERROR [0-9]*' killed)"
