# shellcheck shell=bash
# Sourced by run.  6: claim + commit while another session holds a snapshot, so
# that no dead row and no dead index entry goes away; one line a run to
# $work/held.
# shellcheck disable=SC2154 # work: script/lib.sh; variables of the user: run

# hold_snapshot: in a session of its own, from now until let_go_of_snapshot
hold_snapshot() {
	mkfifo "$work/holder"
	PGAPPNAME=holder sql <"$work/holder" >/dev/null &
	holder=$!
	exec 9>"$work/holder"
	lasting=1
	echo "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1;" >&9
	while [ "$(sql -c "$holds")" != t ]; do
		sleep 0.05
	done
}

# whether somebody holds a snapshot, as long as everything since
holds="SELECT count(*) = 1 FROM pg_stat_activity
	WHERE application_name = 'holder' AND state = 'idle in transaction' AND backend_xmin IS NOT NULL"

let_go_of_snapshot() {
	[ "$(sql -c "$holds")" = t ] || die "the snapshot was not held to the end"
	exec 9>&-
	wait "$holder"
	rm "$work/holder"
	lasting=0
}

# held side round: jobs finished in each sixth of a run.  Sides: idemq-held;
# idemq-urgent, with one job of priority 0 enqueued a second; idemq-free, where
# nobody holds a snapshot: what else changes in so long a run; skip-held.
held() {
	local side=$1 round=$2 log=$work/pgbench.log client what checkpoint before after sixths sent

	what="claim + commit, $side, synchronous_commit $SYNC6, round $round"
	fill "$side" "$(calc "int($RATE6 * $SECS6 * $FILL)")"
	[ "$side" = idemq-free ] || hold_snapshot
	checkpoint=$(begun)
	before=$(counters "$side")
	client=(bench_client "$log" 8 "cycle_${side%%-*}" -T "$SECS6")
	if [ "$side" = idemq-urgent ]; then
		run both_at_once bench_client "$work/urgent.log" 1 urgent_idemq -T "$SECS6" -- "${client[@]}" ||
			piece_failed "$what" "$work/urgent.log" "$log"
	else
		run "${client[@]}" || piece_failed "$what" "$log"
	fi
	after=$(counters "$side")
	no_checkpoint "$checkpoint" "$what"
	[ "$side" = idemq-free ] || let_go_of_snapshot
	read -r sent _ < <(client_said "$log")
	agree "$what" "$sent" "$(jobs_in completed "$side")"
	sixths=$(sql -F ' ' <<-SQL
		SELECT count(*) FILTER (WHERE n = 0), count(*) FILTER (WHERE n = 1), count(*) FILTER (WHERE n = 2),
			count(*) FILTER (WHERE n = 3), count(*) FILTER (WHERE n = 4), count(*) FILTER (WHERE n >= 5)
		FROM (SELECT floor(6 * extract(epoch FROM finished_at - min(finished_at) OVER ()) / $SECS6) AS n
			FROM $(table_of "$side") WHERE status = 'completed') j
	SQL
	)
	echo "$side $SYNC6 $round $SECS6 $sixths $before $after" >>"$work/held"
	say "$what: $sixths jobs in the six parts of $SECS6 s"
	sql -c "TRUNCATE $(table_of "$side")"
}
