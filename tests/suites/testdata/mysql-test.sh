# Tests of MariaDB's main suite, with a client that connects by TCP. A line for each: name, tab, result.
set -u
cd "$(dirname "$0")"
tests=(
  alter_table bulk_replace change_user compress connect create create_select cte_recursive delete distinct flush flush_read_lock
  func_compress func_group func_json func_str func_time group_by information_schema init_connect insert insert_select join join_outer
  key kill kill-2 kill_processlist-6619 limit loaddata lock lock_multi metadata multi_statement mysql_protocols mysqlslap openssl_1
  order_by outfile packet ps ps_11bugs ps_1general ps_2myisam ps_3innodb ps_4heap ps_ddl query_cache range read_only replace select
  set_statement show_check signal skip_name_resolve sp sp-error sp_trans ssl ssl_cipher ssl_compress ssl_connect status
  subselect subselect2 temp_table trigger truncate type_blob type_date type_newdecimal type_varchar union update user_limits user_var
  variables view wait_timeout warnings win xa
)
d=$PWD
mkdir clients
ln -s /usr/bin/{mariadb,mysql,my_,wsrep_}* /usr/bin/{perror,replace} clients/
rm clients/mariadb-test
printf '#!/bin/sh\nexec /usr/bin/mariadb-test "$@" --protocol=tcp\n' >clients/mariadb-test
chmod +x clients/mariadb-test
cd /usr/share/mysql/mysql-test
./mariadb-test-run.pl --vardir="$d/var" --client-bindir="$d/clients" --force --max-test-fail=0 --retry=0 --parallel=1 \
  --testcase-timeout=60 --suite-timeout=120 "${tests[@]/#/main.}" >"$d/out" 2>&1
s=$?
sed -nE 's/^(main\.[^ ]+)( [^ ]+)? +\[ (.*) \].*/\1\2\t\3/p' "$d/out"
((s == 0)) || tr '\t' ' ' <"$d/out" | grep -vE '\[ (pass|skipped|disabled) \]' | tail -n 200
exit 0
